"""All ways of answering on the same problems, in turns, several times over; what they took, and
what the cost model says they would take.

A repeat is every problem in every way, each problem beginning with another way, with a seed of its
own; one figure stands for one way in one repeat, its tokens per second over all problems together.
Ratios are taken within a repeat. Accuracy and counts are over everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lr.lab.bench.cost import Load, PassCost, predicted_rate
from lr.lab.bench.timing import Spread
from lr.lab.bench.token_rows import in_turn
from lr.lab.bench.ways import Way
from lr.options import LOOKAHEAD
from lr.reasoner import Reasoner
from lr.result import Result
from lr.spec.protocol import Schedule
from lr.tiny.language import Problem
from lr.trace import ForwardPass, Stats, StepWritten
from lr.types import Role

LONG_CHAIN = 100
"""Steps of a long answer, such as those of the paper's data sets."""


@dataclass
class Tally:
    """What one way did: seconds and tokens per repeat, statistics over all, and what the cost model
    is made of.
    """

    way: Way
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    right: int = 0
    answers: int = 0
    stats: Stats = field(default_factory=Stats)
    chain_lengths: list[int] = field(default_factory=list)
    passes: list[ForwardPass] = field(default_factory=list)
    lengths: dict[Role, list[int]] = field(
        default_factory=lambda: {Role.TARGET: [], Role.DRAFT: []}
    )

    def begin_repeat(self) -> None:
        self.seconds.append(0.0)
        self.tokens.append(0)

    def take(self, result: Result, seconds: float, right: bool) -> None:
        """One answer of the current repeat."""
        self.seconds[-1] += seconds
        self.tokens[-1] += len(result.tokens)
        self.right += right
        self.answers += 1
        self.stats += result.stats
        self.chain_lengths.append(len(result.steps))
        for _, event in result.trace.events:
            if isinstance(event, ForwardPass):
                self.passes.append(event)
            elif isinstance(event, StepWritten):
                self.lengths[event.role].append(len(event.step.tokens))

    @property
    def rates(self) -> list[float]:
        """Tokens per second, one figure per repeat."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]

    @property
    def accuracy(self) -> float:
        return self.right / self.answers

    def share(self, seconds: float) -> float:
        """Of the time of all answers."""
        return seconds / sum(self.seconds)


@dataclass(frozen=True)
class StepRow:
    """One way: tokens/s, its ratio to plain decoding, and what the cost model predicts for both
    (None: not modelled).
    """

    tally: Tally
    rate: Spread
    speedup: Spread
    predicted: float | None

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        tally, stats = self.tally, self.tally.stats
        return {
            "name": tally.way.name,
            "mode": tally.way.mode,
            "settings": tally.way.settings,
            "alone": tally.way.alone,
            "tokens_per_second": tally.rates,
            "speedup": self.speedup.__dict__,
            "predicted_tokens_per_second": self.predicted,
            "accuracy": tally.accuracy,
            "answers": tally.answers,
            "step_acceptance": stats.step_acceptance,
            "token_acceptance": stats.token_acceptance,
            "tokens_per_target_pass": stats.tokens_per_target_pass,
            "target_share": tally.share(stats.target_seconds),
            "draft_share": tally.share(stats.draft_seconds),
            "verifier_share": tally.share(stats.verifier_seconds),
        }


def measure(
    reasoner: Reasoner,
    ways: Sequence[Way],
    problems: Sequence[Problem],
    repeats: int,
    settings: dict[str, Any],
    progress: Callable[[], None] = lambda: None,
) -> list[Tally]:
    """Answer `problems` in all `ways`, `repeats` times. `settings` are those of `generate` that all
    ways share. The first problem warms everybody up and is answered again. `progress` is called
    after each of the len(ways) (1 + repeats len(problems)) answers."""
    tallies = [Tally(way) for way in ways]
    for way in ways:
        reasoner.generate(problems[0].question, mode=way.mode, **{**settings, **way.settings})
        progress()
    for repeat in range(repeats):
        for tally in tallies:
            tally.begin_repeat()
        for number, problem in enumerate(problems):
            for which in in_turn(len(ways), repeat + number):
                way = ways[which]
                started = time.perf_counter()
                result = reasoner.generate(
                    problem.question, mode=way.mode, sample=repeat, **{**settings, **way.settings}
                )
                seconds = time.perf_counter() - started
                tallies[which].take(result, seconds, result.answer == str(problem.answer))
                progress()
    return tallies


def rows(
    tallies: Sequence[Tally], costs: tuple[PassCost, PassCost], depth: int, draft_ticks: int
) -> list[StepRow]:
    """The rows of the table; the first tally is plain decoding, `costs` are those of a pass of
    (target, draft).
    """
    plain = tallies[0]
    return [
        StepRow(
            tally,
            Spread.of(tally.rates),
            Spread.of([mine / other for mine, other in zip(tally.rates, plain.rates, strict=True)]),
            predicted(tally, costs, depth, draft_ticks),
        )
        for tally in tallies
    ]


def fitted_costs(tallies: Sequence[Tally]) -> tuple[PassCost, PassCost]:
    """What passes of the target and of the draft cost: over the ways in which one model at a time
    runs, if a model has passes there.
    """
    alone = [event for tally in tallies if not tally.way.overlapped for event in tally.passes]
    every = [event for tally in tallies for event in tally.passes]

    def fit(role: Role) -> PassCost:
        mine = [e for e in alone if e.role is role] or [e for e in every if e.role is role]
        return PassCost.fit(mine) if mine else PassCost(0.0)

    return fit(Role.TARGET), fit(Role.DRAFT)


def predicted(
    tally: Tally, costs: tuple[PassCost, PassCost], depth: int, draft_ticks: int
) -> float | None:
    """Tokens per second by the cost model. None where it does not know: token-level speculation by
    a draft model, and alone.
    """
    if tally.way.mode == "ar":
        return 1 / costs[0].first
    load = load_of(tally)
    return None if load is None else _rate(tally, load, costs, depth, draft_ticks)


def load_of(tally: Tally) -> Load | None:
    """What a way of looking ahead had to do, measured."""
    way, stats = tally.way, tally.stats
    if (
        way.mode not in LOOKAHEAD
        or way.settings.get("drafter") == "draft"
        or stats.step_acceptance is None
    ):
        return None
    passes = [event for event in tally.passes if event.role is Role.TARGET]
    rows_passed = sum(event.branches for event in passes)
    return Load(
        acceptance=stats.step_acceptance,
        chain_lengths=tally.chain_lengths,
        target_lengths=tally.lengths[Role.TARGET],
        draft_lengths=tally.lengths[Role.DRAFT],
        tokens_per_pass=stats.target_tokens / rows_passed if way.mode == "lr+sd" else 1.0,
        guessed=sum(event.tokens for event in passes) / rows_passed - 1,
        verdict=stats.verifier_seconds / max(1, stats.judged),
    )


def what_if(
    tally: Tally, costs: tuple[PassCost, PassCost], depth: int, draft_ticks: int
) -> dict[str, float]:
    """Tokens per second by the cost model if one thing were different, and if all were: what keeps
    this way from being faster.
    """
    load, (target, draft) = load_of(tally), costs
    if load is None:
        return {}
    long, free = replace(load, chain_lengths=[LONG_CHAIN]), replace(load, verdict=0.0)
    flat = (PassCost(target.first), PassCost(draft.first))
    cases = {
        "as measured": (load, costs),
        "verdicts took no time": (free, costs),
        "rows and tokens more cost a pass nothing": (load, flat),
        f"answers had {LONG_CHAIN} steps": (long, costs),
        "all of these": (replace(long, verdict=0.0), flat),
    }
    return {
        name: _rate(tally, one, price, depth, draft_ticks) for name, (one, price) in cases.items()
    }


def _rate(
    tally: Tally, load: Load, costs: tuple[PassCost, PassCost], depth: int, draft_ticks: int
) -> float:
    schedule = Schedule(tally.way.settings.get("schedule", "depth"))
    return predicted_rate(
        (schedule, depth), load, costs, None if tally.way.overlapped else draft_ticks
    )
