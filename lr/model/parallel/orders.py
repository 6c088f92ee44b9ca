"""What the leader can tell its followers, and what they can answer: plain data that survives
pickling.

One message is a list of orders, carried out in their sequence. `Feed` and `Logits` are the only
ones in which ranks meet. Numbers of models and caches are given out by the leader. Read next:
`leader.py`, `follower.py`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import torch

from lr.model.attention import AttentionBackend


@dataclass(frozen=True)
class Join:
    """The first order: who you are, where the others are met, and on what you run. `device` None: a
    GPU by the local rank, or the CPU.
    """

    rank: int
    size: int
    address: str
    port: int
    cuda: bool
    device: str | None
    threads: int
    seconds: float


@dataclass(frozen=True)
class Load:
    """Load your part of a checkpoint."""

    model: int
    source: str
    dtype: torch.dtype | None


@dataclass(frozen=True)
class NewCache:
    """Make a cache for a model."""

    model: int
    cache: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True)
class DropCache:
    """Nobody uses a cache any more."""

    cache: int


@dataclass(frozen=True)
class Prepare:
    """Zero the blocks `fresh` of a cache, then copy block a to block b for each (a, b) of `copies`:
    growth and copy on write.
    """

    cache: int
    fresh: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Feed:
    """One forward of a ragged batch up to the hidden states; the fields are those of `RaggedBatch`,
    `blocks` those of its tables.

    `backend` is a kind of attention by its name, which a follower chooses for itself (it may have
    to make its PyTorch use it), or a function.
    """

    model: int
    cache: int
    tokens: list[int]
    slots: list[int]
    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    blocks: list[array[int]]
    logit_rows: list[int] | None
    backend: str | AttentionBackend


@dataclass(frozen=True)
class Stop:
    """The end."""


Order = Join | Load | NewCache | DropCache | Prepare | Feed | Stop


@dataclass(frozen=True)
class Hello:
    """A follower has started and is about to meet the others."""

    pid: int
    host: str


@dataclass(frozen=True)
class Ready:
    """A model is loaded."""

    model: int


@dataclass(frozen=True)
class Failed:
    """A follower ends. `lost`: only because another rank is gone."""

    reason: str
    lost: bool


Reply = Hello | Ready | Failed | None
"""None: a sign of life."""
