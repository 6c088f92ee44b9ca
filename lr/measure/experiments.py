"""The experiments: the paper's tables (arXiv 2506.19830), and questions that it leaves
open. docs/evaluation.md lists them.

Each is two functions: `arms(lab)` returns the ways of answering to compare,
`find(outcome)` makes the table and the figure from their results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lr.errors import SettingError
from lr.measure.experiment import Arm, Finding, Lab, Outcome
from lr.measure.report import ACCURACY, KEPT, PASSES, SPEEDUP, bars, notes, pick
from lr.tiny.oracle import same_meaning
from lr.trace import ForwardPass, VerifierCall
from lr.types import Role
from lr.watch.figures.plots import Bars, Curves, Lanes
from lr.watch.trace.file import read_trace

BY_DRAFT_MODEL = {"drafter": "draft"}  # Tokens are proposed by the draft model.
Coordinates = tuple[float, float]
Spans = list[tuple[float, float]]  # (begin, end) of pieces of work
SPEEDUP_COLUMNS = {
    "mode": "mode", **ACCURACY, "tokens/s": "speed", **SPEEDUP, **KEPT, **PASSES,
    "length": "length_ratio", "wasted": "wasted_share",
}  # fmt: skip


def speedup_arms(lab: Lab) -> list[Arm]:
    """The official tool's four modes, with both models at once, and two more rows of
    Table 1."""
    both = {"driver": "overlapped"}
    lr = [Arm("lr", "lr", both), Arm("lr+sd", "lr+sd", BY_DRAFT_MODEL | both)]
    alone = [Arm("draft", "draft"), Arm("specreason", "specreason")]
    return [Arm("ar", "ar"), Arm("sd", "sd", BY_DRAFT_MODEL), *lr, *alone]


def find_speedup(outcome: Outcome) -> Finding:
    """One row per mode."""
    rows = [one.row for one in outcome.values()]
    modes = [row.mode for row in rows]
    return Finding(
        f"Modes side by side, {rows[0].problems} problems",
        [pick(row, SPEEDUP_COLUMNS) for row in rows],
        [
            bars("right (95 % interval)", modes, rows, "accuracy", percent=True),
            bars(
                "speedup in tokens/s (95 % interval)", modes, rows, "speedup", line=1.0
            ),
        ],
        [
            *notes(rows),
            "lr and lr+sd run target and draft at the same time. SpecReason's scorer is the judge "
            "for the tiny models, else the target.",
        ],
    )


VERIFIERS = (
    "oracle", "judge:0.5", "judge:0.9", "embedding:0.95", "embedding:0.85", "random:0.3",
    "random:0.5", "random:0.7", "likelihood:-1", "likelihood:-3", "score:7", "always",
)  # fmt: skip


def verifier_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then every verifier (Table 2) whose checkpoint is present."""
    found = [Arm("ar", "ar", shown={"verifier": "plain decoding"}, concurrency=None)]
    for name in VERIFIERS:
        try:
            lab.verifier_named(name)
        except SettingError:
            continue
        label, shown = name.replace(":", "_"), {"verifier": name}
        found.append(Arm(label, "lr", {}, name, shown, pairs=True, concurrency=None))
    return found


