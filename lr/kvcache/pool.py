"""Block ids and their reference counts.

The memory of a paged KV cache is divided into `num_blocks` equal blocks. The refcount
of a block is the number of branches that hold it; a block with refcount 0 is free.
Forking a branch only adds one to the refcount of each of its blocks. Read next:
`branch.py`, one branch's list of blocks.

The free blocks are a stack: the block freed last is allocated first. So the same calls
always give the same ids, and dropping blocks in the reverse order of their allocation
restores the pool, including the order of future ids.

Worked example, `BlockPool(4)`::

    allocate(3) -> [0, 1, 2]       free stack (top last): [3]
    share(1)                       refcounts 1 2 1 0
    drop(1) -> False               refcounts 1 1 1 0
    drop(1) -> True                refcounts 1 0 1 0, free stack [3, 1]
    allocate(3) -> OutOfBlocks     3 needed, 2 free; nothing changed
    allocate(2) -> [1, 3]
"""

from lr.errors import OutOfBlocks


class BlockPool:
    """`num_blocks` block ids with their reference counts."""

    __slots__ = ("_free", "_refcounts", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._refcounts = [0] * num_blocks  # by block id
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: 0 is on top

    @property
    def num_free(self) -> int:
        """Blocks that no branch holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that at least one branch holds."""
        return self.num_blocks - len(self._free)

    def allocate(self, n: int) -> list[int]:
        """Take `n` free blocks, now with refcount 1. Raises `OutOfBlocks` before any
        change."""
        assert n >= 0
        if n > len(self._free):  # before any change
            raise OutOfBlocks(n, len(self._free), self.num_blocks)
        blocks = [self._free.pop() for _ in range(n)]
        for block in blocks:
            self._refcounts[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """Add an owner of `block`, which is not free."""
        assert self.refcount(block)
        self._refcounts[block] += 1

    def drop(self, block: int) -> bool:
        """Remove an owner of `block`; returns whether it became free."""
        assert self.refcount(block), "dropped more often than shared"
        self._refcounts[block] -= 1
        if self._refcounts[block]:  # others still hold it
            return False
        self._free.append(block)  # freed last, reused first
        return True

    def restart(self) -> None:
        """Allocate in ascending order from now on, like a new pool: the next run gets
        equal ids."""
        self._free.sort(reverse=True)

    def refcount(self, block: int) -> int:
        """How many branches hold `block` (0: it is free)."""
        assert 0 <= block < self.num_blocks
        return self._refcounts[block]
