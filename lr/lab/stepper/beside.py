"""The what-if in the cache: every branch of a side forked, so that a second side goes on from the
same blocks.

    recorder = SideRecorder(trace, "target")        # the cache's observer while side A works
    other, forks = recorder.beside(cache, copied)   # forks[table of A] = table of B; no forward, no block copied

Two sides share a cache, and each has a trace of its own: the cache is observed by the recorder of
the side that works. The trace of B goes on behind a copy of A's: B's branches are forked from A's,
and A's are closed *there*, since they are not B's business any more; their blocks stay A's. So each
trace adds up to the branches of its own side. Read next: `live.py`.
"""

from __future__ import annotations

from typing import Any

from lr.engine.runner import ModelRunner
from lr.engine.watching import CacheRecorder
from lr.kvcache.cache import PagedKVCache
from lr.kvcache.table import BlockTable
from lr.trace import ForwardPass, Trace
from lr.types import Role

NodeName = tuple[int, int, int]


class SideRecorder(CacheRecorder):
    """A `CacheRecorder` that knows its side's tables, and which node each belongs to."""

    def __init__(self, trace: Trace, cache: str) -> None:
        super().__init__(trace, cache)
        self.nodes: dict[BlockTable, NodeName] = {}

    def belongs(self, table: BlockTable, node: NodeName) -> None:
        super().belongs(table, node)
        self.nodes[table] = node

    def replaced(self, table: BlockTable, heir: BlockTable) -> None:
        super().replaced(table, heir)
        if table in self.nodes:
            self.nodes[heir] = self.nodes.pop(table)

    def closed(self, table: BlockTable, dropped: Any, freed: Any) -> None:
        super().closed(table, dropped, freed)
        self.nodes.pop(table, None)

    def beside(
        self, cache: PagedKVCache, trace: Trace
    ) -> tuple[SideRecorder, dict[BlockTable, BlockTable]]:
        """A recorder for a second side with a fork of every table of this one. `trace`: a copy of
        this side's trace.

        Afterwards the new recorder observes the cache. Example: A holds tables a (blocks 0 1) and b
        (blocks 0 2); B then holds a' (0 1) and b' (0 2), and the refcounts of blocks 0, 1, 2 are 4,
        2, 2.
        """
        other = SideRecorder(trace, self.cache)
        other._numbers, other._sizes, other._count = (
            dict(self._numbers),
            dict(self._sizes),
            self._count,
        )
        cache.observer = other
        ours = list(self._numbers)
        forks = {table: cache.fork(table) for table in ours}
        for table, fork in forks.items():
            if table in self.nodes:
                other.belongs(fork, self.nodes[table])
        for table in ours:
            other.closed(table, tuple(table.blocks), ())
        return other, forks


class Seat:
    """A model's place at a side: its runner, which both sides use, and where what it does is
    written while this side works.
    """

    def __init__(self, runner: ModelRunner, role: Role, recorder: SideRecorder) -> None:
        self.runner, self.role, self.recorder = runner, role, recorder

    def take(self) -> None:
        """From now on this side works."""
        self.runner.observer = self._saw
        self.runner.cache.observer = self.recorder

    def _saw(self, branches: int, tokens: int, seconds: float) -> None:
        self.recorder.trace.record(ForwardPass(self.role, branches, tokens, seconds))