def find_verifiers(outcome: Outcome) -> Finding:
    """One row per verifier. The oracle of the tiny language says which judged pairs
    mean the same. Precision: their share of the accepted pairs. Recall: the accepted
    share of them. Verifiers that judge without the target's step (score, likelihood)
    have neither."""
    shown, points, labels = [], [], []
    for found in outcome.values():
        row = found.row
        said, same = list[bool](), list[bool]()
        if found.lab.has_oracle and found.arm.pairs:
            for one in found.pairs():
                texts = [
                    found.lab.decode(s.tokens)
                    for s in (one.pair.draft, one.pair.target_step)
                ]
                said.append(one.aligned)
                same.append(same_meaning(*texts))
        both = sum(map(min, said, same))
        judged = sum(
            one.get("stats", {}).get("judged", 0) for one in found.run.records.values()
        )
        won, lost = row.flips or (None, None)
        shown.append({
            **found.arm.shown,
            **pick(row, ACCURACY),
            "steps kept": row.step_acceptance,
            "precision": both / sum(said) if any(said) else None,
            "recall": both / sum(same) if any(same) else None,
            "pairs": len(said) or None,
            "ms per pair": 1000 * (row.judge_seconds or 0.0) / judged if judged else None,
            "lost": lost,
            "won": won,
            "p": row.flip_p,
        })  # fmt: skip
        if row.step_acceptance is not None and row.accuracy is not None:
            points.append((row.step_acceptance, row.accuracy))
            labels.append(found.arm.shown["verifier"])
    kept, plain = "draft steps kept, of those judged", outcome["ar"].row
    title = "each point a verifier, dotted: plain decoding"
    return Finding(
        f"Verifiers, {plain.problems} problems: what is accepted, and what it costs",
        shown,
        [
            Curves(
                title,
                kept,
                "right",
                points=[("lr", points)],
                line=plain.accuracy,
                labels=labels,
            )
        ],
        [
            "precision, recall: against the oracle, on all pairs that the verifier was asked about "
            "in its own run.",
            "lost, won: answers that are wrong here and right in plain decoding, and the other "
            "way; p: the sign test.",
        ],
    )


WIDTHS = (1, 2, 4, 8)
WIDTH_COLUMNS = {
    "pairs kept": "step_acceptance",
    **SPEEDUP,
    **PASSES,
    "wasted": "wasted_share",
}


