"""Experiments on what the paper (arXiv 2506.19830) leaves open: where the time goes, how to divide
a budget between steps and tokens, where a step ends, and whether the language matters.

See `experiments.py`, which lists them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from lr.lab.eval.datasets import Item
from lr.lab.eval.experiment import (
    ACCURACY,
    GUESSED,
    KEPT,
    PASSES,
    SPEEDUP,
    Arm,
    Finding,
    Lab,
    Outcome,
    bars,
    pick,
    saved_pairs,
    steps_of,
)
from lr.lab.eval.failure_modes import covered
from lr.lab.eval.figure import Bars, Lanes, Points
from lr.lab.eval.report import Row, RunResults, notes
from lr.lab.eval.running import Artifacts
from lr.lab.trace.file import read_trace
from lr.tiny.language import Kind
from lr.tiny.languages import LANGUAGES

# ---------------------------------------------------------------- profile

DRIVERS = ("lockstep", "overlapped")
Spans = dict[str, list[tuple[float, float]]]


def profile_arms(lab: Lab) -> list[Arm]:
    """Lookahead Reasoning with either driver, its traces kept."""
    save = Artifacts(traces=True, details=False)
    return [Arm(driver, "lr", {"driver": driver}, artifacts=save) for driver in DRIVERS]


def find_profile(lab: Lab, outcome: Outcome) -> Finding:
    """One row per driver: which model was at work, together with which other. The batch sizes and
    the picture of one problem are those of the overlapped driver."""
    shown, sizes, picture = [], Counter[int](), Spans()
    for driver in DRIVERS:
        seconds = together = idle = 0.0
        busy, sizes = dict.fromkeys(("target", "draft", "judge"), 0.0), Counter[int]()
        for number, key in enumerate(outcome.runs[driver].records):
            trace = read_trace(lab.work / driver / "traces" / f"{key.file}l")
            events = [record.data for record in trace.records]
            spans = spans_of(events)
            picture = spans if number == 0 else picture
            end = max((event["time"] for event in events), default=0.0)
            seconds += end
            for lane, some in spans.items():
                busy[lane] += covered(some)
            target, draft = spans["target"], spans["draft"]
            together += covered(target) + covered(draft) - covered([*target, *draft])
            idle += end - covered([span for some in spans.values() for span in some])
            passes = [e for e in events if e["event"] == "forward" and e["role"] == "target"]
            sizes.update(event["branches"] for event in passes)
        count = sum(sizes.values())
        rows = sum(size * times for size, times in sizes.items()) / count if count else math.nan
        shares = [*(busy[lane] / seconds for lane in busy), idle / seconds, together / seconds]
        shown.append((driver, seconds, *shares, count, rows))
    numbers = range(1, max(sizes, default=0) + 1)
    passes_by_rows = [sizes[n] / sizes.total() for n in numbers]
    problems, how = len(outcome.runs[DRIVERS[0]].records), f"depth {lab.options.depth}"
    return Finding(
        f"Where the time goes, {problems} problems, {how}, verifier {lab.verifier}",
        (
            "driver", "seconds", "target", "draft", "judge", "none of them",
            "draft and target together", "target passes", "rows per pass",
        ),
        shown,
        [
            Bars("target passes by rows", [str(n) for n in numbers], passes_by_rows, percent=True),
            Lanes("one problem, driver overlapped", "seconds", picture),
        ],
        [
            "target, draft, judge, none: shares of the time in which each was at work; together "
            "they can exceed 1.",
            "draft and target together: the share of the time in which both were at work, which "
            "on one thread cannot be.",
        ],
    )  # fmt: skip


def spans_of(events: Sequence[dict[str, Any]]) -> Spans:
    """When target, draft and judge were at work, in seconds. An event comes at the end of what it
    reports."""
    spans: Spans = {"draft": [], "target": [], "judge": []}
    for event in events:
        if event["event"] in ("forward", "verifier"):
            lane = event["role"] if event["event"] == "forward" else "judge"
            spans[lane].append((max(0.0, event["time"] - event["seconds"]), event["time"]))
    return spans


# ---------------------------------------------------------------- budget (section 3.3)

BUDGETS = (4, 8, 16, 32)
BUDGET_COLUMNS = {**SPEEDUP, **KEPT}


def splits() -> list[tuple[int, int]]:
    """Every (k1, k2) of powers of two within a budget, once."""
    found = {(2**i, budget // 2**i) for budget in BUDGETS for i in range(budget.bit_length())}
    return sorted(found)


def budget_arm(k1: int, k2: int) -> Arm:
    """k1 target steps in flight (depth k1 - 1, in schedule depth), k2 positions per step (k2 - 1
    guessed tokens)."""
    options: dict[str, Any] = {"depth": max(1, k1 - 1), "max_target_rows": k1} if k1 > 1 else {}
    if k2 > 1:
        options |= {**GUESSED, "num_speculative_tokens": k2 - 1}
    mode = ("lr+sd" if k2 > 1 else "lr") if k1 > 1 else ("sd" if k2 > 1 else "ar")
    return Arm(f"k1_{k1}_k2_{k2}", mode, options)


def budget_arms(lab: Lab) -> list[Arm]:
    """Every split, and each part alone."""
    alone = {(k1, 1) for k1, _ in splits()} | {(1, k2) for _, k2 in splits()}
    return [budget_arm(*split) for split in sorted({*splits(), *alone})]


def find_budget(lab: Lab, outcome: Outcome) -> Finding:
    """One row per split of every budget.

    The product law (section 3.3) says that the speedup of both together is f(k1) * g(k2), the
    product of what each gives alone. Here f, g and both together are measured, in target passes as
    well as in time: passes are what the law is about, time is what the machine makes of it.
    """

    def passes(k1: int, k2: int) -> float:
        """Tokens per target pass, of which plain decoding has 1."""
        return outcome.rows[f"k1_{k1}_k2_{k2}"].tokens_per_pass or 1.0

    shown, series = [], []
    for budget in BUDGETS:
        some = [(k1, k2) for k1, k2 in splits() if k1 * k2 == budget]
        best = max(some, key=lambda split: passes(*split))
        for k1, k2 in some:
            saved, product = passes(k1, k2), passes(k1, 1) * passes(1, k2)
            measured = [
                getattr(outcome.rows[f"k1_{k1}_k2_{k2}"], n) for n in BUDGET_COLUMNS.values()
            ]
            mark = "*" if (k1, k2) == best else ""
            shown.append((budget, k1, k2, saved, product, saved / product, *measured, mark))
        points = [(float(k1), passes(k1, k2), "") for k1, k2 in some]
        series.append((f"M = {budget}", points))
    x, y = "target steps in flight, k1", "tokens per target pass"
    problems = next(iter(outcome.rows.values())).problems
    heads = ("M", "k1", "k2", "tokens/pass", "f x g", "share of f x g")
    return Finding(
        f"A budget of M positions per target pass, {problems} problems",
        (*heads, *BUDGET_COLUMNS, "best of its M"),
        shown,
        [Points("k2 = M / k1 positions per step", x, y, series, joined=True)],
        [
            "f x g: tokens per pass with k1 steps alone, times those with k2 positions alone. "
            "share: how much of it both together reach."
        ],
    )


# ---------------------------------------------------------------- segmentation

SEGMENTERS: dict[str, dict[str, Any]] = {
    "blank line": {"segmenter": "blank_line"},
    "sentence": {"segmenter": "sentence"},
    "fixed 8": {"segmenter": "fixed", "segment_tokens": 8},
    "fixed 16": {"segmenter": "fixed", "segment_tokens": 16},
    "fixed 32": {"segmenter": "fixed", "segment_tokens": 32},
    "discourse": {"segmenter": "discourse"},
}


def segmentation_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then every way of cutting."""
    cuts = [Arm(name.replace(" ", "_"), "lr", how) for name, how in SEGMENTERS.items()]
    return [Arm("ar", "ar"), *cuts]


