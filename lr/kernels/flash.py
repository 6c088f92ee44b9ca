"""Dao's FlashAttention on the pages of the cache, where its package is installed.

Version 3 (`flash_attn_interface`, for sm_90) takes pages of any size and ragged
queries, and divides the keys by the true lengths; prompts and recordings use it.
Version 2 (`flash_attn`, from sm_80 on) takes pages of 256 tokens. In a recording it
would divide the keys by the width of the block table instead, so our own kernel decodes
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
from lr.kernels.install import install
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind, RaggedBatch, Tiles
from lr.model.layers import Attend

Pages = tuple[Tensor, Tensor]
Call = Callable[[Tensor, Pages, Tensor, Tensor, Tensor, int], Tensor]
"""call(q [n, h, d], pages, borders [m + 1], lengths [m], blocks [m, nb], longest)"""


def find() -> AttentionKind:
    """Version 3, else 2. Raises ImportError if neither is installed."""
    try:
        import flash_attn_interface
    except ImportError:
        import flash_attn

        two = partial(version_2, flash_attn.flash_attn_varlen_func)
        return replace(
            TRITON, name="flash", ragged=partial(_ragged, two), block_size=256
        )
    three = partial(version_3, flash_attn_interface.flash_attn_with_kvcache)
    # A tile is all that a sequence has in the batch.
    return AttentionKind(
        "flash",
        partial(_ragged, three),
        partial(_tiles, three),
        tile=1 << 30,
        install=install,
    )


def version_3(
    call: Callable[..., Tensor], q: Tensor, pages: Pages, borders: Tensor,
    lengths: Tensor, blocks: Tensor, longest: int,
) -> Tensor:  # fmt: skip
    """`flash_attn_with_kvcache`; the new keys are stored already."""
    return call(
        q, *pages, cache_seqlens=lengths, page_table=blocks, cu_seqlens_q=borders,
        max_seqlen_q=longest, causal=True,
    )  # fmt: skip


def version_2(
    call: Callable[..., Tensor], q: Tensor, pages: Pages, borders: Tensor,
    lengths: Tensor, blocks: Tensor, longest: int,
) -> Tensor:  # fmt: skip
    """`flash_attn_varlen_func`, which takes the sums of the lengths."""
    sums = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    most = blocks.shape[1] * pages[0].shape[1]  # places of a block table
    return call(
        q, *pages, borders, sums, longest, most, causal=True, block_table=blocks
    )  # fmt: skip


def _ragged(call: Call, batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    return _tiles(call, Tiles.of(batch, max(batch.counts)), cache)


def _tiles(call: Call, tiles: Tiles, cache: PagedKVCache) -> Attend:
    """Tile i is all that sequence i has in the batch, so its pages are row i."""
    first, end = tiles.borders[:-1], tiles.borders[1:]
    last = tiles.positions[(end - 1).clamp(min=0).long()]
    lengths = torch.where(end > first, last + 1, 0).to(torch.int32)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pages = cache.pages[layer]  # keys and values [nb, block_size, k, d]
        store(pages, tiles.slots, k, v)
        return call(q, pages, tiles.borders, lengths, tiles.blocks, tiles.longest)

    return attend