def width_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then every width (Table 3) with the lab's verifier and the
    oracle, if any."""
    found = [Arm("ar", "ar")]
    for name in (lab.verifier, "oracle") if lab.has_oracle else (lab.verifier,):
        for w in WIDTHS:
            options, shown = {"depth": 2, "width": w}, {"verifier": name, "W": w}
            found.append(
                Arm(f"{name.replace(':', '_')}_W{w}", "lr", options, name, shown)
            )
    return found


def find_width(outcome: Outcome) -> Finding:
    """One row per verifier and width. The share of places at which an alternative was
    accepted is the paper's acceptance rate, accepted steps / (accepted steps +
    corrections)."""
    shown, kept, speeds = (
        [],
        dict[str, list[Coordinates]](),
        dict[str, list[Coordinates]](),
    )
    for one in outcome.values():
        if one.arm.mode == "lr":
            origins, row = Counter(origin for origin, _ in one.steps), one.row
            places = origins["accepted"] + origins["correction"]
            place = origins["accepted"] / places if places else None
            head, rest = (
                {**one.arm.shown, **pick(row, ACCURACY)},
                pick(row, WIDTH_COLUMNS),
            )
            shown.append({**head, "places kept": place, **rest})
            name, width = one.arm.shown.values()
            kept.setdefault(name, []).append((float(width), place or 0.0))
            speeds.setdefault(name, []).append((float(width), row.speedup or 0.0))
    x, against = "alternatives per step, W", "against plain decoding"
    return Finding(
        f"Width at depth 2, {outcome['ar'].row.problems} problems",
        shown,
        [
            Curves(
                "places at which a draft step was kept", x, "share", list(kept.items())
            ),
            Curves("speedup in tokens/s", x, against, list(speeds.items()), line=1.0),
        ],
        [
            "places kept: of the places where steps were judged, those where one of the W was "
            "accepted; pairs kept: of all pairs."
        ],
    )


BUDGETS = (4, 8, 16, 32)


def splits() -> list[tuple[int, int]]:
    """Every (k1, k2) of powers of two whose product is a budget."""
    return sorted((2**i, M // 2**i) for M in BUDGETS for i in range(M.bit_length()))


def budget_arm(k1: int, k2: int) -> Arm:
    """k1 target steps in flight (depth k1 - 1), k2 positions per step (k2 - 1 draft
    tokens)."""
    options: dict[str, Any] = (
        {"depth": max(1, k1 - 1), "max_target_rows": k1} if k1 > 1 else {}
    )
    if k2 > 1:
        options |= {**BY_DRAFT_MODEL, "num_speculative_tokens": k2 - 1}
    mode = ("lr+sd" if k2 > 1 else "lr") if k1 > 1 else ("sd" if k2 > 1 else "ar")
    shown = {"M": k1 * k2, "k1": k1, "k2": k2}
    return Arm(f"k1_{k1}_k2_{k2}", mode, options, shown=shown)


def budget_arms(lab: Lab) -> list[Arm]:
    """Every split, and each factor alone."""
    alone = {(k1, 1) for k1, _ in splits()} | {(1, k2) for _, k2 in splits()}
    return [budget_arm(*split) for split in sorted({*splits(), *alone})]


def find_budget(outcome: Outcome) -> Finding:
    """One row per split of every budget.

    By the product law (section 3.3) steps and tokens together speed up by f(k1) *
    g(k2), the product of what each gives alone. This measures f, g and both together,
    in tokens per target pass (the law's own measure) and in time (which depends on the
    machine too)."""

    def passes(k1: int, k2: int) -> float:
        """Tokens per target pass; 1 in plain decoding."""
        return outcome[budget_arm(k1, k2).name].row.tokens_per_pass or 1.0

    shown, series = [], []
    for budget in BUDGETS:
        some = [(k1, k2) for k1, k2 in splits() if k1 * k2 == budget]
        best = max(some, key=lambda split: passes(*split))
        for k1, k2 in some:
            one, product = (
                outcome[budget_arm(k1, k2).name],
                passes(k1, 1) * passes(1, k2),
            )
            shown.append({
                **one.arm.shown,
                "tokens/pass": passes(k1, k2),
                "f x g": product,
                "share of f x g": passes(k1, k2) / product,
                **pick(one.row, SPEEDUP | KEPT),
                "best of its M": "*" if (k1, k2) == best else "",
            })  # fmt: skip
        series.append(
            (f"M = {budget}", [(float(k1), passes(k1, k2)) for k1, k2 in some])
        )
    x, y = "target steps in flight, k1", "tokens per target pass"
    problems = outcome["k1_1_k2_1"].row.problems
    return Finding(
        f"A budget of M positions per target pass, {problems} problems",
        shown,
        [Curves("k2 = M / k1 positions per step", x, y, series)],
        [
            "f x g: tokens per pass with k1 steps alone, times those with k2 positions alone. "
            "share: the measured tokens per pass over f x g."
        ],
    )


SEGMENTERS: dict[str, dict[str, Any]] = {
    "blank line": {"segmenter": "blank_line"},
    "sentence": {"segmenter": "sentence"},
    "fixed 8": {"segmenter": "fixed", "segment_tokens": 8},
    "fixed 16": {"segmenter": "fixed", "segment_tokens": 16},
    "fixed 32": {"segmenter": "fixed", "segment_tokens": 32},
}


def segmentation_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then every segmenter."""
    found = [Arm("ar", "ar")]
    for name, how in SEGMENTERS.items():
        found.append(
            Arm(name.replace(" ", "_"), "lr", how, shown={"steps end at": name})
        )
    return found


def find_segmentation(outcome: Outcome) -> Finding:
    """One row per segmenter."""
    plain, *cut = outcome.values()
    shown, rows = [], [one.row for one in cut]
    for one in cut:
        records, count = one.run.records.values(), len(one.steps)
        longest = sum(record.get("cut_steps", 0) for record in records)
        shown.append({
            **one.arm.shown,
            **pick(one.row, ACCURACY),
            "steps kept": one.row.step_acceptance,
            "tokens/step": one.step_tokens,
            "cut": longest / count if count else None,
            "steps per answer": count / len(records),
            **pick(one.row, SPEEDUP | PASSES),
        })  # fmt: skip
    return Finding(
        f"Where steps end, {plain.row.problems} problems, verifier {plain.lab.verifier}",
        shown,
        [
            bars(
                "draft steps kept",
                list(SEGMENTERS),
                rows,
                "step_acceptance",
                percent=True,
            ),
            bars("speedup in tokens/s", list(SEGMENTERS), rows, "speedup", line=1.0),
        ],
        [
            "cut: the share of steps that ended at the length cap. Where length cuts the steps, a "
            "judge made for whole steps sees pieces of them."
        ],
    )


