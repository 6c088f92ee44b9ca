"""The random verifier: accepts with probability rho, whatever the steps say. The control that every
other verifier must beat.

The paper's Table 2 has it as "Random" (arXiv 2506.19830, section 4): it shows how much of a
verifier's acceptance is knowledge. The coin is keyed by the prefix, the draft step and the seed:
asked twice about the same draft it says the same, in any order and batch.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from lr.rng import Stream, uniform
from lr.spec.verifiers.base import Need, Pair
from lr.types import Verdict, require


class RandomVerifier:
    """Accepts a draft step with probability `rho`: 1 always, 0 never.

    The coin does not look at the target's step. It asks for one all the same by default, because as
    a control it stands in the place of a verifier that compares, in the same schedule;
    `need=Need.NOTHING` says otherwise.
    """

    def __init__(self, rho: float, seed: int = 0, *, need: Need = Need.TARGET_STEP) -> None:
        require(0 <= rho <= 1, "rho", rho, "a probability, 0 to 1")
        self.name = f"random:{rho:g}"
        self.need = need
        self.rho = rho
        self.stream = Stream.root(seed).child("random verifier")

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        coins = [uniform(self.stream.key(_fingerprint(pair))) for pair in pairs]
        return [
            Verdict(coin < self.rho, why=f"a coin of {self.rho:g} fell on {coin:.3f}")
            for coin in coins
        ]


def _fingerprint(pair: Pair) -> int:
    """63 bits of the draft step and of all that came before it. The lengths count: tokens cannot
    move from one to the other.
    """
    content = array("q", (len(pair.prefix), *pair.prefix, *pair.draft.tokens)).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1
