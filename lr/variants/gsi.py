"""GSI, guided speculative inference (Geuter et al., arXiv 2506.04118).

    lr generate --variant "gsi(n=4, beta=10, threshold=0.4)"

The draft writes n versions of a step. With reward r, target p and draft q the tilted
reward is r' = r + (log p - log q) / beta. Version i is drawn in proportion to exp(beta
r'_i), which approximates the soft best of n versions of the target. It is kept iff r'
>= `threshold`; else the target writes. Two extension points: a verifier that measures
and a chooser that draws.

Faithful: the tilt, the draw, the threshold. Different: after a rejection the paper
draws n steps of the target and takes the soft best; here the target writes one.
`scorers.py` gives the reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from lr.reasoner import Reasoner
from lr.rng import uniform
from lr.spec.protocol import WAIT, Place, Wait
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.named import Around
from lr.types import Verdict, require
from lr.variants.scorers import make_scorer


class RewardedVerifier(Around):
    """Aligns every version that has a score, so that it takes part in the draw."""

    def __init__(self, reward: Verifier) -> None:
        super().__init__(reward)
        self.name, self.requires = "gsi", reward.requires | Requires.SAMPLING_LOGPROBS

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [
            replace(v, aligned=v.score is not None) for v in self.verifier.judge(pairs)
        ]


@dataclass(frozen=True)
class Tilted:
    """Draws an alternative by its tilted reward."""

    beta: float
    threshold: float

    def choose(self, place: Place) -> int | Literal[Wait.WAIT] | None:
        if place.more:
            return WAIT
        tilted = [-math.inf] * len(place.verdicts)
        for j, (verdict, pair) in enumerate(
            zip(place.verdicts, place.pairs, strict=True)
        ):
            if pair is not None and verdict.aligned and verdict.score is not None:
                p, q = pair.target_sampling or (), pair.draft_sampling or ()
                tilted[j] = verdict.score + (math.fsum(p) - math.fsum(q)) / self.beta
        best = max(tilted)
        if best == -math.inf:
            return None
        weights = list(accumulate(math.exp(self.beta * (one - best)) for one in tilted))
        stream = next(
            pair.stream for pair in place.pairs if pair is not None and pair.stream
        )
        number = uniform(stream.key(0)) * weights[-1]
        drawn = next(j for j, upto in enumerate(weights) if number < upto)
        return drawn if tilted[drawn] >= self.threshold else None


def gsi(
    reasoner: Reasoner,
    *,
    n: int = 4,
    beta: float = 10.0,
    threshold: float = 0.4,
    scorer: str | None = None,
) -> Variant:
    """Draw one of `n` draft steps by its tilted reward; keep it from `threshold` on."""
    require(beta > 0, "beta", beta, "a number > 0")
    settings = {"width": n, "depth": 1, "schedule": "sync"}
    verifier = RewardedVerifier(make_scorer(reasoner, scorer, None))
    return Variant(verifier, chooser=Tilted(beta, threshold), settings=settings)
