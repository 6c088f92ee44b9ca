"""What the figures are held against: the goals of this project, and marks that were measured
elsewhere.

The marks are given numbers, from an idle two-core machine that is not this one; where they are
printed they are called so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lr.lab.bench.contenders import Bare, Ours, OursSampled, Transformers
from lr.lab.bench.subjects import RANDOM_12, SHAPES
from lr.lab.bench.timing import Spread, Timing

GIVEN_MARKS = {
    "transformers": {1: 7.0, 4: 8.1, 8: 10.3},
    "vLLM on CPU, compiled": {1: 3.3, 4: 4.0, 8: 5.1},
    "bare loop": {1: 2.8, 4: 3.5, 8: 4.7},
}
"""ms per step of the random-12 shape by batch size: one thread, an idle two-core machine, not the
one that runs this.
"""
VLLM = "vLLM on CPU, compiled"


@dataclass(frozen=True)
class Goal:
    """A goal with what was measured; `met` None where the run did not measure it."""

    text: str
    measured: str
    met: bool | None


def goals(timings: Sequence[Timing]) -> list[Goal]:
    """All goals of plain decoding, in the order in which they are printed."""
    found = {(t.model, t.contender, t.batch): t for t in timings}
    return list(_goals(lambda model, contender, batch: found.get((model, contender, batch))))


_Find = Callable[[str, str, int], Timing | None]


def _goals(find: _Find) -> Iterator[Goal]:
    ours = find("tiny-target", Ours.name, 1)
    yield _ratio(
        "tiny-target, batch 1: at least 2 times the tokens/s of transformers",
        find("tiny-target", Transformers.name, 1),
        ours,
        lambda times: times >= 2,
    )
    yield _ratio(
        "tiny-target, batch 1: at most 1.2 times the ms of the bare loop",
        ours,
        find("tiny-target", Bare.name, 1),
        lambda times: times <= 1.2,
    )
    for batch, mark in GIVEN_MARKS[VLLM].items():
        text = f"{RANDOM_12}, batch {batch}: under the given mark of {VLLM}, {mark} ms"
        timing = find(RANDOM_12, Ours.name, batch)
        if timing is None:
            yield Goal(text, "-", None)
        else:
            yield Goal(text, f"{timing.spread.median:.2f} ms", timing.spread.median < mark)
    for shape in SHAPES:
        yield _ratio(
            f"{shape}, batch 1: at least the tokens/s of transformers",
            find(shape, Transformers.name, 1),
            find(shape, Ours.name, 1),
            lambda times: times >= 1,
        )
    yield _ratio(
        "c, ms per token of tiny-draft over tiny-target, batch 1, sampling included: at most 0.2",
        find("tiny-draft", OursSampled.name, 1),
        find("tiny-target", OursSampled.name, 1),
        lambda times: times <= 0.2,
    )


def _ratio(
    text: str, upper: Timing | None, lower: Timing | None, good: Callable[[float], bool]
) -> Goal:
    """A goal about time over time, taken repeat by repeat and judged at the median."""
    if upper is None or lower is None:
        return Goal(text, "-", None)
    times = upper.relative_to(lower)
    return Goal(text, f"{times.median:.2f} ({show(times)})", good(times.median))


def show(spread: Spread) -> str:
    """The middle half, as it is printed behind a median."""
    return f"{spread.low:.2f}-{spread.high:.2f}"
