"""Keyed randomness: a draw is a pure function of a key, not of a global, a clock or call order.

A `Stream` is a path of names and numbers, for example (seed, problem, sample, "target", step
index). `stream.key(number)` folds the path and a number into 64 bits, from which a token or a
uniform number is drawn. Equal keys draw equal numbers: that is how plain decoding and Lookahead
Reasoning come to emit the same tokens, and how a draft may share the target's noise on purpose.
`spec/sampling.py` has `mix64` for tensors, over a whole vocabulary.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX1, MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix64(x: int) -> int:
    """A bijective hash of 64 bits: SplitMix64's last step (Steele, Lea and Flood, OOPSLA 2014)."""
    x &= MASK64
    x = ((x ^ (x >> 30)) * MIX1) & MASK64
    x = ((x ^ (x >> 27)) * MIX2) & MASK64
    return x ^ (x >> 31)


@lru_cache(maxsize=1024)
def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _absorb(state: int, part: int | str) -> int:
    """Fold one part of a path into the state. Numbers of any size, signs and names all differ."""
    if isinstance(part, str):
        word = _hash(part) ^ 1
    else:
        word = mix64(part + MIX1)
        if part >> 63 not in (0, -1):  # more than 64 bits: the rest must count too
            word ^= _hash(str(part))
    return mix64(mix64(state + GOLDEN) ^ word)


@dataclass(frozen=True)
class Stream:
    """A named source of draws, immutable: `fold_in` gives a new stream, `key` a 64-bit key."""

    state: int

    @classmethod
    def root(cls, seed: int) -> Stream:
        return cls(_absorb(0, seed))

    def fold_in(self, *parts: int | str) -> Stream:
        """The stream below this one named by `parts`, in order."""
        state = self.state
        for part in parts:
            state = _absorb(state, part)
        return Stream(state)

    def key(self, number: int) -> int:
        """The 64 bits that belong to draw `number` of this stream."""
        return _absorb(self.state, number)


def uniform(key: int) -> float:
    """The number in [0, 1) that belongs to `key`, with 53 random bits."""
    return float(mix64(key ^ GOLDEN) >> 11) * 2.0**-53
