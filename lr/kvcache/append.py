"""Growing many branches at once, whole or not at all.

`with cache.append(tables, counts) as slots:` makes room for `counts[i]` more tokens in `tables[i]`,
for the whole batch. Four steps, in this order, so that a failure at any of them leaves no trace:

1. *Plan*: count the new blocks, copies included, without touching anything.
2. *Allocate* all of them in one call, which succeeds whole or raises `OutOfBlocks`.
3. *Prepare* the memory: zero the new blocks, copy the shared ones. Only this touches tensors.
4. *Apply*: tables get their blocks and new lengths. From here on an exception in the body of the
   `with` undoes step 4 and 2: blocks, refcounts, lengths and even the order of future block ids are
   as before.

**Copy on write.** New tokens go after the last valid one, so only a partly filled last block can
be both shared and written; it is copied first. If all holders of a block write into it in the same
batch, the last of them need not copy: the others have left. That one must be the *longest* of them:
a shorter one would overwrite tokens which the longer ones need again when the batch is undone.
Worked example with `block_size` 4, block 5 held by A and B, one token appended to each::

    A blocks [5] length 3        A is longer and stays in block 5    slot 5*4 + 3 = 23
    B blocks [5] length 1        B gets a copy, block 6              slot 6*4 + 1 = 25
    slots = [23, 25], copies = [(5, 6)]

Read next: `cache.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from lr.errors import ProtocolError
from lr.kvcache.table import BlockTable, blocks_for

if TYPE_CHECKING:
    from lr.kvcache.cache import PagedKVCache


Tables = Sequence[BlockTable]


class CacheObserver:
    """Is told of every change of a cache's tables, after it has happened; this one does nothing,
    that of `lab/trace/cache.py` records. Who holds which block follows from these calls.

    `moved`: the tables that left a shared block; `copies`: for each, (that block, its copy).
    `dropped`: blocks that a table gave up; `freed`: those of them that nobody holds any more.
    """

    def opened(self, table: BlockTable) -> None: ...
    def forked(self, table: BlockTable, source: BlockTable) -> None: ...
    def grew(self, tables: Tables, moved: Tables, copies: Sequence[tuple[int, int]]) -> None: ...
    def cut(self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]) -> None: ...
    def closed(self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]) -> None: ...

    def restored(self, tables: Tables) -> None:
        """The batch that grew has failed: its tables are as they were before."""

    def replaced(self, table: BlockTable, heir: BlockTable) -> None:
        """The branch on `table` goes on, on `heir`; `table` is about to be closed."""

    def tag(self, table: BlockTable, node: tuple[int, int, int]) -> None:
        """A branch holds the prefix of this node."""


@contextmanager
def growth(cache: PagedKVCache, tables: Tables, counts: Sequence[int]) -> Iterator[list[int]]:
    """See `PagedKVCache.append`. Inside the `with` the lengths are the new ones already."""
    cache.require_changeable(*tables)
    if len(tables) != len(counts):
        raise ProtocolError(f"{len(tables)} tables were given with {len(counts)} counts.")
    if len(tables) > 1 and len(set(tables)) != len(tables):
        raise ProtocolError("a table comes twice in one batch; add up its counts, or fork it.")
    if counts and min(counts) < 0:
        raise ProtocolError(f"{min(counts)} tokens cannot be appended; truncate shortens.")
    more, shared = [], []  # new blocks of each table; those that write into a shared one
    for table, count in zip(tables, counts, strict=True):
        more.append(blocks_for(table.length + count, table.block_size) - len(table.blocks))
        if count and table.room and cache.pool.refcount(table.blocks[-1]) > 1:
            shared.append(table)
    moved = _leaving(cache, shared) if shared else []
    taken = cache.pool.allocate(len(moved) + sum(more))
    copies = [(t.blocks[-1], new) for t, new in zip(moved, taken, strict=False)]
    fresh = taken[len(moved) :]
    try:
        if taken:
            cache.prepare(fresh, copies)
    except BaseException:
        cache.drop_blocks(taken[::-1])
        raise

    for table, (_, block) in zip(moved, copies, strict=True):
        table.blocks[-1] = block
    if copies:
        cache.drop_blocks([source for source, _ in copies])
    free, slots = iter(fresh), list[int]()
    for table, count, needed in zip(tables, counts, more, strict=True):
        if needed:
            table.blocks += islice(free, needed)
        table.length += count
        slots += table.slots(table.length - count, table.length)
    cache.open_append = copies
    cache.observer.grew(tables, moved, copies)
    try:
        yield slots
    except BaseException:
        # shorten the tables, give shared blocks back to those who left, free what was taken
        for table, count in zip(tables, counts, strict=True):
            table.length -= count
            del table.blocks[blocks_for(table.length, table.block_size) :]
        for table, (source, _) in zip(moved, copies, strict=True):
            table.blocks[-1] = source
            cache.pool.share(source)
        cache.drop_blocks(taken[::-1])
        cache.observer.restored(tables)
        raise
    finally:
        cache.open_append = None


def _leaving(cache: PagedKVCache, shared: Tables) -> list[BlockTable]:
    """Those of the tables that write into a shared block which must copy it: all but the longest,
    where all holders of a block write into it.
    """
    moved, leaving = list[BlockTable](), Counter[int]()
    for table in sorted(shared, key=lambda table: table.length):
        leaving[table.blocks[-1]] += 1
        if leaving[table.blocks[-1]] < cache.pool.refcount(table.blocks[-1]):
            moved.append(table)
    return moved
