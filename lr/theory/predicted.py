"""How fast would it be on this machine? The scheduler, simulated at the measured cost
of a pass.

`seconds_per_step` combines the work of the answers (`Load`: acceptance, lengths of
steps and chains), one cost line per model (`PassCost`), and the scheduler on a
simulated clock. Anything else shows as a difference from the measurement. In the
lockstep driver draft and target share a thread. Then the clock counts ticks, each one
pass of the target, if it has rows, and up to `draft_forwards` passes of the draft;
ticks are converted to seconds at the end. In the overlapped driver each model has a
machine of its own, and the clock counts seconds. docs/theory.md explains the cost line
and the cost of reading.

Example: a target pass takes 4 ms for one row and 0.5 ms per further row. With steps of
20 tokens and three rows in flight on average, a step takes 20 (4 + 2 * 0.5) = 100 ms.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar, get_args

from lr.options import Driver
from lr.spec.protocol import Limits, Schedule, SchedulerConfig, WorkKind
from lr.theory.acceptance import beta_width_acceptance
from lr.theory.asynchronous import lr_async_speedup
from lr.theory.distributions import (
    Acceptance,
    Bernoulli,
    BetaSiblings,
    Constant,
    Resampled,
)
from lr.theory.simulate import ENDLESS, World, simulate
from lr.theory.synchronous import lr_sync_cycle_speedup, sd_speedup
from lr.theory.trace_metrics import Load, PassCost

if TYPE_CHECKING:
    from lr.theory.calibration import Calibration

DRAFT_FORWARDS = 8  # draft passes per target pass, the default of the lockstep driver
T = TypeVar("T")
LONG_CHAIN = 100  # steps of a long answer, as on the paper's data sets
DEEPEST = {1: 8, 2: 4, 3: 3}
"""By width, the greatest depth that `drawn_ways` draws: trees of at most 40 nodes."""


@dataclass(frozen=True)
class Way:
    """A way of decoding. `depth` 0: no lookahead. `tokens` 0: no token-level
    speculation."""

    schedule: Schedule = Schedule.SYNC
    depth: int = 0
    tokens: int = 0
    width: int = 1

    @property
    def name(self) -> str:
        """Such as "sync 4", "sd 2" or "sync 4, width 3 + sd 2"."""
        wide = f", width {self.width}" if self.width > 1 else ""
        parts = [f"{self.schedule.value} {self.depth}{wide}"] if self.depth else []
        parts += [f"sd {self.tokens}"] if self.tokens else []
        return " + ".join(parts) or "ar"

    def formula(self, found: Calibration) -> float:
        """The closed form with the calibrated values, if only the target speculates on
        tokens."""
        tokens = float(sd_speedup(found.alpha2.value, self.tokens, found.c2))
        if self.depth == 0:
            return tokens
        beta = siblings(found.alpha1.value, found.second_chance.value)
        a, c = float(beta_width_acceptance(*beta, self.width)), found.c1 * tokens
        if self.schedule is Schedule.SYNC:
            return tokens * float(lr_sync_cycle_speedup(a, self.depth, c))
        window, c = self.schedule.value, min(c, 1 - 1e-9)  # no gain from c = 1 on
        assert window == "paper" or window == "depth"
        return tokens * float(lr_async_speedup(a, self.depth, c, window))


@dataclass(frozen=True)
class Tried(Way):
    """A way to run, with further settings. `temperature` None: the checkpoint's own
    value."""

    driver: Driver = "lockstep"
    temperature: float | None = None

    @property
    def name(self) -> str:
        """Such as "sync 4 + sd 2, overlapped, T 0.6"."""
        where = ", overlapped" if self.driver == "overlapped" else ""
        at = "" if self.temperature is None else f", T {self.temperature:g}"
        return f"{super().name}{where}{at}"


def drawn_ways(
    count: int, seed: int, found: Sequence[Calibration], driver: Driver | None = None
) -> list[Tried]:
    """Draw `count` different ways, each with the temperature of one of the
    calibrations.

    The draw is a function of `seed` and of all digits of the calibrations
    (docs/theory.md, the blind test). `driver` None: the driver is drawn too."""
    chance = random.Random(f"{seed} {[one.to_json() for one in found]}")
    ways: dict[Tried, None] = {}
    while len(ways) < count:
        at = chance.choice(found).conditions.get("temperature")
        mode, width = chance.choice(("sd", "lr", "lr+sd")), chance.choice(list(DEEPEST))
        tokens = 0 if mode == "lr" else chance.randint(1, 6)
        schedule, depth = (
            chance.choice(list(Schedule)),
            chance.randint(1, DEEPEST[width]),
        )
        where: Driver = chance.choice(get_args(Driver)) if driver is None else driver
        way = Tried(schedule, depth, tokens, width, where, at)
        ways[Tried(tokens=tokens, temperature=at) if mode == "sd" else way] = None
    return list(ways)


def siblings(alpha: float, again: float) -> tuple[float, float]:
    """(p, q) of the Beta distribution with mean `alpha` and P(second | first not) =
    `again`.

    `again` is the probability that the second alternative is accepted after the first
    was rejected: p / (p + q + 1) = alpha s / (s + 1) with s = p + q, clipped to 10^-3
    (all alike) and 10^6 (independent)."""
    a = min(max(alpha, 1e-6), 1 - 1e-6)
    s = again / (a - again) if again < a else 1e6
    s = min(max(s, 1e-3), 1e6)
    return a * s, (1 - a) * s


def seconds_per_step(
    way: Way,
    load: Load,
    costs: tuple[PassCost, PassCost],
    draft_forwards: int | None = DRAFT_FORWARDS,
    *,
    acceptance: Acceptance | None = None,
    steps: int = 2000,
) -> float:
    """Seconds per emitted step, from about `steps` simulated steps. `costs` is (target,
    draft).

    `draft_forwards` None: each model has its own machine. `acceptance` replaces
    independent draft steps at the rate of `load`."""
    target, draft = costs
    first = target.seconds(1, load.proposed) + load.draft_passes * draft.first
    row = target.row + target.token * load.proposed + load.draft_passes * draft.row
    each = PassCost(first, row)  # a pass of the target, its token drafts included
    if way.depth == 0:
        chain = fmean(load.chain_lengths) if load.chain_lengths else float("inf")
        return fmean(load.target_passes) * first + load.start / chain
    length = fmean(load.draft_lengths) if load.draft_lengths else 0.0
    reading = target.token * length
    later = target.first if way.schedule is Schedule.SYNC and length else 0.0
    unit = first if draft_forwards is not None else 1.0  # seconds of a tick
    writing = draft.seconds(1, load.looked_up)  # a pass of the draft that writes a step
    token = (
        1 / draft_forwards if draft_forwards is not None else writing
    ) / load.draft_tokens
    world = World(
        acceptance or Bernoulli(load.acceptance),
        target=Resampled([n * first / unit for n in load.target_passes]),
        draft=Resampled([n * token for n in load.draft_lengths or (1,)]),
        judge=Constant(0.0 if draft_forwards is not None else load.verdict),
        target_overhead=0.0 if draft_forwards is not None else row / first,
        draft_overhead=draft.row / draft.first
        if draft.first and draft_forwards is None
        else 0.0,
        reading=reading / unit,
        reading_before=later / unit,
        draft_workers=None if way.width > 1 else 1,
    )
    seconds, done, chains, number = 0.0, 0, load.chain_lengths or [0], 0
    while done < steps:
        chain = chains[number % len(chains)]
        limits = Limits(chain) if chain else ENDLESS  # a simulated step has one token
        config = SchedulerConfig(limits, way.schedule, way.depth, way.width)
        run = simulate(config, replace(world, seed=number), chain or steps)
        if draft_forwards is None:
            seconds += run.seconds
        else:
            reads, writes = run.workers[WorkKind.TARGET], run.workers[WorkKind.DRAFT]
            seconds += (
                reads.occupied * each.seconds(reads.mean_rows)
                + run.judged * load.verdict
            )
            pass_seconds = draft.seconds(writes.mean_rows) + writing - draft.first
            seconds += writes.occupied * draft_forwards * pass_seconds
        seconds += load.start if chain else 0.0
        done, number = done + run.steps, number + 1
    return seconds / done


def plain_seconds(found: Calibration, load: Load | None = None) -> float:
    """Seconds per step of plain decoding. Its prompt takes about half of both models'
    prompts."""
    work = found.expected_load() if load is None else load
    chain = fmean(work.chain_lengths) if work.chain_lengths else float("inf")
    return (
        fmean(work.target_passes) * found.plain_token.value
        + found.start.value / 2 / chain
    )


def predicted_speedup(
    way: Way,
    found: Calibration,
    draft_forwards: int | None = DRAFT_FORWARDS,
    loads: tuple[Load, Load] | None = None,
) -> float:
    """Speedup over plain decoding.

    `loads`: the work of the actual answers, in this way and by plain decoding; None:
    the work that the calibration expects."""
    load, plain = loads or (found.expected_load(way.tokens), None)
    alike = BetaSiblings(*siblings(load.acceptance, found.second_chance.value))
    drawn = alike if way.width > 1 else None
    costs = found.target, found.draft
    seconds = seconds_per_step(way, load, costs, draft_forwards, acceptance=drawn)
    return plain_seconds(found, plain) / seconds


def what_if(
    way: Way,
    load: Load,
    costs: tuple[PassCost, PassCost],
    draft_forwards: int | None = DRAFT_FORWARDS,
) -> dict[str, float]:
    """Seconds per step if one thing were different, and if all were: where the time
    goes."""
    long, instant = (
        replace(load, chain_lengths=[LONG_CHAIN]),
        replace(load, verdict=0.0),
    )
    flat = PassCost(costs[0].first), PassCost(costs[1].first)
    cases = {
        "as measured": (load, costs),
        "verdicts took no time": (instant, costs),
        "further rows and tokens cost a pass nothing": (load, flat),
        f"answers had {LONG_CHAIN} steps": (long, costs),
        "all of these": (replace(long, verdict=0.0), flat),
    }
    return {
        name: seconds_per_step(way, one, price, draft_forwards)
        for name, (one, price) in cases.items()
    }


@dataclass(frozen=True)
class Compared:
    """One way: measured speedup with its standard error, closed form, prediction and
    replay.

    `expected` comes from the calibration, which was made on other problems. `replayed`
    uses the acceptance and the lengths of the measured answers, so that only times are
    predicted."""

    way: Way
    measured: float
    error: float
    formula: float
    expected: float
    replayed: float

    @property
    def gap(self) -> float:
        """expected / measured - 1."""
        return self.expected / self.measured - 1


def ratio_with_error(
    above: Sequence[float], below: Sequence[float]
) -> tuple[float, float]:
    """sum(above) / sum(below) over at least two problems, and its standard error."""

    def ratio(pairs: Sequence[tuple[float, float]]) -> float:
        return sum(x for x, _ in pairs) / sum(y for _, y in pairs)

    problems = list(zip(above, below, strict=True))
    return ratio(problems), standard_error(ratio, problems)


def standard_error(
    estimate: Callable[[Sequence[T]], float], problems: Sequence[T]
) -> float:
    """The standard error of an estimate over independent problems, by the jackknife."""
    n = len(problems)
    without = [estimate([*problems[:i], *problems[i + 1 :]]) for i in range(n)]
    mean = fmean(without)
    return sqrt((n - 1) / n * sum((value - mean) ** 2 for value in without))
