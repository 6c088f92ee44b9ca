"""Choosers: which of the alternatives of a step is accepted
(`lr.spec.protocol.Chooser`).

The verifier measures each alternative and rules out bad ones; the chooser takes one of
the rest. `FirstAligned` in `lr/spec/protocol.py` is the paper's rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lr.spec.protocol import WAIT, Place, Wait
from lr.types import require


@dataclass(frozen=True)
class BestScore:
    """The aligned alternative with the verifier's highest score; of equal scores, the
    first.

    A verdict without a score (for equal texts, for example) counts as the best
    possible."""

    def choose(self, place: Place) -> int | Literal[Wait.WAIT] | None:
        if place.more:
            return WAIT
        scores = [float("inf") if v.score is None else v.score for v in place.verdicts]
        aligned = [j for j, verdict in enumerate(place.verdicts) if verdict.aligned]
        return max(aligned, key=scores.__getitem__, default=None)


@dataclass(frozen=True)
class Majority:
    """The most frequent aligned alternative, if drafted `least` times; of equal counts,
    the first.

    Two steps are the same if their `text` is equal; None: if their token ids are."""

    least: int = 2
    text: Callable[[Sequence[int]], str] | None = None

    def __post_init__(self) -> None:
        require(self.least >= 1, "least", self.least, "a whole number >= 1")

    def choose(self, place: Place) -> int | Literal[Wait.WAIT] | None:
        if place.more:
            return WAIT
        read = self.text
        said = [
            d.tokens if read is None else read(d.tokens).strip() for d in place.drafts
        ]
        votes = Counter(
            one for one, v in zip(said, place.verdicts, strict=True) if v.aligned
        )
        place.note("votes", votes=[votes[one] for one in said], least=self.least)
        aligned = [j for j, verdict in enumerate(place.verdicts) if verdict.aligned]
        best = max(aligned, key=lambda j: votes[said[j]], default=None)
        return best if best is not None and votes[said[best]] >= self.least else None
