"""Exercise: room for new tokens in a cache whose blocks are shared. Grade it with
`make grade EX=copy_on_write`.

You have a pool that counts the owners of each block (`lr/kvcache/pool.py`: `allocate`,
`drop`, `refcount`) and a table, one branch's list of blocks with its length
(`lr/kvcache/branch.py`: `blocks`, `length`, `block_size`, `room`, `slots`; `blocks_for`
says how many blocks a length needs).

New tokens go after the last valid one. So only the last block can be both shared and
written, and only if it has room left; it must be copied first. Whatever happens, no
other branch may notice.
"""

from __future__ import annotations

from lr.kvcache.branch import BlockTable
from lr.kvcache.pool import BlockPool


def append(
    pool: BlockPool, table: BlockTable, count: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Make room for `count` more tokens in `table`: its blocks and its length grow.

    Returns the slots of the new tokens, in order, and the copies (from block, to block)
    that have to be made before they are written. Copies no block without need. If the
    pool has too few blocks, `OutOfBlocks` is raised (`allocate` does that) and nothing
    has changed.

    Example, blocks of 4: blocks [0, 1], length 6, block 1 is shared. `append(pool,
    table, 3)` takes two blocks, say 2 and 3; afterwards blocks [0, 2, 3], length 9,
    slots [10, 11, 12], copies [(1, 2)], and block 1 has one owner less.
    """
    raise NotImplementedError(
        "write append in notebooks/exercises/copy_on_write.py: it returns (slots, copies)"
    )
