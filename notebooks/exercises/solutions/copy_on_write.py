"""The reference solution of copy_on_write.py. `PagedKVCache.append` does it for many
branches at once, and can be undone.
"""

from __future__ import annotations

from lr.kvcache.branch import BlockTable, blocks_for
from lr.kvcache.pool import BlockPool


def append(
    pool: BlockPool, table: BlockTable, count: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Count first, take all blocks in one call, and change the table only then."""
    start = table.length
    end = start + count
    more = blocks_for(end, table.block_size) - len(table.blocks)
    must_copy = count > 0 and table.room > 0 and pool.refcount(table.blocks[-1]) > 1
    taken = pool.allocate(more + must_copy)
    copies = []
    if must_copy:
        old, new = table.blocks[-1], taken.pop(0)
        table.blocks[-1] = new
        pool.drop(old)
        copies.append((old, new))
    table.blocks += taken
    table.length = end
    return table.slots(start, end), copies
