"""A cascade: a cheap verifier decides where it is sure, an expensive one where it is not.

The cheap one's score is compared with a band: at or below `low` the draft step is rejected, at or
above `high` it is accepted, in between (and where the cheap one failed or has no score) the
expensive one is asked. That is the plan of confidence cascades such as ConfSpec (arXiv 2602.18447).
The band belongs to the cheap verifier's scale: a probability, a cosine, 0 to 9, nats per token.
"""

from __future__ import annotations

from collections.abc import Sequence

from lr.spec.verifiers.base import Pair, Verifier, judge_safely, need_of
from lr.types import Verdict, require


class Cascade:
    """`cheap` outside the band (low, high) of its score, `expensive` inside."""

    def __init__(self, cheap: Verifier, expensive: Verifier, *, low: float, high: float) -> None:
        require(low <= high, "(low, high)", (low, high), "low <= high")
        self.name = f"{cheap.name}>{expensive.name}"
        self.need = need_of(cheap) | need_of(expensive)
        self.glance_need = need_of(cheap)
        self.cheap, self.expensive = cheap, expensive
        self.low, self.high = low, high

    def glance(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        """What the cheap verifier alone is sure of, None where it is not. The pairs need hold no
        more than `cheap` needs.

        Where that is no target step, a driver can glance first and have the target write a step for
        the unsure pairs only.
        """
        return [self._sure(verdict) for verdict in judge_safely(self.cheap, pairs)]

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        first = self.glance(pairs)
        unsure = [pair for pair, verdict in zip(pairs, first, strict=True) if verdict is None]
        second = iter(self.expensive.judge(unsure) if unsure else [])
        return [next(second) if verdict is None else verdict for verdict in first]

    def _sure(self, verdict: Verdict) -> Verdict | None:
        """The cascade's verdict where the cheap verifier's is enough."""
        score = verdict.score
        if score is None:
            return None
        if score <= self.low:
            return Verdict(False, why=f"{self.cheap.name} is sure: {verdict.why}", score=score)
        if score >= self.high:
            return Verdict(True, why=f"{self.cheap.name} is sure: {verdict.why}", score=score)
        return None
