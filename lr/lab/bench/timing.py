"""Timing in turns: every repeat runs all contenders one after the other, so that a drift of the
machine's speed meets all of them.

The unit is milliseconds per decoding step. One figure stands for one repeat; a summary is the
median and the middle half of the repeats. Ratios are taken within a repeat, before anything is
summarised. Example with 3 repeats, ms (2, 4, 2) and ms (4, 8, 5): the ratio of the second to the
first is (2, 2, 2.5), its median 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from lr.lab.bench.contenders import Contender


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least two values."""
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median(values), low, high)


@dataclass(frozen=True)
class Lane:
    """One contender on one model: `prompt` is what it continues."""

    model: str
    contender: Contender
    prompt: tuple[int, ...]


@dataclass
class Timing:
    """What was measured for a lane at one batch size: ms per step, one figure per repeat."""

    model: str
    contender: str
    batch: int
    threads: int
    ms: list[float] = field(default_factory=list)

    @property
    def spread(self) -> Spread:
        return Spread.of(self.ms)

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together, at the median."""
        return 1000 * self.batch / self.spread.median

    def relative_to(self, other: Timing) -> Spread:
        """How many times the other's time this one needs, repeat by repeat."""
        return Spread.of([mine / theirs for mine, theirs in zip(self.ms, other.ms, strict=True)])


@dataclass(frozen=True)
class Plan:
    """How much is measured: `repeats` of `tokens` steps at each batch size, after a warm-up of
    `warm_up` steps that is dropped.
    """

    batches: tuple[int, ...]
    tokens: int
    repeats: int
    threads: int
    warm_up: int = 3

    @property
    def runs(self) -> int:
        """Calls of `decode` per lane, warm-up included."""
        return len(self.batches) * (self.repeats + 1)


def measure(
    lanes: Sequence[Lane], plan: Plan, progress: Callable[[], None] = lambda: None
) -> list[Timing]:
    """Time all lanes at every batch size. `progress` is called after each of the `len(lanes) *
    plan.runs` runs.
    """
    timings: list[Timing] = []
    for batch in plan.batches:
        row = [Timing(lane.model, lane.contender.name, batch, plan.threads) for lane in lanes]
        for lane in lanes:
            lane.contender.decode(lane.prompt, batch, plan.warm_up)
            progress()
        for _ in range(plan.repeats):
            for lane, timing in zip(lanes, row, strict=True):
                timing.ms.append(
                    1000
                    * lane.contender.decode(lane.prompt, batch, plan.tokens).seconds
                    / plan.tokens
                )
                progress()
        timings += row
    return timings
