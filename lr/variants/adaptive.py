"""Adaptive depth (ours): depth, draft tokens and width follow what the answer has shown
so far.

    lr generate --variant "adaptive(floor=-0.3)"
    lr generate --variant "adaptive(most=4, width=3)"

The depth grows by one after an accepted draft step and is halved after a rejection,
like TCP's window. No drafts follow a step of which the draft itself is unsure. In mode
lr+sd, k is the mean number of tokens that a round emits. With `width`, the number of
alternatives is the number of tokens between which the draft hesitated in its last step.

Two extension points: a controller, a new one for each answer, and `may_follow`. They
save work that would be thrown away. In schedules without a barrier neither changes the
emitted steps, except that a verifier that is not exact may accept one of more
alternatives. `tokens` keeps the distribution; with acceptance "match" it keeps every
token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lr.spec.protocol import NodeId
from lr.spec.variant import Controller, StepStats, Variant
from lr.types import Step, require


class Halving(Controller):
    """Additive increase up to `most`, multiplicative decrease. `wide`: adapt the width
    too."""

    def __init__(self, most: int = 8, *, wide: bool = False) -> None:
        self.now, self.most, self.accepted, self.entropies = 2, most, 0, wide

    def depth(self, stats: StepStats) -> int:
        grew, self.accepted = stats.accepted > self.accepted, stats.accepted
        self.now = min(self.most, self.now + 1) if grew else max(1, self.now // 2)
        return self.now

    def tokens(self, stats: StepStats) -> int | None:
        """1 / (1 - alpha), the mean tokens of a round if each stays with alpha; at most
        20."""
        alpha = stats.rounds.conditional_acceptance
        return None if alpha is None else math.ceil(1 / max(0.05, 1 - alpha))

    def width(self, stats: StepStats) -> int | None:
        """e^H, rounded: the number of equally likely tokens that have entropy H."""
        nats = stats.draft_entropy
        return None if nats is None else round(math.exp(nats))


def adaptive(*, floor: float = -0.5, most: int = 8, width: int = 1) -> Variant:
    """Draft 1 to `most` steps ahead with 1 to `width` alternatives.

    None follow a step whose mean log-probability per token is below `floor` nats."""
    require(
        math.isfinite(floor), "floor", floor, "a number: mean log-probability per token"
    )

    def may_follow(node: NodeId, step: Step, logprobs: Sequence[float]) -> bool:
        return not logprobs or math.fsum(logprobs) >= floor * len(logprobs)

    return Variant(
        controller=lambda: Halving(most, wide=width > 1),
        may_follow=may_follow,
        settings={"depth": most, "width": width},
    )
