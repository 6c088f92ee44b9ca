"""The events of a cache in a trace: branches are forked, grown, cut and closed, and hold
blocks.

An answer with a detailed trace has one recorder per cache."""

from collections.abc import Sequence
from dataclasses import dataclass

from lr.kvcache.branch import BlockTable, CacheObserver
from lr.spec.protocol import NodeId
from lr.trace import Trace


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """An event of the cache of that name. A branch has a number that is used once."""

    cache: str


@dataclass(frozen=True, slots=True)
class BranchForked(CacheEvent):
    """`branch` shares all blocks of `source`; nothing is copied."""

    branch: int
    source: int


@dataclass(frozen=True, slots=True)
class BranchesGrew(CacheEvent):
    """One forward has appended to branches. `rows`: (branch, new length in tokens).
    `copies`: (branch, shared block, its copy), copy on write. `fresh`: (branch, new
    block at its end)."""

    rows: tuple[tuple[int, int], ...]
    copies: tuple[tuple[int, int, int], ...]
    fresh: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BranchCut(CacheEvent):
    """`branch` keeps its first `length` tokens, and the blocks that they need."""

    branch: int
    length: int


@dataclass(frozen=True, slots=True)
class BranchClosed(CacheEvent):
    """`branch` gives up all its blocks."""

    branch: int


@dataclass(frozen=True, slots=True)
class BranchHolds(CacheEvent):
    """`branch` holds the prefix of `node` from now on."""

    branch: int
    node: NodeId


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
        self.numbers: dict[BlockTable, int] = {}  # of live branches
        self.nodes: dict[BlockTable, tuple[int, int, int]] = {}  # whose prefix it holds
        self.count = 0  # of all branches so far

    def opened(self, table: BlockTable) -> None:
        self.numbers[table] = self.count
        self.count += 1

    def forked(self, table: BlockTable, source: BlockTable) -> None:
        self.opened(table)
        number = self.numbers[table]
        self.trace.record(BranchForked(self.cache, number, self.numbers[source]))

    def grew(
        self,
        tables: Sequence[BlockTable],
        moved: Sequence[BlockTable],
        copies: Sequence[tuple[int, int]],
        num_new: Sequence[int],
    ) -> None:
        rows = [(self.numbers[table], table.length) for table in tables]
        copied = [
            (self.numbers[table], old, new)
            for table, (old, new) in zip(moved, copies, strict=True)
        ]
        fresh = [
            (self.numbers[table], block)
            for table, count in zip(tables, num_new, strict=True)
            for block in table.blocks[len(table.blocks) - count :]
        ]
        self.trace.record(
            BranchesGrew(self.cache, tuple(rows), tuple(copied), tuple(fresh))
        )

    def cut(self, table: BlockTable) -> None:
        self.trace.record(BranchCut(self.cache, self.numbers[table], table.length))

    def closed(self, table: BlockTable) -> None:
        self.nodes.pop(table, None)
        self.trace.record(BranchClosed(self.cache, self.numbers.pop(table)))

    def replaced(self, table: BlockTable, successor: BlockTable) -> None:
        if table in self.nodes:
            self.tag(successor, self.nodes.pop(table))

    def tag(self, table: BlockTable, node: tuple[int, int, int]) -> None:
        self.nodes[table] = node
        self.trace.record(BranchHolds(self.cache, self.numbers[table], NodeId(*node)))
