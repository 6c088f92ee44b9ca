"""One branch's blocks: where in the cache the key and value of each of its tokens stand.

A `BlockTable` is a list of block ids and a `length`. Position t (counted from 0) stands in block
`blocks[t // block_size]` at offset `t % block_size`; its *slot* numbers all places of the cache in
a row: `block * block_size + offset`. `length` alone says how many positions are valid; what stands
after it in the last block is stale and must be masked. A table never holds a block that it does
not need, so at all times `len(blocks) == blocks_for(length, block_size)`.

Worked example with `block_size` 4 and `blocks = [7, 2]`, `length = 6`::

    position   0  1  2  3  |  4  5  (6)  (7)          the last two are room for two more tokens
    block      7  7  7  7  |  2  2   2    2
    slot      28 29 30 31  |  8  9  10   11

A table is changed by its cache only. Read next: `cache.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lr.errors import ProtocolError

BLOCK_SIZE = 16
"""Tokens of a block, where nobody asks for another size."""


def blocks_for(length: int, block_size: int) -> int:
    """How many blocks hold `length` tokens: 0 for 0, 1 for 1 to `block_size`, ..."""
    return -(-length // block_size)


@dataclass(eq=False, slots=True)
class BlockTable:
    """The blocks of a branch, in the order of its positions; compared and hashed by identity."""

    block_size: int
    blocks: list[int] = field(default_factory=list)
    length: int = 0

    @property
    def room(self) -> int:
        """How many more tokens fit into the blocks that the table holds (0 to `block_size` - 1)."""
        return len(self.blocks) * self.block_size - self.length

    def slots(self, start: int, stop: int) -> list[int]:
        """The slots of the positions start, ..., stop - 1; `slots(3, 6)` is `[31, 8, 9]` above.
        Raises `ProtocolError` unless 0 <= start <= stop <= length.
        """
        if not 0 <= start <= stop <= self.length:
            raise ProtocolError(f"positions {start} to {stop}: this branch has {self.length}.")
        size, found = self.block_size, list[int]()
        for index in range(start // size, blocks_for(stop, size)):
            shift = (self.blocks[index] - index) * size  # slot minus position within this block
            found += range(max(start, index * size) + shift, min(stop, (index + 1) * size) + shift)
        return found


def block_rows(tables: Sequence[BlockTable]) -> list[list[int]]:
    """The blocks of several tables as a rectangle [b, longest], short rows filled up with their own
    last block, to be masked away: a free block may contain NaN, which no mask removes. Example:
    tables with blocks [7, 2] and [5] give [[7, 2], [5, 5]]. `ProtocolError` if a table is empty.
    """
    longest = max((len(table.blocks) for table in tables), default=0)
    if not all(table.blocks for table in tables):
        raise ProtocolError("a branch without tokens has no blocks to read; append to it first.")
    return [table.blocks + table.blocks[-1:] * (longest - len(table.blocks)) for table in tables]
