"""First the copy, then one block after the other. If the pool runs dry in the middle,
the branch is left in pieces.
"""

from __future__ import annotations

from lr.kvcache.branch import BlockTable
from lr.kvcache.pool import BlockPool


def append(
    pool: BlockPool, table: BlockTable, count: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Wrong only where it fails."""
    start, copies = table.length, []
    if count and table.room and pool.refcount(table.blocks[-1]) > 1:
        old, new = table.blocks[-1], pool.allocate(1)[0]
        table.blocks[-1] = new
        pool.drop(old)
        copies.append((old, new))
    while table.room < count:
        table.blocks += pool.allocate(1)
    table.length += count
    return table.slots(start, table.length), copies
