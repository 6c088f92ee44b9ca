"""Who holds which block: ids and reference counts, nothing else.

The memory of a paged KV cache is cut into `num_blocks` equal blocks. A block is free (refcount 0)
or held by as many branches as its refcount says; forking a branch only adds one to the refcount of
each of its blocks. Read next: `branch.py`, one branch's list of blocks.

The free blocks are a stack: the block that was freed last is handed out first. So the same calls
always give the same ids, and dropping blocks in the reverse order of their allocation leaves the
pool as it was before, the order of its future ids included.

Worked example, `BlockPool(4)`::

    allocate(3) -> [0, 1, 2]       free stack (top last): [3]
    share(1)                       refcounts 1 2 1 0
    drop(1) -> False               refcounts 1 1 1 0
    drop(1) -> True                refcounts 1 0 1 0, free stack [3, 1]
    allocate(3) -> OutOfBlocks     3 needed, 2 free; nothing changed
    allocate(2) -> [1, 3]
"""

from lr.errors import OutOfBlocks, ProtocolError
from lr.types import require


class BlockPool:
    """`num_blocks` block ids with their reference counts; raises `SettingError` below 1."""

    __slots__ = ("_free", "_refcounts", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        require(num_blocks >= 1, "num_blocks", num_blocks, "at least one block")
        self.num_blocks = num_blocks
        self._refcounts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that at least one branch holds."""
        return self.num_blocks - len(self._free)

    def allocate(self, n: int) -> list[int]:
        """The ids of `n` free blocks, now with refcount 1. Raises `OutOfBlocks` with no change."""
        require(n >= 0, "the number of blocks to allocate", n, "0 or more")
        if n > len(self._free):
            raise OutOfBlocks(n, len(self._free), self.num_blocks)
        taken = [self._free.pop() for _ in range(n)]
        for block in taken:
            self._refcounts[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Count one more owner of `block`; raises `ProtocolError` if nobody holds it yet."""
        self._held(block)
        self._refcounts[block] += 1

    def drop(self, block: int) -> bool:
        """Count one owner of `block` less. Whether it is free now; `ProtocolError` if it was."""
        self._held(block)
        self._refcounts[block] -= 1
        if self._refcounts[block]:
            return False
        self._free.append(block)
        return True

    def restart(self) -> None:
        """Hand free blocks out from the lowest on, as a new pool does: the next run is the same."""
        self._free.sort(reverse=True)

    def refcount(self, block: int) -> int:
        """How many branches hold `block` (0: it is free); `ProtocolError` for no such block."""
        if not 0 <= block < self.num_blocks:
            raise ProtocolError(f"there is no block {block}: 0 to {self.num_blocks - 1} are there.")
        return self._refcounts[block]

    def _held(self, block: int) -> None:
        if not self.refcount(block):
            raise ProtocolError(f"block {block} is free: it was dropped more often than shared.")
