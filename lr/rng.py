"""Keyed randomness: a draw is a pure function of a key, not of globals, the clock or
call order.

A `Stream` is a path of names and numbers, for example (seed, problem, sample, "target",
step index). `stream.key(number)` hashes the path and a number to 64 bits, which
determine a token or a uniform number. Equal keys give equal draws. This is why plain
decoding and Lookahead Reasoning can emit the same tokens, and how a draft can share the
target's noise on purpose. `spec/sampling.py` applies `mix64` to tensors, over a whole
vocabulary.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX1, MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix64(x: int) -> int:
    """A bijective 64-bit hash: the last step of SplitMix64 (Steele, Lea and Flood,
    OOPSLA 2014)."""
    x &= MASK64
    x = ((x ^ (x >> 30)) * MIX1) & MASK64
    x = ((x ^ (x >> 27)) * MIX2) & MASK64
    return x ^ (x >> 31)


@lru_cache(maxsize=1024)
def _hash(text: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"
    )


def _absorb(state: int, part: int | str) -> int:
    """Hash one part of a path into the state. Names and numbers of any size and sign
    all differ."""
    if isinstance(part, str):
        word = _hash(part) ^ 1
    else:
        word = mix64(part + MIX1)
        if part >> 63 not in (
            0,
            -1,
        ):  # `mix64` reads 64 bits; the others must count too
            word ^= _hash(str(part))
    return mix64(mix64(state + GOLDEN) ^ word)


@dataclass(frozen=True)
class Stream:
    """A named, immutable source of random draws."""

    state: int

    @classmethod
    def root(cls, seed: int) -> Stream:
        return cls(_absorb(0, seed))

    def fold_in(self, *parts: int | str) -> Stream:
        """The stream whose path is this one's, extended by `parts`."""
        state = self.state
        for part in parts:
            state = _absorb(state, part)
        return Stream(state)

    def key(self, number: int) -> int:
        """The 64-bit key of draw `number` of this stream."""
        return _absorb(self.state, number)


def uniform(key: int) -> float:
    """The uniform number in [0, 1) that belongs to `key`, with 53 random bits."""
    # GOLDEN: not the bits of a token's draw
    return float(mix64(key ^ GOLDEN) >> 11) * 2.0**-53