def find_segmentation(lab: Lab, outcome: Outcome) -> Finding:
    """One row per way of cutting."""
    shown, names = [], list(SEGMENTERS)
    rows = [outcome.rows[name.replace(" ", "_")] for name in names]
    for name, row in zip(names, rows, strict=True):
        label = name.replace(" ", "_")
        records = list(outcome.runs[label].records.values())
        lengths = [length for _, length in steps_of(outcome, label)]
        cut = sum(one.get("cut_steps", 0) for one in records)
        steps = (fmean(lengths), cut / len(lengths)) if lengths else (None, None)
        measured = (row.step_acceptance, *steps, len(lengths) / len(records))
        shown.append((name, *pick(row, ACCURACY), *measured, *pick(row, SPEEDUP | PASSES)))
    return Finding(
        f"Where steps end, {outcome.rows['ar'].problems} problems, verifier {lab.verifier}",
        (
            "steps end at", *ACCURACY, "steps kept", "tokens/step", "cut", "steps per answer",
            *SPEEDUP, *PASSES,
        ),
        shown,
        [
            bars("draft steps kept", names, rows, "step_acceptance", percent=True),
            bars("speedup in tokens/s", names, rows, "speedup", line=1.0),
        ],
        [
            "cut: steps that ended at the length cap. A judge made for whole steps sees pieces of "
            "them where they are cut by length."
        ],
    )  # fmt: skip


# ---------------------------------------------------------------- domains

FAMILIES = tuple(LANGUAGES)
DOMAIN_COLUMNS = {**ACCURACY, "tokens/s": "speed", **SPEEDUP, "steps kept": "step_acceptance"}


