"""The last block is copied whenever it has room, shared or not. Nobody is hurt, and
every token costs a copy.
"""

from __future__ import annotations

from lr.kvcache.branch import BlockTable, blocks_for
from lr.kvcache.pool import BlockPool


def append(
    pool: BlockPool, table: BlockTable, count: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Wrong: a block of one's own need not be copied."""
    start, copies = table.length, []
    must_copy = count > 0 and table.room > 0
    taken = pool.allocate(
        blocks_for(start + count, table.block_size) - len(table.blocks) + must_copy
    )
    if must_copy:
        old = table.blocks[-1]
        copies.append((old, taken[0]))
        table.blocks[-1] = taken.pop(0)
        pool.drop(old)
    table.blocks += taken
    table.length += count
    return table.slots(start, table.length), copies
