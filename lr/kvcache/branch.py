"""A branch: one sequence of tokens, and the blocks of the cache that hold its keys and values.

Tokens that are not in the cache yet are *pending*. The runner computes what is pending (an example
is in `engine/runner.py`); nothing else changes the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lr.kvcache.table import BlockTable


@dataclass(eq=False, repr=False, slots=True)
class Branch:
    """`tokens`: the ids of the sequence; `table`: where the first ones' keys and values are."""

    tokens: list[int]
    table: BlockTable

    @property
    def num_computed_tokens(self) -> int:
        """Number of tokens whose keys and values are in the cache."""
        return self.table.length

    @property
    def pending(self) -> list[int]:
        """The tokens that the next `forward` will push."""
        return self.tokens[self.table.length :]

    def append(self, token: int) -> None:
        """Add one pending token."""
        self.tokens.append(token)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add pending tokens."""
        self.tokens.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        table = self.table
        return f"Branch(tokens={len(self)}, computed={table.length}, blocks={table.blocks})"


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first tokens two lists share, by bisection: slices compare fast."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:  # a[:low] == b[:low] and a[: high + 1] != b[: high + 1]
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