class Domains(Lab):
    """One lab per language, used as one whose arms are named "tiny/lr", "plans/lr". What
    Lookahead Reasoning gains depends on how often two models mean the same, not on mathematics:
    each language has its own target, draft and oracle, everything else is the same code. The oracle
    judges in both, so that no judge's mistakes stand between the two."""

    def __init__(self, labs: Mapping[str, Lab]) -> None:
        self.labs = dict(labs)
        first = next(iter(self.labs.values()))
        self.items: Sequence[Item] = first.items
        self.work = first.work.parent

    def run(self, arms: Sequence[Arm], heard: Callable[[str], None] = lambda name: None) -> Outcome:
        """Every domain in turn; within a domain the arms take turns, and each is compared with the
        domain's own plain decoding."""
        runs: dict[str, RunResults] = {}
        rows: dict[str, Row] = {}
        for family, lab in self.labs.items():

            def hear(name: str, family: str = family) -> None:
                heard(f"{family}/{name}")

            named = [arm.name.partition("/") for arm in arms]
            own = [
                replace(a, name=n[2]) for a, n in zip(arms, named, strict=True) if n[0] == family
            ]
            outcome = lab.run(own, hear)
            runs |= {f"{family}/{name}": run for name, run in outcome.runs.items()}
            rows |= {f"{family}/{name}": row for name, row in outcome.rows.items()}
        return Outcome(runs, rows)

    def close(self) -> None:
        """End the reasoners."""
        for lab in self.labs.values():
            lab.close()


def domain_arms(lab: Lab) -> list[Arm]:
    """The four modes and the draft alone; the same in every domain."""
    assert isinstance(lab, Domains)
    found = []
    for family, one in lab.labs.items():
        judge = "oracle" if one.verifier == "judge" else one.verifier
        found += [
            Arm(f"{family}/ar", "ar"),
            Arm(f"{family}/sd", "sd", GUESSED),
            Arm(f"{family}/lr", "lr", {}, judge, Artifacts(pairs=True)),
            Arm(f"{family}/lr+sd", "lr+sd", GUESSED, judge),
            Arm(f"{family}/draft", "draft"),
        ]
    return found


def find_domains(lab: Lab, outcome: Outcome) -> Finding:
    """One row per language and mode."""
    assert isinstance(lab, Domains)
    rows, shown = outcome.rows, []
    for name, row in rows.items():
        family = name.partition("/")[0]
        lengths = [length for _, length in steps_of(outcome, name)]
        orders = _orders_kept(lab.labs[family], family, outcome, name) if row.mode == "lr" else None
        measured = (
            orders, row.token_acceptance, row.tokens_per_pass, fmean(lengths) if lengths else None,
            len(lengths) / row.answers if lengths else None, row.wasted_share,
        )  # fmt: skip
        shown.append((family, row.mode, *pick(row, DOMAIN_COLUMNS), *measured))

    def panel(title: str, modes: tuple[str, ...], field: str, **how: Any) -> Bars:
        names = [name for name in rows if name.partition("/")[2] in modes]
        labels = [name.replace("/", " ") for name in names]
        return bars(title, labels, [rows[name] for name in names], field, **how)

    speculative, lookahead = ("sd", "lr", "lr+sd"), ("lr", "lr+sd")
    said = []
    for family in lab.labs:
        own = [row for name, row in rows.items() if name.partition("/")[0] == family]
        said += [f"{family}, {note}" for note in notes(own)]
    judges = {str(run.settings.get("verifier") or "") for run in outcome.runs.values()} - {""}
    return Finding(
        f"Two languages side by side, {next(iter(rows.values())).problems} problems each",
        (
            "language", "mode", *DOMAIN_COLUMNS, "of orders", "tokens kept", *PASSES,
            "tokens/step", "steps", "wasted",
        ),
        shown,
        [
            panel("right (95 % interval)", ("ar", "lr", "draft"), "accuracy", percent=True),
            panel("draft steps kept", lookahead, "step_acceptance", percent=True),
            panel("tokens per target pass", speculative, "tokens_per_pass", line=1.0),
            panel("speedup in tokens/s (95 % interval)", speculative, "speedup", line=1.0),
        ],
        [
            *said,
            "Speedups are against plain decoding in the same language. Verifier in both: "
            f"{', '.join(sorted(judges))}. of orders: steps kept among those whose target step is "
            "an operation (an order carried out), without goal, start and answer.",
        ],
    )  # fmt: skip


def _orders_kept(lab: Lab, family: str, outcome: Outcome, name: str) -> float | None:
    """Of the judged pairs whose target step is an operation, the share that was accepted; None if
    there is none."""
    own = Outcome({name.partition("/")[2]: outcome.runs[name]}, {})
    said = []
    for pair, aligned in saved_pairs(lab, own, name.partition("/")[2]):
        meaning = LANGUAGES[family].parse(lab.decode(pair.target_step.tokens))
        if meaning is not None and meaning.kind is Kind.OPERATION:
            said.append(aligned)
    return fmean(said) if said else None
