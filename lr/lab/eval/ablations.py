"""Two experiments that need more than a table of arms: where the time goes, and whether the
language matters. The others: `experiments.py`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from lr.lab.eval.experiment import GUESSED, Arm, Finding, Lab, Outcome, bars, saved_pairs, steps_of
from lr.lab.eval.failure_modes import Spans, covered, spans_at_work
from lr.lab.eval.figure import Bars, Lanes
from lr.lab.eval.report import ACCURACY, PASSES, SPEEDUP, Row, RunResults, notes, pick
from lr.lab.eval.running import Artifacts
from lr.lab.trace.file import read_trace
from lr.tiny.language import Kind
from lr.tiny.languages import LANGUAGES
from lr.trace import ForwardPass
from lr.types import Role

# ---------------------------------------------------------------- profile

DRIVERS = ("lockstep", "overlapped")
NOBODY, TOGETHER = "none of them", "draft and target together"
LANES = ("target", "draft", "judge", NOBODY, TOGETHER)


def profile_arms(lab: Lab) -> list[Arm]:
    """Lookahead Reasoning with either driver, its traces kept."""
    save = Artifacts(traces=True, details=False)
    return [Arm(driver, "lr", {"driver": driver}, artifacts=save) for driver in DRIVERS]


def find_profile(lab: Lab, outcome: Outcome) -> Finding:
    """One row per driver: which model was at work, together with which other. The batch sizes and
    the picture of one problem are those of the overlapped driver."""
    shown, sizes, picture = [], Counter[int](), dict[str, Spans]()
    for driver in DRIVERS:
        seconds, sizes, busy = 0.0, Counter[int](), dict.fromkeys(LANES, 0.0)
        for number, key in enumerate(outcome.runs[driver].records):
            trace = read_trace(lab.work / driver / "traces" / f"{key.file}l")
            events = [(record.time, record.event) for record in trace.records]
            spans = spans_at_work(events)
            picture = spans if number == 0 else picture
            end = max((time for time, _ in events), default=0.0)
            seconds += end
            for lane, some in spans.items():
                busy[lane] += covered(some)
            target, draft = spans["target"], spans["draft"]
            busy[TOGETHER] += covered(target) + covered(draft) - covered([*target, *draft])
            busy[NOBODY] += end - covered([span for some in spans.values() for span in some])
            sizes.update(
                event.branches
                for _, event in events
                if isinstance(event, ForwardPass) and event.role is Role.TARGET
            )
        count, rows = sizes.total(), sum(n * times for n, times in sizes.items())
        shown.append({
            "driver": driver,
            "seconds": seconds,
            **{who: time / seconds for who, time in busy.items()},
            "target passes": count,
            "rows per pass": rows / count if count else math.nan,
        })  # fmt: skip
    numbers = range(1, max(sizes, default=0) + 1)
    passes_by_rows = [sizes[n] / sizes.total() for n in numbers]
    problems, how = len(outcome.runs[DRIVERS[0]].records), f"depth {lab.options.depth}"
    return Finding(
        f"Where the time goes, {problems} problems, {how}, verifier {lab.verifier}",
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
    )


# ---------------------------------------------------------------- domains

FAMILIES = tuple(LANGUAGES)
DOMAIN_COLUMNS = {**ACCURACY, "tokens/s": "speed", **SPEEDUP, "steps kept": "step_acceptance"}


class Domains:
    """One lab per language. What Lookahead Reasoning gains depends on how often two models mean the
    same, not on mathematics: each language has its own target, draft and oracle, everything else is
    the same code. The oracle judges in both, so that no judge's mistakes stand between the two."""

    def __init__(self, labs: dict[str, Lab]) -> None:
        self.labs, first = labs, next(iter(labs.values()))
        self.items = [item for lab in labs.values() for item in lab.items]
        self.work, self.verifier = first.work.parent, first.verifier

    def run(self, arms: Sequence[Arm], heard: Callable[[str], None] = lambda name: None) -> Outcome:
        """Every domain in turn; within a domain the arms take turns, and each is compared with the
        domain's own plain decoding. The results are named "tiny/lr", "plans/lr"."""
        runs: dict[str, RunResults] = {}
        rows: dict[str, Row] = {}
        for family, lab in self.labs.items():

            def told(name: str, family: str = family) -> None:
                heard(f"{family}/{name}")

            outcome = lab.run(arms, told)
            runs |= {f"{family}/{name}": run for name, run in outcome.runs.items()}
            rows |= {f"{family}/{name}": row for name, row in outcome.rows.items()}
        return Outcome(runs, rows)

    def close(self) -> None:
        for lab in self.labs.values():
            lab.close()


def domain_arms(domains: Domains) -> list[Arm]:
    """The four modes and the draft alone; the same in every domain."""
    judge = "oracle" if domains.verifier == "judge" else domains.verifier
    return [
        Arm("ar", "ar"),
        Arm("sd", "sd", GUESSED),
        Arm("lr", "lr", {}, judge, Artifacts(pairs=True)),
        Arm("lr+sd", "lr+sd", GUESSED, judge),
        Arm("draft", "draft"),
    ]


def find_domains(domains: Domains, outcome: Outcome) -> Finding:
    """One row per language and mode."""
    shown, said = [], []
    for name, row in outcome.rows.items():
        family = name.partition("/")[0]
        lengths = [length for _, length in steps_of(outcome, name)]
        shown.append({
            "language": family,
            "mode": row.mode,
            **pick(row, DOMAIN_COLUMNS),
            "of orders": _orders_kept(domains, outcome, name) if row.mode == "lr" else None,
            "tokens kept": row.token_acceptance,
            **pick(row, PASSES),
            "tokens/step": fmean(lengths) if lengths else None,
            "steps": len(lengths) / row.answers if lengths else None,
            "wasted": row.wasted_share,
        })  # fmt: skip
    for family in domains.labs:
        own = [row for name, row in outcome.rows.items() if name.startswith(f"{family}/")]
        said += [f"{family}, {note}" for note in notes(own)]

    def panel(title: str, modes: tuple[str, ...], field: str, **how: Any) -> Bars:
        some = {name: row for name, row in outcome.rows.items() if row.mode in modes}
        labels = [name.replace("/", " ") for name in some]
        return bars(title, labels, list(some.values()), field, **how)

    speculative, lookahead = ("sd", "lr", "lr+sd"), ("lr", "lr+sd")
    judges = {str(run.settings.get("verifier") or "") for run in outcome.runs.values()} - {""}
    return Finding(
        f"Two languages side by side, {next(iter(outcome.rows.values())).problems} problems each",
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
    )


def _orders_kept(domains: Domains, outcome: Outcome, name: str) -> float | None:
    """Of the judged pairs whose target step is an operation, the share that was accepted; None if
    there is none."""
    family, _, arm = name.partition("/")
    lab, own, said = domains.labs[family], Outcome({arm: outcome.runs[name]}, {}), []
    for one in saved_pairs(lab, own, arm):
        meaning = LANGUAGES[family].parse(lab.decode(one.pair.target_step.tokens))
        if meaning is not None and meaning.kind is Kind.OPERATION:
            said.append(one.aligned)
    return fmean(said) if said else None
