"""Adaptive depth (ours): depth and draft tokens follow what the answer has shown so
far.

    lr generate --variant "adaptive(most=4)"

The depth grows by one after an accepted draft step and is halved after a rejection,
like TCP's window. In mode lr+sd, k is the mean number of tokens that a round emits.

One part: a controller, a new one for each answer. It saves work that would be thrown
away. In schedules without a barrier it does not change the emitted steps. `tokens`
keeps the distribution; with acceptance "match" it keeps every token."""

import math

from lr.reasoner import Reasoner
from lr.spec.variant import Controller, Variant
from lr.trace import Progress


class Halving(Controller):
    """Additive increase up to `most`, multiplicative decrease."""

    def __init__(self, most: int = 8) -> None:
        self.most = most
        self.now = 2  # the present depth
        self.accepted = 0

    def depth(self, progress: Progress) -> int:
        grew = progress.accepted > self.accepted  # the last step was a draft's
        self.accepted = progress.accepted
        # + 1, or halved
        self.now = min(self.most, self.now + 1) if grew else max(1, self.now // 2)
        return self.now

    def tokens(self, progress: Progress) -> int | None:
        """1 / (1 - alpha), the mean tokens of a round if each stays with alpha; at most
        20."""
        alpha = progress.rounds.conditional_acceptance  # None: no round yet
        # 1 + alpha + alpha^2 + ...: the target's token, and each draft that stays
        return None if alpha is None else math.ceil(1 / max(0.05, 1 - alpha))


def adaptive(reasoner: Reasoner, *, most: int = 8) -> Variant:
    """Draft 1 to `most` steps ahead."""
    # a new object for every answer; depth: the largest that it may ask for
    return Variant(controller=lambda: Halving(most), settings={"depth": most})
