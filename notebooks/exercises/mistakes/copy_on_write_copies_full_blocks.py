"""Whatever is shared is copied, also a full block, into which nobody will ever
write."""

from __future__ import annotations

from lr.kvcache.branch import BlockTable, blocks_for
from lr.kvcache.pool import BlockPool


def append(
    pool: BlockPool, table: BlockTable, count: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Wrong, though every text is right: it takes blocks and time without need."""
    start, copies = table.length, []
    shared = bool(table.blocks) and pool.refcount(table.blocks[-1]) > 1
    taken = pool.allocate(
        blocks_for(start + count, table.block_size) - len(table.blocks) + shared
    )
    if shared:
        copies.append((table.blocks[-1], taken[0]))
        pool.drop(table.blocks[-1])
        table.blocks[-1] = taken.pop(0)
    table.blocks += taken
    table.length += count
    return table.slots(start, table.length), copies
