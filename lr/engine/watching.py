"""What happens to a cache, as events of a trace: every branch gets a number, every change of its
blocks a line.

    cache.observer = CacheRecorder(trace, "target")

Example with blocks of 4 tokens: branch 0 reads a prompt of 6 tokens, `BranchesGrew(rows=((0, 6),),
fresh=((0, 0), (0, 1)))`; branch 1 is forked from it; both write one token, the longer of equals
stays: `BranchesGrew(rows=((0, 7), (1, 7)), copies=((0, 1, 2),))`: branch 0 left block 1, which 1
holds, for its copy, block 2. Knows no tensor. Read next: `lab/trace/state.py`, which makes the
picture of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lr.kvcache.table import BlockTable
from lr.spec.protocol import NodeId
from lr.trace import (
    BranchClosed,
    BranchCut,
    BranchesGrew,
    BranchForked,
    BranchHolds,
    BranchOpened,
    BranchReplaced,
    BranchRestored,
    Trace,
)


class CacheRecorder:
    """Writes what a cache tells (`kvcache/watch.py`) into `trace`, under the name `cache`."""

    def __init__(self, trace: Trace, cache: str) -> None:
        self.trace, self.cache = trace, cache
        self._numbers: dict[BlockTable, int] = {}
        self._sizes: dict[BlockTable, int] = {}  # how many blocks of it are told
        self._count = 0

    def opened(self, table: BlockTable) -> None:
        self.trace.record(BranchOpened(self.cache, self._new(table)))

    def forked(self, table: BlockTable, source: BlockTable) -> None:
        self.trace.record(BranchForked(self.cache, self._new(table), self._numbers[source]))

    def grew(
        self,
        tables: Sequence[BlockTable],
        moved: Sequence[BlockTable],
        copies: Sequence[tuple[int, int]],
    ) -> None:
        numbers, sizes = self._numbers, self._sizes
        fresh: list[tuple[int, int]] = []
        for table in tables:
            known = sizes[table]
            if len(table.blocks) > known:
                fresh += ((numbers[table], block) for block in table.blocks[known:])
                sizes[table] = len(table.blocks)
        rows = tuple((numbers[table], table.length) for table in tables)
        copied = tuple((numbers[t], *pair) for t, pair in zip(moved, copies, strict=True))
        self.trace.record(BranchesGrew(self.cache, rows, copied, tuple(fresh)))

    def restored(self, tables: Sequence[BlockTable]) -> None:
        for table in tables:
            self._sizes[table] = len(table.blocks)
            blocks = tuple(table.blocks)
            self.trace.record(
                BranchRestored(self.cache, self._numbers[table], table.length, blocks)
            )

    def cut(self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]) -> None:
        self._sizes[table] = len(table.blocks)
        number = self._numbers[table]
        self.trace.record(BranchCut(self.cache, number, table.length, tuple(dropped), tuple(freed)))

    def closed(self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]) -> None:
        del self._sizes[table]
        number = self._numbers.pop(table)
        self.trace.record(BranchClosed(self.cache, number, tuple(dropped), tuple(freed)))

    def replaced(self, table: BlockTable, heir: BlockTable) -> None:
        self.trace.record(BranchReplaced(self.cache, self._numbers[table], self._numbers[heir]))

    def belongs(self, table: BlockTable, node: tuple[int, int, int]) -> None:
        self.trace.record(BranchHolds(self.cache, self._numbers[table], NodeId(*node)))

    def _new(self, table: BlockTable) -> int:
        number = self._numbers[table] = self._count
        self._sizes[table] = len(table.blocks)
        self._count += 1
        return number
