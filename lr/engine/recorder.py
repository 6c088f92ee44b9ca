"""The events of a cache in a trace: branches are opened, forked, grown and closed, and
hold blocks.

An answer with a detailed trace has one recorder per cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lr.kvcache.branch import BlockTable, CacheObserver
from lr.spec.protocol import NodeId
from lr.trace import Trace


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
        self.trace = trace
        self.cache = cache
        self.numbers: dict[BlockTable, int] = {}
        self.sizes: dict[BlockTable, int] = {}  # how many of its blocks are recorded
        self.nodes: dict[BlockTable, tuple[int, int, int]] = {}  # whose prefix it holds
        self.count = 0  # of all branches so far

    def opened(self, table: BlockTable) -> None:
        self._number(table)
        self.trace.record(BranchOpened(self.cache, self.numbers[table]))

    def forked(self, table: BlockTable, source: BlockTable) -> None:
        self._number(table)
        number = self.numbers[table]
        self.trace.record(BranchForked(self.cache, number, self.numbers[source]))

    def _number(self, table: BlockTable) -> None:
        self.numbers[table] = self.count
        self.sizes[table] = len(table.blocks)
        self.count += 1

    def grew(
        self,
        tables: Sequence[BlockTable],
        moved: Sequence[BlockTable],
        copies: Sequence[tuple[int, int]],
    ) -> None:
        rows = [(self.numbers[table], table.length) for table in tables]
        copied = [
            (self.numbers[table], old, new)
            for table, (old, new) in zip(moved, copies, strict=True)
        ]
        fresh = [
            (self.numbers[table], block)
            for table in tables
            for block in table.blocks[self.sizes[table] :]
        ]
        for table in tables:
            self.sizes[table] = len(table.blocks)
        self.trace.record(
            BranchesGrew(self.cache, tuple(rows), tuple(copied), tuple(fresh))
        )

    def restored(self, tables: Sequence[BlockTable]) -> None:
        for table in tables:
            self.sizes[table] = len(table.blocks)
            number = self.numbers[table]
            blocks = tuple(table.blocks)
            event = BranchRestored(self.cache, number, table.length, blocks)
            self.trace.record(event)

    def cut(
        self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]
    ) -> None:
        self.sizes[table] = len(table.blocks)
        number = self.numbers[table]
        self.trace.record(
            BranchCut(self.cache, number, table.length, tuple(dropped), tuple(freed))
        )

    def closed(
        self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]
    ) -> None:
        number = self.numbers.pop(table)
        del self.sizes[table]
        self.nodes.pop(table, None)
        event = BranchClosed(self.cache, number, tuple(dropped), tuple(freed))
        self.trace.record(event)

    def replaced(self, table: BlockTable, successor: BlockTable) -> None:
        number = self.numbers[table]
        self.trace.record(BranchReplaced(self.cache, number, self.numbers[successor]))
        if table in self.nodes:
            self.nodes[successor] = self.nodes.pop(table)

    def tag(self, table: BlockTable, node: tuple[int, int, int]) -> None:
        self.nodes[table] = node
        self.trace.record(BranchHolds(self.cache, self.numbers[table], NodeId(*node)))
