"""Dao's FlashAttention, where its package is installed.

Version 3 (`flash_attn_interface`, for sm_90) reads pages of any size, takes ragged
queries, and divides the keys by the true lengths; prompts and recordings use it.
Version 2 (`flash_attn`, from sm_80 on) reads pages of 256 tokens, so the pages of the
cache are gathered into larger ones. In a recording it would divide the keys by the
width of the block table instead of their number, so our own kernel decodes
(`attention.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.kernels.attention import TRITON
from lr.kernels.fused import store
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind, RaggedBatch, Tiles
from lr.model.layers import Attend

PAGE = 256  # tokens in a page of version 2
Call = Callable[..., Tensor]


def find() -> AttentionKind:
    """Version 3, else 2. Raises ImportError if neither is installed."""
    try:
        from flash_attn_interface import flash_attn_with_kvcache
    except ImportError:
        from flash_attn import flash_attn_varlen_func

        ragged = partial(_ragged, partial(version_2, flash_attn_varlen_func))
        return replace(TRITON, name="flash", ragged=ragged)
    three = partial(version_3, flash_attn_with_kvcache)
    ragged = partial(_ragged, three)
    # A tile is all that a sequence has in the batch.
    return replace(TRITON, name="flash", ragged=ragged, tiles=three, tile=1 << 30)


def _ragged(
    version: Callable[..., Attend], batch: RaggedBatch, cache: PagedKVCache
) -> Attend:
    """Tile i is all that sequence i has in the batch, so its pages are row i."""
    return version(Tiles.of(batch, max(batch.counts)), cache)


def version_3(call: Call, tiles: Tiles, cache: PagedKVCache) -> Attend:
    """`flash_attn_with_kvcache` of keys that are stored already."""
    lengths = _lengths(tiles)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pages = cache.pages[layer]  # keys and values [nb, block_size, k, d]
        store(pages, tiles.slots, k, v)
        return call(
            q, *pages, cache_seqlens=lengths, page_table=tiles.blocks,
            cu_seqlens_q=tiles.borders, max_seqlen_q=tiles.longest, causal=True,
        )  # fmt: skip

    return attend


def version_2(call: Call, tiles: Tiles, cache: PagedKVCache) -> Attend:
    """`flash_attn_varlen_func`, which takes the sums of the lengths."""
    sums = F.pad(_lengths(tiles).cumsum(0), (1, 0)).to(torch.int32)
    # [b, nb] blocks of 16 tokens become [b, nb / 16] pages of 256, which are numbered
    # 0, 1, 2 ... as they are gathered.
    b, nb = tiles.blocks.shape
    blocks = F.pad(tiles.blocks, (0, -nb % (PAGE // cache.block_size)))
    width = blocks.shape[1] * cache.block_size // PAGE
    table = torch.arange(b * width, dtype=torch.int32, device=blocks.device).view(b, -1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        store(cache.pages[layer], tiles.slots, k, v)
        pages = (  # [b, nb * 16, k, d] -> [b * nb / 16, 256, k, d]
            memory.unflatten(1, (-1, PAGE)).flatten(0, 1)
            for memory in cache.gather(layer, blocks)
        )
        return call(
            q, *pages, tiles.borders, sums, tiles.longest, width * PAGE,
            causal=True, block_table=table,
        )  # fmt: skip

    return attend


def _lengths(tiles: Tiles) -> Tensor:
    """How many keys the last row of each tile sees; 0 for an empty tile."""
    first, end = tiles.borders[:-1], tiles.borders[1:]
    last = tiles.positions[(end - 1).clamp(min=0)]
    return torch.where(end > first, last + 1, 0).to(torch.int32)
