"""RSD, reward-guided speculative decoding (Liao et al., arXiv 2501.19324).

    lr generate --variant "rsd(threshold=0.7)"
    lr generate --variant "rsd(weight='clip')"

A reward scores every step of the draft; the target rewrites bad steps. One part: a
verifier. `weight` is the paper's weighting function: "step" accepts from the
threshold on, "clip" accepts with probability min(1, max(0, reward)).

Faithful: both functions, on scores from 0 to 1. Different: there is no process reward
model here; `scorers.py` gives the score. The tiny judge's P(aligned) compares with the
target's own step, so it sees only mistakes that the target does not make, and it saves
no target step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lr.reasoner import Reasoner
from lr.rng import uniform
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Verifier
from lr.types import Verdict, require
from lr.variants.scorers import make_scorer


class Clipped(Verifier):
    """Accepts with the score that `reward` gives as probability, drawn from the pair's
    own stream."""

    def __init__(self, reward: Verifier) -> None:
        self.reward = reward
        self.name = reward.name
        self.requires = reward.requires

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.reward.passes

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        # one batch for the rewards, then a draw for each pair
        rewards = self.reward.judge(pairs)
        return [self.draw(p, reward) for p, reward in zip(pairs, rewards, strict=True)]

    def draw(self, pair: Pair, reward: Verdict) -> Verdict:
        """Accept below the reward; without one, reject."""
        assert pair.stream is not None
        # keyed: a pair that is judged again gets the same number
        number = uniform(pair.stream.key(0))
        # accepted with probability min(1, max(0, reward))
        aligned = number < (reward.score or 0)
        return replace(reward, aligned=aligned, why=f"{reward.why}; drew {number:.3f}")


def rsd(
    reasoner: Reasoner,
    *,
    threshold: float | None = 0.7,
    weight: str = "step",
    scorer: str | None = None,
) -> Variant:
    """Accept a draft step by its reward: from `threshold` on, or with the reward as
    probability."""
    require(weight in ("step", "clip"), "weight", weight, "'step' or 'clip'")
    reward = make_scorer(reasoner, scorer, threshold)
    # the paper decides step by step; nothing is drafted beyond an open one
    settings = {"depth": 1, "schedule": "sync"}
    return Variant(Clipped(reward) if weight == "clip" else reward, settings=settings)
