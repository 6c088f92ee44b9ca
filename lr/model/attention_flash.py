"""FlashAttention over the paged cache through the `flash-attn` package (Dao, arXiv 2307.08691;
extra `[flash]`).

Two of its functions, both with a block table: `flash_attn_varlen_func` for ragged batches, where
the lengths of the branches come as their running sum `cu_seqlens_k`, and `flash_attn_with_kvcache`
where every branch brings one token, which divides long contexts among the processors of the GPU.
`causal=True` is aligned to the bottom right: the last query of a branch sees all its keys. Version
2 takes pages of a multiple of 256 tokens; `attention_probe.py` finds out what is taken here.

Example, branches of 6 and 3 tokens that bring 2 and 1: cu_seqlens_q (0, 2, 3), cu_seqlens_k (0, 6,
9). Axis letters as in `attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind
from lr.model.attention_rows import RowPages
from lr.model.attention_varlen import paging
from lr.model.batch import RaggedBatch
from lr.model.layers import Attend


@dataclass(frozen=True)
class FlashKernels:
    """The two functions of the package, or what behaves like them."""

    varlen: Callable[..., Tensor]
    with_kvcache: Callable[..., Tensor]


def flash_attention(kernels: FlashKernels, block_size: int) -> AttentionKind:
    """The kind of attention that calls these kernels on pages of `block_size` tokens. It can be
    sent to another process.
    """
    return AttentionKind(
        "flash", block_size, partial(_ragged, kernels), partial(_rows, kernels), strict=True
    )


def _ragged(kernels: FlashKernels, batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    borders, used, table = paging(batch)
    if max(batch.counts) == 1:
        return _one_each(kernels, cache, batch.slots, used, table)
    ends = used.new_zeros(len(used) + 1)
    ends[1:] = used.cumsum(0)
    at = (borders, ends, max(batch.counts), max(batch.lengths))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        keys, values = cache.pages(layer)
        return kernels.varlen(q, keys, values, *at, causal=True, block_table=table)

    return attend


def _rows(kernels: FlashKernels, pages: RowPages, cache: PagedKVCache) -> Attend:
    used = (pages.positions + 1).to(torch.int32)
    return _one_each(kernels, cache, pages.slots, used, pages.blocks)


def _one_each(
    kernels: FlashKernels, cache: PagedKVCache, slots: Tensor, used: Tensor, table: Tensor
) -> Attend:
    """One query per branch: lengths [n], pages [n, w], int32."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, slots, k, v)
        keys, values = cache.pages(layer)
        mixed = kernels.with_kvcache(
            q.unsqueeze(1), keys, values, cache_seqlens=used, block_table=table, causal=True
        )  # [n, 1, h, d]
        return mixed.squeeze(1)

    return attend
