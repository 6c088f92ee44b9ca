"""Attention over a paged cache. One signature, several back ends, held equal by a test.

A back end takes (batch, cache) and gives the `attend` that the layers call: it stores the new keys
and values at the batch's slots, then lets every query row see its own branch up to its own position
(a mask by absolute positions: a chunk after a cache is not a prompt). Here: `reference_attention`,
one branch at a time in plain arithmetic, the page to read; and `paged_attention`, which is
vectorised with PyTorch's fused attention, in one of two ways: branches that share most of what they
see, such as the forks of one problem, look at it together (`attention_shared.py`); others in groups
(`attention_grouped.py`). FlashAttention reads the pages where they lie (`attention_varlen.py`,
`attention_flash.py`); which kind a model gets is decided in `attention_choice.py`. Axis letters: n
rows, g branches, c new tokens per branch, b blocks, h query heads, kv KV heads, d head dim, s key
positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.cache import PagedKVCache
from lr.model.attention_grouped import grouped_attention
from lr.model.attention_rows import RowAttention, gathered_rows
from lr.model.attention_shared import blocks_to_share, shared_attention
from lr.model.batch import RaggedBatch
from lr.model.layers import Attend

AttentionBackend = Callable[[RaggedBatch, PagedKVCache], Attend]


@dataclass(frozen=True)
class AttentionKind:
    """One way to compute attention over the cache, and what it asks of it.

    `block_size` is the number of tokens per block of a cache for it; one with `strict` pages works
    with multiples of that only, others with any. `ragged` serves any batch, `rows` a few rows of
    fixed shape, for CUDA graphs (None: it cannot be recorded).
    """

    name: str
    block_size: int
    ragged: AttentionBackend
    rows: RowAttention | None
    strict: bool = False

    def check_block_size(self, block_size: int) -> None:
        """Raise SettingError if it cannot read blocks of that many tokens."""
        if self.strict and block_size % self.block_size:
            raise SettingError(
                f"block_size is {block_size}, but attention {self.name!r} reads blocks of a multiple of {self.block_size} tokens here; "
                "use such blocks, or attention sdpa, which reads any."
            )


def reference_attention(batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    """softmax(q k^T / sqrt(d)) v, branch by branch, with an explicit causal mask. Slow and
    plain.
    """
    device = batch.tokens.device

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        mixed, start = [], 0
        for count, length, table in zip(batch.counts, batch.lengths, batch.tables, strict=True):
            rows = slice(start, start + count)
            start += count
            pages_k, pages_v = cache.gather(layer, torch.tensor([table.blocks], device=device))
            repeat = q.shape[1] // k.shape[1]
            keys = pages_k[0, :length].repeat_interleave(repeat, dim=1)  # [s, h, d]
            values = pages_v[0, :length].repeat_interleave(repeat, dim=1)
            scores = torch.einsum("chd,shd->hcs", q[rows], keys) / math.sqrt(q.shape[-1])
            later = (
                torch.arange(length, device=device)[None, :] > batch.positions[rows, None]
            )  # [c, s]
            weights = scores.masked_fill(later, -math.inf).softmax(-1)
            mixed.append(torch.einsum("hcs,shd->chd", weights, values))
        return torch.cat(mixed)

    return attend


def paged_attention(batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    """Fused attention: over all blocks at once where that is less work, else branch by branch."""
    blocks = blocks_to_share(batch, cache)
    return (
        grouped_attention(batch, cache)
        if blocks is None
        else shared_attention(batch, cache, blocks)
    )


REFERENCE = AttentionKind("reference", 16, reference_attention, None)
SDPA = AttentionKind("sdpa", 16, paged_attention, gathered_rows)
