"""The block is copied, but the old one still counts this branch as an owner. It will
never be free again.
"""

from __future__ import annotations

from lr.kvcache.branch import BlockTable, blocks_for
from lr.kvcache.pool import BlockPool


def append(
    pool: BlockPool, table: BlockTable, count: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Wrong: a leak."""
    start, copies = table.length, []
    must_copy = count > 0 and table.room > 0 and pool.refcount(table.blocks[-1]) > 1
    taken = pool.allocate(
        blocks_for(start + count, table.block_size) - len(table.blocks) + must_copy
    )
    if must_copy:
        copies.append((table.blocks[-1], taken[0]))
        table.blocks[-1] = taken.pop(0)
    table.blocks += taken
    table.length += count
    return table.slots(start, table.length), copies