DRIVERS = ("lockstep", "overlapped")
NOBODY, TOGETHER = "none of them", "draft and target together"
LANES = ("target", "draft", "judge", NOBODY, TOGETHER)


def covered(spans: Spans) -> float:
    """The length of the union of spans. Example: (0, 2), (1, 3), (5, 6) cover 4."""
    total = reached = 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def spans_at_work(events: Iterable[tuple[float, object]]) -> dict[str, Spans]:
    """When draft, target and judge worked, from (time, event); an event reports what
    has ended."""
    spans: dict[str, Spans] = {"draft": [], "target": [], "judge": []}
    for time, event in events:
        if isinstance(event, ForwardPass | VerifierCall):
            lane = event.role.value if isinstance(event, ForwardPass) else "judge"
            spans[lane].append((max(0.0, time - event.seconds), time))
    return spans


def profile_arms(lab: Lab) -> list[Arm]:
    """Lookahead Reasoning with each driver; keeps the traces."""
    return [Arm(driver, "lr", {"driver": driver}, traces=True) for driver in DRIVERS]


def find_profile(outcome: Outcome) -> Finding:
    """One row per driver: how long each model worked, and two at a time. The batch
    sizes and the lanes of one problem are those of the overlapped driver."""
    shown, sizes, picture = [], Counter[int](), dict[str, Spans]()
    for driver in DRIVERS:
        seconds, sizes, busy = 0.0, Counter[int](), dict.fromkeys(LANES, 0.0)
        run = outcome[driver].run
        for number, key in enumerate(run.records):
            trace = read_trace(run.path / "traces" / f"{key.file}l")
            events = [(record.time, record.event) for record in trace.records]
            spans = spans_at_work(events)
            picture = spans if number == 0 else picture
            end = max((time for time, _ in events), default=0.0)
            seconds += end
            for lane, some in spans.items():
                busy[lane] += covered(some)
            target, draft = spans["target"], spans["draft"]
            busy[TOGETHER] += (
                covered(target) + covered(draft) - covered([*target, *draft])
            )
            busy[NOBODY] += end - covered(
                [span for some in spans.values() for span in some]
            )
            passes = [event for _, event in events if isinstance(event, ForwardPass)]
            sizes.update(one.branches for one in passes if one.role is Role.TARGET)
        count = sizes.total()
        shown.append({
            "driver": driver,
            "seconds": seconds,
            **{who: time / seconds for who, time in busy.items()},
            "target passes": count,
            "rows per pass": fmean(sizes.elements()) if count else math.nan,
        })  # fmt: skip
    numbers = range(1, max(sizes, default=0) + 1)
    passes_by_rows = [sizes[n] / sizes.total() for n in numbers]
    one = outcome[DRIVERS[0]]
    how = f"depth {one.lab.options.depth}, verifier {one.lab.verifier}"
    return Finding(
        f"Where the time goes, {one.row.problems} problems, {how}",
        shown,
        [
            Bars(
                "target passes by rows",
                [str(n) for n in numbers],
                passes_by_rows,
                percent=True,
            ),
            Lanes("one problem, driver overlapped", "seconds", picture),
        ],
        [
            "target, draft, judge, none: shares of the time in which each was at work; together "
            "they can exceed 1.",
            "draft and target together: the share of the time in which both were at work; 0 on "
            "one thread.",
        ],
    )


@dataclass(frozen=True)
class Experiment:
    """`problems`: the default number of tiny problems."""

    problems: int
    arms: Callable[[Lab], list[Arm]]
    find: Callable[[Outcome], Finding]


EXPERIMENTS = {
    "speedup": Experiment(60, speedup_arms, find_speedup),
    "verifiers": Experiment(300, verifier_arms, find_verifiers),
    "width": Experiment(24, width_arms, find_width),
    "profile": Experiment(12, profile_arms, find_profile),
    "budget": Experiment(16, budget_arms, find_budget),
    "segmentation": Experiment(24, segmentation_arms, find_segmentation),
}
