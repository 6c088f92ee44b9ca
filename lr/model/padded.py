"""A forward of fixed shape on fixed memory: what a CUDA graph can record once and replay for ever.

A graph replays the very kernels that were recorded, on the very addresses. So a forward that is to
be replayed reads its input from buffers that stay, has a number of rows and of pages that stays,
and asks the device nothing. `PaddedForward` is one such shape: `fill` puts a batch into the
buffers, the rows that are left over become *inert* (token 0 at position 0 of a block that belongs
to nobody else), and `compute` is the forward over rows that each know their pages
(`attention_rows.py`).

Example, a shape of 4 rows and 2 pages, blocks of 4, a batch of two branches that decode at
positions 5 and 2 in blocks (9, 2) and (5), inert block 0: positions (5, 2, 0, 0), slots (9, 22, 0,
0), blocks ((9, 2), (5, 5), (0, 0), (0, 0)).

It does not know CUDA. Read next: `graphs.py`, which records it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lr.kvcache.cache import PagedKVCache
from lr.model.attention_rows import RowAttention, RowPages
from lr.model.batch import RaggedBatch, integers
from lr.model.qwen import CausalLM


class PaddedForward:
    """The forward of at most `rows` rows whose branches have at most `pages` blocks, on buffers of
    its own.

    `inert` is a block of the cache that only this purpose holds; all inert rows write to its first
    slot.
    """

    def __init__(
        self,
        model: CausalLM,
        cache: PagedKVCache,
        attention: RowAttention,
        shape: tuple[int, int],
        inert: int,
    ) -> None:
        self.model, self.cache, self.attention = model, cache, attention
        self.rows, self.pages = shape
        self.inert = inert
        device = model.device
        self.tokens = torch.zeros(self.rows, dtype=torch.int64, device=device)
        self.where = RowPages(
            positions=torch.zeros_like(self.tokens),
            slots=torch.full_like(self.tokens, inert * cache.block_size),
            blocks=torch.full((self.rows, self.pages), inert, dtype=torch.int32, device=device),
        )
        self._used = 0  # rows that are not inert
        self._blocks: list[int] = []  # of those rows, as they stand in the buffer

    def fill(self, batch: RaggedBatch) -> None:
        """Take over a batch that fits. The pages are sent only if a branch has other blocks than in
        the last one.
        """
        n = len(batch.tokens)
        assert n <= self.rows
        where = self.where
        for buffer, given, rest in (
            (self.tokens, batch.tokens, 0),
            (where.positions, batch.positions, 0),
            (where.slots, batch.slots, self.inert * self.cache.block_size),
        ):
            buffer[:n].copy_(given)
            if n < self._used:
                buffer[n : self._used].fill_(rest)
        blocks = self._pages_of(batch)
        if n < self._used:
            where.blocks[n : self._used].fill_(self.inert)
        if blocks != self._blocks:
            where.blocks[:n].copy_(
                integers(blocks, self.tokens.device, torch.int32).view(n, self.pages)
            )
            self._blocks = blocks
        self._used = n

    def compute(self) -> tuple[Tensor, Tensor]:
        """Hidden states [rows, e] and logits [rows, v] of what is in the buffers. Issues kernels
        only, in the same order every time.
        """
        hidden = self.model.trunk(
            self.tokens, self.where.positions, self.attention(self.where, self.cache)
        )
        return hidden, self.model.logits(hidden)

    def _pages_of(self, batch: RaggedBatch) -> list[int]:
        """For every row the blocks of its branch, filled up with the last one: n * pages ids."""
        flat: list[int] = []
        for table, count in zip(batch.tables, batch.counts, strict=True):
            flat += (table.blocks + table.blocks[-1:] * (self.pages - len(table.blocks))) * count
        return flat
