"""FlashAttention over the paged cache, by the package `flash-attn` (Dao, arXiv 2307.08691).

Two of its functions, both with a block table: `flash_attn_varlen_func` for ragged batches, where
the lengths come as their running sum `cu_seqlens_k`, and `flash_attn_with_kvcache` where every
sequence brings one token, which divides long contexts among the processors of the GPU.
`causal=True` is aligned to the bottom right: the last query of a sequence sees all its keys.
Version 2 takes pages of a multiple of 256 tokens. Index tensors are int32.

Example, sequences of 6 and 3 tokens that bring 2 and 1: cu_seqlens_q (0, 2, 3), cu_seqlens_k (0, 6,
9). Axis letters as in `attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from lr.kvcache.cache import PagedKVCache, integers
from lr.kvcache.table import block_rows
from lr.model.attention import AttentionKind, RowPages
from lr.model.batch import RaggedBatch
from lr.model.layers import Attend

Kernel = Callable[..., Tensor]


def flash_attention(varlen: Kernel, with_kvcache: Kernel, block_size: int = 256) -> AttentionKind:
    """These kernels on pages of `block_size` tokens; it can be sent to another process."""
    ragged = partial(_ragged, varlen, with_kvcache)
    return AttentionKind("flash", block_size, ragged, partial(_rows, with_kvcache), strict=True)


def _ragged(
    varlen: Kernel, with_kvcache: Kernel, batch: RaggedBatch, cache: PagedKVCache
) -> Attend:
    if max(batch.counts) == 1:
        return _rows(with_kvcache, RowPages.of(batch), cache)
    device = batch.tokens.device
    table = integers(block_rows(batch.tables), device, torch.int32)  # [b, nb]
    borders = integers(
        [[0, *accumulate(batch.counts)], [0, *accumulate(batch.lengths)]], device, torch.int32
    )
    longest = max(batch.counts), max(batch.lengths)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        keys, values = cache.pages(layer)
        return varlen(
            q, keys, values, borders[0], borders[1], *longest, causal=True, block_table=table
        )

    return attend


def _rows(with_kvcache: Kernel, rows: RowPages, cache: PagedKVCache) -> Attend:
    used = (rows.positions + 1).to(torch.int32)  # the lengths of the sequences, [n]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, rows.slots, k, v)
        keys, values = cache.pages(layer)
        mixed = with_kvcache(
            q.unsqueeze(1), keys, values, cache_seqlens=used, block_table=rows.blocks, causal=True
        )  # [n, 1, h, d]
        return mixed.squeeze(1)

    return attend
