"""A ragged batch: new tokens of several sequences, laid end to end, and where their cache lives.

No rectangle of tokens exists. A batch of three sequences that bring 1, 4 and 2 new tokens has n = 7
rows; `counts` is (1, 4, 2). The length of a table includes the new tokens, so those of sequence i
stand at the positions length - counts[i] .. length - 1. Example, block size 4, one sequence of 6
tokens in blocks 9 and 2 that brings 2 more: length 8, positions (6, 7), slots (2*4+2, 2*4+3) = (10,
11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from lr.kvcache.branch import BlockTable, block_rows
from lr.kvcache.cache import integers


@dataclass(frozen=True)
class RaggedBatch:
    """What one forward needs to know, besides the cache.

    `rows` [3, n] are `tokens` [n] ids, `positions` [n] and `slots` [n], flat cache slots that
    receive the new K/V; per sequence `counts` and its block table; `logit_rows` [m]: those of the n
    rows that need logits (None: all). `source`: what `build` made it of.
    """

    rows: Tensor
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    counts: tuple[int, ...]
    tables: tuple[BlockTable, ...]
    logit_rows: Tensor | None
    source: tuple[Any, ...] = field(repr=False)

    @property
    def row_pages(self) -> list[list[int]]:
        """The blocks of every row's sequence, [n, longest], filled up as by `block_rows`."""
        owners = zip(self.tables, self.counts, strict=True)
        return block_rows([table for table, count in owners for _ in range(count)])

    @classmethod
    def build(
        cls,
        tables: Sequence[BlockTable],
        tokens: Sequence[Sequence[int]],
        slots: Sequence[int],
        wanted: Sequence[int],
        *,
        device: torch.device,
    ) -> RaggedBatch:
        """The batch that feeds `tokens[i]` to `tables[i]`, whose lengths already include them
        (inside `cache.append`), with logits after the last `wanted[i]` tokens of each.

        Example: counts (3, 1), wanted (2, 1): logits of the rows 1, 2 and 3.
        """
        counts = tuple(map(len, tokens))
        ids = [token for row in tokens for token in row]
        new = [range(t.length - n, t.length) for t, n in zip(tables, counts, strict=True)]
        positions = [position for some in new for position in some]
        logit_rows = None
        if sum(wanted) < len(ids):
            ends = zip(wanted, accumulate(counts), strict=True)
            logit_rows = integers([row for n, end in ends for row in range(end - n, end)], device)
        rows, source = integers((ids, positions, slots), device), (tables, tokens, slots, wanted)
        flat, at, where = rows.unbind(0)
        return cls(rows, flat, at, where, counts, tuple(tables), logit_rows, source)
