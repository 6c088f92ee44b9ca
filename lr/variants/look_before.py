"""Look Before You Leap (EACL 2026): of a draft step the longest reliable prefix is kept,
and the target continues it.

    lr generate --variant look_before
    lr generate --variant "look_before(floor=0.3, layer='layers.20')"

A text that the target would write itself moves smoothly through its hidden states. A
draft step is accepted if it does so to its end; else it is kept up to the first token
that turns off. One part: a verifier that reads hidden states, and whose verdicts
`keep`. The target writes nothing beside an accepted step, and only the rest of another.

Faithful: the geometry of hidden states decides, and a prefix may stand. Different: the
paper's sentences are tokens here, and smooth means that the cosine of neighbouring
states is at least `floor`.
"""

from collections.abc import Sequence

import torch

from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.types import Verdict


class Smooth(Verifier):
    """Keeps what is smooth."""

    name = "look_before"
    requires = Requires.HIDDEN

    def __init__(self, floor: float, layer: str) -> None:
        self.floor = floor
        self.layer = layer

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self.measure(pair) for pair in pairs]

    def measure(self, pair: Pair) -> Verdict:
        """Row i of the hidden states stands before token i, row i + 1 after it."""
        assert pair.hidden is not None
        states = pair.hidden.double()
        cosines = torch.cosine_similarity(states[1:], states[:-1], dim=-1).tolist()
        lowest = min(cosines)
        if lowest >= self.floor:
            return Verdict(True, f"smooth: {lowest:.2f}", lowest)
        turn = next(i for i, cosine in enumerate(cosines) if cosine < self.floor)
        why = f"turns off at token {turn}: {cosines[turn]:.2f}"
        return Verdict(False, why, lowest, keep=turn)


def look_before(
    reasoner: Reasoner, *, floor: float = 0.2, layer: str = "norm"
) -> Variant:
    """Keep a draft step as far as neighbouring states have a cosine of `floor`."""
    return Variant(Smooth(floor, layer))
