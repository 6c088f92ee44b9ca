"""A branch: one sequence of tokens, and the blocks of the cache that hold its keys and
values.

A `BlockTable` is a list of block ids and a `length`. Position t (from 0) is in block
`blocks[t // block_size]` at offset `t % block_size`. Its *slot* is its number among all
positions of the cache: `block * block_size + offset`. Only the first `length` positions
are valid; the rest of the last block is stale and must be masked. A table holds no more
blocks than it needs, so `len(blocks) == blocks_for(length, block_size)` at all times.

Worked example with `block_size` 4 and `blocks = [7, 2]`, `length = 6`::

    position   0  1  2  3  |  4  5  (6)  (7)          the last two are room for two more tokens
    block      7  7  7  7  |  2  2   2    2
    slot      28 29 30 31  |  8  9  10   11

Tokens that are not in the cache yet are *uncomputed*; the runner computes them
(`engine/runner.py` has an example). Only the cache changes a table. Read next:
`cache.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

BLOCK_SIZE = 16  # tokens per block, by default


def blocks_for(length: int, block_size: int) -> int:
    """How many blocks hold `length` tokens: 0 for 0, 1 for 1 to `block_size`, and so
    on."""
    return -(-length // block_size)


@dataclass(eq=False, slots=True)
class BlockTable:
    """The blocks of a branch, in order of position. Compared and hashed by identity."""

    block_size: int
    blocks: list[int] = field(default_factory=list)
    length: int = 0

    @property
    def room(self) -> int:
        """How many more tokens fit into the table's blocks (0 to `block_size` - 1)."""
        return len(self.blocks) * self.block_size - self.length

    def slots(self, start: int, stop: int) -> list[int]:
        """The slots of positions start, ..., stop - 1; `slots(3, 6)` is `[31, 8, 9]`
        above."""
        assert 0 <= start <= stop <= self.length
        size = self.block_size
        blocks = self.blocks
        return [blocks[t // size] * size + t % size for t in range(start, stop)]


Tables = Sequence[BlockTable]


def block_rows(tables: Tables) -> list[list[int]]:
    """The blocks of several tables as a rectangle [b, nb], short rows filled up with
    their own last block, to be masked away: a free block may contain NaN, which no mask
    removes. Example: tables with blocks [7, 2] and [5] give [[7, 2], [5, 5]].
    """
    assert all(table.blocks for table in tables), "an empty table has nothing to read"
    longest = max(len(table.blocks) for table in tables)
    return [
        table.blocks + table.blocks[-1:] * (longest - len(table.blocks))
        for table in tables
    ]


@dataclass(eq=False, repr=False, slots=True)
class Branch:
    """A sequence of `tokens` (ids), and the `table` of the blocks that cache the first
    of them."""

    tokens: list[int]
    table: BlockTable

    @property
    def num_computed_tokens(self) -> int:
        """Number of tokens whose keys and values are in the cache."""
        return self.table.length

    @property
    def uncomputed(self) -> list[int]:
        """The tokens that the next `forward` computes."""
        return self.tokens[self.table.length :]

    def append(self, token: int) -> None:
        """Add one uncomputed token."""
        self.tokens.append(token)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add uncomputed tokens."""
        self.tokens.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        table = self.table
        return f"Branch(tokens={len(self)}, computed={table.length}, blocks={table.blocks})"


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common prefix, by bisection, since slices compare
    fast."""
    low = 0
    high = min(len(a), len(b))
    if a[:high] == b[:high]:  # the usual case, by one comparison
        return high
    while low < high:  # a[:low] == b[:low] and a[: high + 1] != b[: high + 1]
        middle = (low + high + 1) // 2  # at least low + 1
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class CacheObserver:
    """Called after every change of a cache's tables. This class does nothing;
    `engine/recorder.py` has one that records. The calls determine which table holds
    which block.

    `moved`: the tables that left a shared block; `copies`: for each, (that block, its
    copy). `num_new`: how many blocks each of `tables` got at its end.
    """

    def opened(self, table: BlockTable) -> None: ...
    def forked(self, table: BlockTable, source: BlockTable) -> None: ...
    def grew(
        self,
        tables: Tables,
        moved: Tables,
        copies: Sequence[tuple[int, int]],
        num_new: Sequence[int],
    ) -> None: ...
    def cut(self, table: BlockTable) -> None: ...
    def closed(self, table: BlockTable) -> None: ...

    def replaced(self, table: BlockTable, by: BlockTable) -> None:
        """The branch of `table` continues on `by`; `table` is about to be closed."""

    def tag(self, table: BlockTable, node: tuple[int, int, int]) -> None:
        """The branch of `table` holds the prefix of `node`."""
