"""The events of tokens, draws and cache blocks: the finest grain of a trace, recorded only where
`Trace.detailed` is set.

A *branch* of the cache is named by a number that is given once per cache and never again;
`BranchHolds` says which node it belongs to. The picture "who holds which block" follows from these
events alone: see `state.py`. Read first: `events.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.tracing.events import Node
from lr.types import Role


@dataclass(frozen=True, slots=True)
class TokenWritten:
    """A model wrote one token that nobody had guessed: number `offset` of step `index`, drawn with
    `key`; `p`: its probability.
    """

    role: Role
    node: Node | None
    index: int
    offset: int
    token: int
    p: float
    key: int


@dataclass(frozen=True, slots=True)
class Draw:
    """A number was drawn: by which `key`, what for, for which node, and what came of it."""

    purpose: str
    node: Node | None
    key: int
    value: float


@dataclass(frozen=True, slots=True)
class BranchOpened:
    """An empty branch in the cache of that name."""

    cache: str
    branch: int


@dataclass(frozen=True, slots=True)
class BranchForked:
    """`branch` shares all blocks of `source`; nothing is copied."""

    cache: str
    branch: int
    source: int


@dataclass(frozen=True, slots=True)
class BranchesGrew:
    """One forward appends to several branches. `rows`: (branch, its new length in tokens).
    `copies`: (branch, block, block), the branch left the first block, which others hold, for a copy
    of it. `fresh`: (branch, block), new blocks behind the others.
    """

    cache: str
    rows: tuple[tuple[int, int], ...]
    copies: tuple[tuple[int, int, int], ...]
    fresh: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BranchCut:
    """`branch` keeps its first `length` tokens and gives up the blocks `dropped`, of which nobody
    else held those in `freed`.
    """

    cache: str
    branch: int
    length: int
    dropped: tuple[int, ...]
    freed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BranchClosed:
    """`branch` is gone, and its blocks as in `BranchCut`."""

    cache: str
    branch: int
    dropped: tuple[int, ...]
    freed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BranchRestored:
    """A forward failed, and `branch` is again as it was before: its length and all its blocks."""

    cache: str
    branch: int
    length: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BranchHolds:
    """`branch` belongs to `node` from now on: it holds the node's prefix."""

    cache: str
    branch: int
    node: Node


@dataclass(frozen=True, slots=True)
class BranchReplaced:
    """What `branch` was, `heir` is from now on, its node included; `branch` is about to be
    closed.
    """

    cache: str
    branch: int
    heir: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event. `done`: the chain came to its end; else `why` says what ended it."""

    done: bool
    why: str = ""
