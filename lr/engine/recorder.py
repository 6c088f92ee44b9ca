"""The events of a cache in a trace: branches are opened, forked, grown and closed, and
hold blocks.

The core loads this only for a run that records details (`lr/registry.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lr.kvcache.branch import BlockTable, CacheObserver
from lr.spec.protocol import NodeId
from lr.trace import Trace

if TYPE_CHECKING:
    from lr.kvcache.cache import PagedKVCache


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """An event of a branch. `cache`: the cache's name; `branch`: a number that is used
    once."""

    cache: str
    branch: int


@dataclass(frozen=True, slots=True)
class BranchOpened(CacheEvent):
    """An empty branch was opened."""


@dataclass(frozen=True, slots=True)
class BranchForked(CacheEvent):
    """`branch` shares all blocks of `source`; nothing is copied."""

    source: int


@dataclass(frozen=True, slots=True)
class BranchesGrew:
    """One forward appends to branches. `rows`: (branch, new length in tokens).
    `copies`: (branch, shared block, its copy), copy on write. `fresh`: (branch, new
    block at its end)."""

    cache: str
    rows: tuple[tuple[int, int], ...]
    copies: tuple[tuple[int, int, int], ...]
    fresh: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BranchCut(CacheEvent):
    """`branch` keeps its first `length` tokens and gives up the blocks `dropped`; those
    in `freed` had no other owner."""

    length: int
    dropped: tuple[int, ...]
    freed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BranchClosed(CacheEvent):
    """`branch` is closed; `dropped` and `freed` as in `BranchCut`."""

    dropped: tuple[int, ...]
    freed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BranchRestored(CacheEvent):
    """A forward failed, and `branch` got its old length and blocks back."""

    length: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BranchHolds(CacheEvent):
    """`branch` holds the prefix of `node` from now on."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class BranchReplaced(CacheEvent):
    """`successor` takes over the node of `branch`, which is about to be closed."""

    successor: int


class CacheRecorder(CacheObserver):
    """Records the events of a cache, as its observer (`kvcache/branch.py`), in `trace`
    under the name `cache`. Every branch gets a number.

    Example with blocks of 4 tokens: branch 0 reads a prompt of 6 tokens,
    `BranchesGrew(rows=((0, 6),), fresh=((0, 0), (0, 1)))`. Branch 1 is forked from it,
    and both write one token: `BranchesGrew(rows=((0, 7), (1, 7)), copies=((0, 1,
    2),))`. So branch 0 left block 1 to branch 1 and continues in its copy, block 2."""

    def __init__(self, trace: Trace, cache: str) -> None:
        self.trace, self.cache = trace, cache
        self._numbers: dict[BlockTable, int] = {}
        self._sizes: dict[BlockTable, int] = {}  # how many of its blocks are recorded
        self._nodes: dict[
            BlockTable, tuple[int, int, int]
        ] = {}  # the node whose prefix it holds
        self._count = 0

    def opened(self, table: BlockTable) -> None:
        self._number(table)
        self._tell(BranchOpened, table)

    def forked(self, table: BlockTable, source: BlockTable) -> None:
        self._number(table)
        self._tell(BranchForked, table, self._numbers[source])

    def grew(
        self,
        tables: Sequence[BlockTable],
        moved: Sequence[BlockTable],
        copies: Sequence[tuple[int, int]],
    ) -> None:
        numbers, sizes = self._numbers, self._sizes
        rows = tuple((numbers[t], t.length) for t in tables)
        copied = tuple(
            (numbers[t], *pair) for t, pair in zip(moved, copies, strict=True)
        )
        fresh = tuple(
            (numbers[t], block) for t in tables for block in t.blocks[sizes[t] :]
        )
        sizes |= {t: len(t.blocks) for t in tables}
        self.trace.record(BranchesGrew(self.cache, rows, copied, fresh))

    def restored(self, tables: Sequence[BlockTable]) -> None:
        for table in tables:
            self._sizes[table] = len(table.blocks)
            self._tell(BranchRestored, table, table.length, tuple(table.blocks))

    def cut(
        self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]
    ) -> None:
        self._sizes[table] = len(table.blocks)
        self._tell(BranchCut, table, table.length, tuple(dropped), tuple(freed))

    def closed(
        self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]
    ) -> None:
        self._tell(BranchClosed, table, tuple(dropped), tuple(freed))
        del self._sizes[table], self._numbers[table]
        self._nodes.pop(table, None)

    def replaced(self, table: BlockTable, successor: BlockTable) -> None:
        self._tell(BranchReplaced, table, self._numbers[successor])
        if table in self._nodes:
            self._nodes[successor] = self._nodes.pop(table)

    def tag(self, table: BlockTable, node: tuple[int, int, int]) -> None:
        self._tell(BranchHolds, table, NodeId(*node))
        self._nodes[table] = node

    def beside(
        self, cache: PagedKVCache, trace: Trace
    ) -> tuple[CacheRecorder, dict[BlockTable, BlockTable]]:
        """A recorder for a second side, with a fork of every table of this side. It is
        the cache's observer from now on. `trace`: a copy of this side's trace.

        Example: A holds tables a (blocks 0 1) and b (blocks 0 2). Then B holds a' (0 1)
        and b' (0 2), and the refcounts of blocks 0, 1, 2 are 4, 2, 2."""
        other = CacheRecorder(trace, self.cache)
        other._numbers, other._sizes = dict(self._numbers), dict(self._sizes)
        other._count = self._count
        cache.observer = other
        forks = {table: cache.fork(table) for table in list(self._numbers)}
        for table, fork in forks.items():
            if table in self._nodes:
                other.tag(fork, self._nodes[table])
        for table in forks:
            other.closed(table, tuple(table.blocks), ())
        return other, forks

    def _number(self, table: BlockTable) -> None:
        self._numbers[table], self._sizes[table] = self._count, len(table.blocks)
        self._count += 1

    def _tell(
        self, kind: Callable[..., CacheEvent], table: BlockTable, *what: Any
    ) -> None:
        self.trace.record(kind(self.cache, self._numbers[table], *what))
