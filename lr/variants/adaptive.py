"""Adaptive depth (ours): one draft step more after each accepted one, half as many after a
rejection, as TCP does with its window; nothing is drafted after a step of which the draft itself is
unsure; in mode lr+sd so many tokens are proposed as stay on average; and with `width`, so many
alternatives are drafted as the draft hesitated between in its last step.

    lr generate --variant "adaptive(floor=-0.3)"
    lr generate --variant "adaptive(most=4, width=3)"

Two extension points: a controller, made anew for each answer, and `may_follow`. In the schedules
without a barrier neither changes what is emitted (but a verifier that is not exact may accept one
of more alternatives): they save work that would be thrown away. `tokens` keeps the distribution;
every token stays the same with acceptance "match".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lr.spec.protocol import NodeId
from lr.spec.variant import Controller, StepStats, Variant
from lr.types import Step, require


class Halving(Controller):
    """Additive increase, up to `most`; multiplicative decrease. `wide`: the width is adapted."""

    def __init__(self, most: int = 8, *, wide: bool = False) -> None:
        self.now, self.most, self.accepted, self.entropies = 2, most, 0, wide

    def depth(self, stats: StepStats) -> int:
        grew, self.accepted = stats.accepted > self.accepted, stats.accepted
        self.now = min(self.most, self.now + 1) if grew else max(1, self.now // 2)
        return self.now

    def tokens(self, stats: StepStats) -> int | None:
        """1 / (1 - alpha), the mean of a round if each token stays with alpha; at most 20."""
        alpha = stats.rounds.conditional_acceptance
        return None if alpha is None else math.ceil(1 / max(0.05, 1 - alpha))

    def width(self, stats: StepStats) -> int | None:
        """e^H, rounded: H is the entropy of so many equally likely tokens."""
        nats = stats.draft_entropy
        return None if nats is None else round(math.exp(nats))


def adaptive(*, floor: float = -0.5, most: int = 8, width: int = 1) -> Variant:
    """From 1 to `most` steps ahead, none after a step below `floor` nats per token; from 1 to
    `width` alternatives.
    """
    require(math.isfinite(floor), "floor", floor, "a number: mean log-probability per token")

    def may_follow(node: NodeId, step: Step, logprobs: Sequence[float]) -> bool:
        return not logprobs or math.fsum(logprobs) >= floor * len(logprobs)

    return Variant(
        controller=lambda: Halving(most, wide=width > 1),
        may_follow=may_follow,
        settings={"depth": most, "width": width},
    )
