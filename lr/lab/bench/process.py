"""An acceptance process: how long steps are, how many drafts are accepted. `process_run.py` lets it
decide.

Three sources: numbers that are given; a calibration (`lr calibrate`), with the lengths of steps as
they were recorded; the paper's tables, which print acceptance but no lengths, so that these are
assumed. Every draw is a function of a key, as everywhere. This module knows no tensor and no model.
Read next: `chance.py`, `process_run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lr.rng import Stream
from lr.theory.calibration import Calibration
from lr.theory.distributions import Duration, Lognormal, Resampled
from lr.types import Role, require

ASSUMED_LENGTH = Lognormal(32.0, 0.5)
"""Tokens of a step where nobody says: the paper prints no lengths. An assumption."""


@dataclass(frozen=True)
class Process:
    """`alpha1`: the probability that a draft step is accepted; `alpha2`: that a draft token is,
    once the tokens before it are. `target` and `draft`: the laws of their steps' lengths in tokens.
    `source` says where the numbers come from."""

    alpha1: float
    alpha2: float
    target: Duration = ASSUMED_LENGTH
    draft: Duration = ASSUMED_LENGTH
    source: str = "given"
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.alpha1 <= 1, "alpha1", self.alpha1, "a probability, 0 to 1")
        require(0 <= self.alpha2 <= 1, "alpha2", self.alpha2, "a probability, 0 to 1")

    @classmethod
    def of_calibration(
        cls, found: Calibration, lengths: Duration = ASSUMED_LENGTH, seed: int = 0
    ) -> Process:
        """What was measured of a pair; `lengths` where the calibration has none."""
        target, draft = (
            Resampled(tuple(map(float, seen))) if seen else lengths
            for seen in (found.target_lengths, found.draft_lengths)
        )
        return cls(found.alpha1.value, found.alpha2.value, target, draft, found.name, seed)

    @classmethod
    def of_paper(
        cls, pair: str, dataset: str, lengths: Duration = ASSUMED_LENGTH, seed: int = 0
    ) -> Process:
        """A pair of Table 1 on one of its data sets; see `from_paper.py` for what is printed and
        what is fitted.
        """
        # it needs numpy, which a draft's process can do without
        from lr.theory.paper import paper_calibration

        return cls.of_calibration(paper_calibration(pair, dataset), lengths, seed)

    def lengths(self, role: Role) -> Duration:
        return self.target if role is Role.TARGET else self.draft


@dataclass(frozen=True)
class ReplayedLengths:
    """A segmenter under which a step is as long as `law` says, whatever its tokens mean.

    The length of a step is drawn with its first token as the key: a function of what was written,
    so neither the driver nor the order of things changes it. Example: the law gives 3 for the key
    that token 17 makes: any step that begins with 17 ends with its third token.
    """

    law: Duration
    stream: Stream

    def start(self) -> _Counting:
        return _Counting(self)

    def length(self, first: int) -> int:
        """Tokens of the step that begins with the token `first`."""
        return max(1, round(self.law.draw(self.stream.key(first))))


@dataclass
class _Counting:
    lengths: ReplayedLengths
    left: int | None = field(default=None)

    def feed(self, token: int) -> bool:
        left = self.lengths.length(token) if self.left is None else self.left
        self.left = left - 1
        return self.left <= 0


@dataclass(frozen=True)
class LengthsOf:
    """Makes the segmenter of a role, wherever it is wanted: it can be sent to the draft's
    process.
    """

    process: Process
    role: Role

    def __call__(self, token_bytes: Callable[[int], bytes]) -> ReplayedLengths:
        stream = Stream.root(self.process.seed).child("step length", self.role.value)
        return ReplayedLengths(self.process.lengths(self.role), stream)


def described(process: Process) -> Mapping[str, object]:
    """For a report."""
    return {
        "source": process.source,
        "alpha1": process.alpha1,
        "alpha2": process.alpha2,
        "target_lengths": _law(process.target),
        "draft_lengths": _law(process.draft),
        "seed": process.seed,
    }


def _law(law: Duration) -> str:
    if isinstance(law, Resampled):
        return f"{len(law.values)} recorded, mean {sum(law.values) / len(law.values):.1f}"
    if isinstance(law, Lognormal):
        return f"assumed lognormal, mean {law.mean:g}, variation {law.variation:g}"
    return repr(law)
