"""A branch: one sequence of tokens and its blocks. What every runner hands out and every algorithm
speaks about.

Tokens of the list that are not in the cache yet are *pending*. Example: 10 tokens, all cached;
append 3: `cached` is 10, `pending` the last 3. The runner pushes what is pending through its model;
nobody else changes the table.
"""

from __future__ import annotations

from collections.abc import Iterable

from lr.kvcache.table import BlockTable


class Branch:
    """One sequence of a runner: `tokens` are its ids, `table` says where the first `cached` of them
    have their K/V.
    """

    __slots__ = ("table", "tokens")

    def __init__(self, tokens: list[int], table: BlockTable) -> None:
        self.tokens = tokens
        self.table = table

    @property
    def cached(self) -> int:
        """Number of tokens whose K/V are in the cache."""
        return self.table.length

    @property
    def pending(self) -> list[int]:
        """The tokens that the next `feed` will push."""
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
        blocks = list(self.table.blocks)
        return f"Branch(tokens={len(self.tokens)}, cached={self.cached}, blocks={blocks})"
