"""`lr bench step`: plain decoding, token-level speculation, Lookahead Reasoning, and
both.

A repeat answers every problem in every way, with its own seed, and gives one rate per
way in tokens per second; accuracy and counts are over all repeats. Next to each rate is
the prediction of `lr/theory/cost.py`, with pass costs fitted to the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from lr.measure.bench.report import BenchWay, Spread, in_turn
from lr.measure.datasets import Item, ask
from lr.measure.grading import Grader
from lr.options import LOOKAHEAD
from lr.reasoner import Reasoner
from lr.result import Result
from lr.spec.protocol import Schedule
from lr.theory.cost import Answers, Load, PassCost, Way, seconds_per_step
from lr.tiny.names import speaks_tiny
from lr.trace import Stats
from lr.types import Role
from lr.variants.loading import load_variant

SHARED = {"coupling": "shared", "acceptance": "match"}
SYNC: dict[str, Any] = {"schedule": "sync"}
PAPER: dict[str, Any] = {"schedule": "paper"}
OVERLAPPED = {"driver": "overlapped"}
NGRAM = {"drafter": "ngram"}


def ways(k: int) -> list[BenchWay]:
    """All ways, plain decoding first. `k`: tokens per draft.

    "sync" is Algorithm 1 as printed, "paper" the paper's rolling window, the rest
    schedule "depth". Overlapped: a second process writes the draft's steps; lockstep:
    one thread alternates."""
    chain = {"drafter": "draft", "num_speculative_tokens": k}
    return [
        BenchWay("ar", "ar"),
        BenchWay("sd", "sd", chain),
        BenchWay("sd, shared noise", "sd", {**chain, **SHARED}),
        BenchWay("sd, n-gram", "sd", NGRAM),
        BenchWay("lr, sync, lockstep", "lr", SYNC),
        BenchWay("lr, lockstep", "lr"),
        BenchWay("lr, sync, overlapped", "lr", {**SYNC, **OVERLAPPED}),
        BenchWay("lr, paper, overlapped", "lr", {**PAPER, **OVERLAPPED}),
        BenchWay("lr, overlapped", "lr", OVERLAPPED),
        BenchWay("lr+sd, lockstep", "lr+sd", chain),
        BenchWay("lr+sd, overlapped", "lr+sd", {**chain, **OVERLAPPED}),
        BenchWay("lr+sd, n-gram, overlapped", "lr+sd", {**NGRAM, **OVERLAPPED}),
    ]


@dataclass
class BenchTally:
    """The results of one way: seconds and tokens per repeat, statistics over all
    repeats."""

    way: BenchWay
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    right: int = 0
    stats: Stats = field(default_factory=Stats)
    answers: Answers = field(default_factory=Answers)

    def take(self, result: Result, seconds: float, right: bool) -> None:
        """Add an answer to the current repeat."""
        self.seconds[-1] += seconds
        self.tokens[-1] += len(result.tokens)
        self.right += right
        self.stats += result.stats
        self.answers.add(result.trace.events, alone=not self.way.overlapped)

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each repeat."""
        return [
            tokens / seconds
            for tokens, seconds in zip(self.tokens, self.seconds, strict=True)
        ]


def measure(
    reasoner: Reasoner,
    ways: Sequence[BenchWay],
    items: Sequence[Item],
    repeats: int,
    settings: Mapping[str, Any],
    progress: Callable[[], None] = lambda: None,
) -> list[BenchTally]:
    """Answer `items` in all `ways`, `repeats` times, with common `settings`.

    As a warm-up, every way first answers the first problem untimed. Calls `progress`
    after each of the len(ways) (1 + repeats len(items)) answers."""
    tallies = [BenchTally(way) for way in ways]
    variants = {
        way.variant: load_variant(way.variant, reasoner) for way in ways if way.variant
    }
    bare = speaks_tiny(reasoner.codec)

    def answer(way: BenchWay, item: Item, sample: int) -> tuple[Result, float]:
        variant = variants[way.variant] if way.variant else None
        of_method = {} if variant is None else variant.settings
        options = {**settings, "mode": way.mode, **of_method, **way.settings}
        started = time.perf_counter()
        result = reasoner.generate(
            ask(item, bare=bare), variant=variant, **options | {"sample": sample}
        )
        progress()
        return result, time.perf_counter() - started

    for way in ways:
        answer(way, items[0], 0)
    with Grader() as grader:
        for repeat in range(repeats):
            for tally in tallies:
                tally.seconds.append(0.0)
                tally.tokens.append(0)
            for number, item in enumerate(items):
                for tally in in_turn(tallies, repeat + number):
                    result, seconds = answer(tally.way, item, repeat)
                    right = grader.grade(item, result.text).right
                    tally.take(result, seconds, bool(right))
    return tallies


Costs = tuple[PassCost, PassCost]  # The costs of a target pass and of a draft pass.


def fitted_costs(tallies: Sequence[BenchTally]) -> Costs:
    """Pass costs from the ways that run one model at a time, or from all if those lack
    passes."""

    def fit(role: Role) -> PassCost:
        passes = [
            (tally.way.overlapped, by_role[role])
            for tally in tallies
            for by_role in tally.answers.passes
        ]
        alone = [of_run for overlapped, of_run in passes if of_run and not overlapped]
        return PassCost.fit(alone or [of_run for _, of_run in passes])

    return fit(Role.TARGET), fit(Role.DRAFT)


def rows(
    tallies: Sequence[BenchTally], costs: Costs, depth: int, forwards: int
) -> list[dict[str, Any]]:
    """The numbers of every way; the first is plain decoding. The prediction is None
    where the way is not modelled; shares are of the time."""
    numbers = []
    for tally in tallies:
        predicted, emitted = None, tally.answers.emitted
        if emitted and tally.way.variant is None:  # the load of a variant is unknown
            work = modelled(tally, costs, depth, forwards)
            predicted = fmean(emitted) / seconds_per_step(*work)
        total = sum(tally.seconds)
        stats = tally.stats
        row = {
            "way": tally.way.name,
            "mode": tally.way.mode,
            "settings": tally.way.settings,
            "variant": tally.way.variant,
            "tokens_per_second": tally.rates,
            "speedup": asdict(Spread.of_ratios(tally.rates, tallies[0].rates)),
            "predicted_tokens_per_second": predicted,
            "answers": len(tally.answers.chain_lengths),
            "accuracy": tally.right / len(tally.answers.chain_lengths),
            "step_acceptance": stats.step_acceptance,
            "token_acceptance": stats.token_acceptance,
            "tokens_per_target_pass": stats.tokens_per_target_pass,
            "target_share": stats.target_seconds / total,
            "draft_share": stats.draft_seconds / total,
            "verifier_share": stats.verifier_seconds / total,
            "stats": asdict(stats),
        }
        numbers.append(row)
    return numbers


def modelled(
    tally: BenchTally, costs: Costs, depth: int, forwards: int
) -> tuple[Way, Load, Costs, int | None]:
    """The arguments of `seconds_per_step`: way, load of its answers, costs,
    forwards."""
    way, settings = tally.way, tally.way.settings
    schedule = Schedule(settings.get("schedule", "depth"))
    ahead = settings.get("depth", depth) if way.mode in LOOKAHEAD else 0
    plain = Way(schedule, ahead)
    load = tally.answers.load(lookup=settings.get("drafter", "draft") != "draft")
    return plain, load, costs, None if way.overlapped else forwards
