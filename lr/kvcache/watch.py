"""Who looks on: a cache tells its observer of every change of a table, after it has happened. For
traces and pictures.

Nothing is decided by an observer, and without one (the rule) nothing is told. The calls are few on
purpose; all that can be known of who holds which block follows from them. Read next:
`engine/runners.py`, which writes them into a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lr.kvcache.table import BlockTable


class CacheObserver(Protocol):
    """Hears what happens to the tables of one cache."""

    def opened(self, table: BlockTable) -> None:
        """A new table, empty."""
        ...

    def forked(self, table: BlockTable, source: BlockTable) -> None:
        """A new table that shares all blocks of `source`."""
        ...

    def grew(
        self,
        tables: Sequence[BlockTable],
        moved: Sequence[BlockTable],
        copies: Sequence[tuple[int, int]],
    ) -> None:
        """A batch got its room: blocks and lengths are the new ones already; the keys and values
        are not written yet.

        `moved`: the tables that left a shared block, and `copies`, for each, (that block, its
        copy).
        """
        ...

    def restored(self, tables: Sequence[BlockTable]) -> None:
        """The same batch failed: its tables are as they were before."""
        ...

    def cut(self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]) -> None:
        """A table was shortened: blocks it dropped, and those of them that are free now."""
        ...

    def closed(self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]) -> None:
        """A table is gone, and its blocks as in `cut`."""
        ...

    def replaced(self, table: BlockTable, heir: BlockTable) -> None:
        """The branch on `table` goes on, on `heir`; `table` is about to be closed."""
        ...

    def belongs(self, table: BlockTable, node: tuple[int, int, int]) -> None:
        """A branch holds the prefix of this node."""
        ...
