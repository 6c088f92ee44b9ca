"""The four modes on real shapes, decided by an acceptance process: tokens per second, and how far
from the roofline.

All ways are run in turns, repeat by repeat, so that a drift of the machine's speed meets all of
them. The floor of a run is the sum of the floors of all its passes, as the trace counts them; where
draft and target have a device each, the larger of the two sums. A draft that writes beside the
target is thus held to what both together must move. Read next: `roofline.py`,
`lr/lab/bench/process_run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from lr.engine.answer import Asked
from lr.engine.crowd import Crowd
from lr.lab.bench.process import Process
from lr.lab.bench.process_run import ReplayAsked, ReplayVerifier
from lr.lab.bench.report import Spread
from lr.lab.bench.roofline import Cost, Peaks, pass_cost, wait_for
from lr.model.qwen import CausalLM
from lr.options import LOOKAHEAD, GenerateOptions
from lr.reasoner import Reasoner
from lr.trace import ForwardPass, Stats, summarise
from lr.types import Role


@dataclass(frozen=True)
class Way:
    """A mode with its driver."""

    mode: str
    driver: str = "lockstep"

    @property
    def name(self) -> str:
        return f"{self.mode}, {self.driver}" if self.mode in LOOKAHEAD else self.mode


def ways(modes: Sequence[str], drivers: Sequence[str]) -> list[Way]:
    """Every mode, those that look ahead with every driver."""
    return [
        Way(mode, driver)
        for mode in modes
        for driver in (drivers if mode in LOOKAHEAD else ["lockstep"])
    ]


@dataclass
class ModeRow:
    """What was measured of a way: tokens per second in every repeat, the counts of all repeats
    together, floors of each repeat.
    """

    way: Way
    rates: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    @property
    def spread(self) -> Spread:
        """Of the tokens per second."""
        return Spread.of(self.rates)

    @property
    def share(self) -> float:
        """The floor under the passes as a share of the time; the median of the repeats."""
        return median(self.shares)

    def speedup(self, plain: ModeRow) -> Spread:
        """Times the tokens per second of plain decoding, repeat by repeat."""
        return Spread.of(
            [mine / theirs for mine, theirs in zip(self.rates, plain.rates, strict=True)]
        )

    def figures(self) -> dict[str, Any]:
        """For a report."""
        stats = self.stats
        return {
            "way": self.way.name,
            "tokens_per_second": self.rates,
            "spread": asdict(self.spread),
            "share_of_limit": self.shares,
            "stats": asdict(stats),
            "step_acceptance": stats.step_acceptance,
            "token_acceptance": stats.token_acceptance,
            "tokens_per_target_pass": stats.tokens_per_target_pass,
        }


@dataclass(frozen=True)
class ModePlan:
    """`options` but for mode and driver; `prompt` tokens before the answer."""

    options: GenerateOptions
    prompt: int
    repeats: int


def time_modes(
    reasoner: Reasoner,
    chosen: Sequence[Way],
    process: Process,
    plan: ModePlan,
    peaks: tuple[Peaks, Peaks],
    progress: Callable[[], None] = lambda: None,
) -> list[ModeRow]:
    """Run every way `plan.repeats` times, each repeat with other draws, after one that does not
    count. `peaks` of the target's and the draft's device; `progress` is called after each run. A
    way keeps its caches from answer to answer, and with them what was recorded of its forwards."""
    rows = [ModeRow(way) for way in chosen]
    lanes = [_answers(reasoner, way, process, plan) for way in chosen]
    try:
        for repeat in range(plan.repeats + 1):
            for row, lane in zip(rows, lanes, strict=True):
                asked = next(lane)
                wait_for(reasoner.models.target.device)
                if repeat:  # the first pays for what is set up once
                    stats = summarise(asked.trace)
                    row.rates.append(stats.tokens / stats.seconds)
                    row.shares.append(_floors(reasoner, asked, stats, plan, peaks) / stats.seconds)
                    row.stats += stats
                progress()
    finally:
        for lane in lanes:
            lane.close()
    return rows


def _answers(
    reasoner: Reasoner, way: Way, process: Process, plan: ModePlan
) -> Generator[Asked, None, None]:
    """Answers in one way, one after the other, on the same caches."""
    assert isinstance(reasoner.verifier, ReplayVerifier)
    options = replace(plan.options, mode=way.mode, driver=way.driver)  # type: ignore[arg-type]
    asked = [
        ReplayAsked(
            reasoner.models,
            reasoner.verifier,
            "x" * plan.prompt,
            replace(options, sample=sample),
            process,
        )
        for sample in range(plan.repeats + 1)
    ]
    yield from Crowd(asked, 1).run()


def _floors(
    reasoner: Reasoner, asked: Asked, stats: Stats, plan: ModePlan, peaks: tuple[Peaks, Peaks]
) -> float:
    """Seconds that all passes of an answer take at least."""
    target, draft = reasoner.models.target, reasoner.models.draft
    assert draft is not None
    length = plan.prompt + stats.tokens / 2
    passes = [event for _, event in asked.trace.events if isinstance(event, ForwardPass)]
    floors = [
        _floor(model, passes, role, length, peak)
        for model, role, peak in zip((target, draft), (Role.TARGET, Role.DRAFT), peaks, strict=True)
    ]
    return max(floors) if draft.device != target.device else sum(floors)


def _floor(
    model: CausalLM, passes: Sequence[ForwardPass], role: Role, length: float, peaks: Peaks
) -> float:
    """Seconds that a model's passes take at least, all branches being `length` tokens long."""
    return sum(_cost(model, one, length).seconds(peaks) for one in passes if one.role is role)


def _cost(model: CausalLM, one: ForwardPass, length: float) -> Cost:
    each = one.tokens / one.branches
    return pass_cost(
        model.config, model.dtype, [each] * one.branches, [length] * one.branches, one.tokens
    )
