"""Dao's FlashAttention, where one of its packages is installed.

`SIGNATURES` lists the versions, newest first: what to import, and how to call it.
Version 4 (a pure Python package, for sm_90 and sm_100) and version 3 (for sm_90) read
pages of any size and take ragged queries. Version 2 (from sm_80 on) reads pages of 256
tokens, so the pages of the cache are gathered into larger ones.

In a recording, only version 3 divides the keys of a sequence by their true number, as
one row on a large GPU needs. Version 4 does not divide them on sm_90, and version 2
would divide the width of the block table. With these two, our own kernel decodes
(`attention.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.kernels.attention import TRITON
from lr.kernels.fused import store
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind, RaggedBatch, Tiles
from lr.model.layers import Attend

PAGE = 256  # tokens in a page of version 2
Call = Callable[..., Any]


@dataclass(frozen=True)
class Signature:
    """A version of FlashAttention: the package to install, "module:function", and the
    adapter that calls it. `decodes`: whether it runs in recordings; else our own kernel
    does."""

    package: str
    function: str
    adapter: Callable[[Call, Tiles, PagedKVCache], Attend]
    decodes: bool = False

    def kind(self, call: Call) -> AttentionKind:
        """Attention by this function."""
        attend = partial(self.adapter, call)
        kind = replace(TRITON, name="flash", ragged=partial(_ragged, attend))
        # A tile is all that a sequence has in the batch.
        return replace(kind, tiles=attend, tile=1 << 30) if self.decodes else kind


def find() -> Iterator[tuple[str, AttentionKind | str]]:
    """Each package, with its kind or the reason why it cannot be imported. The packages
    of versions 2 and 4 share the name space `flash_attn`, so it may exist without the
    function that is looked for."""
    for signature in SIGNATURES:
        try:
            kind = signature.kind(resolve_name(signature.function))
            yield signature.package, kind
        except Exception as error:  # what does not fit this PyTorch may raise anything
            reason = f"{type(error).__name__}: {error}"
            yield signature.package, reason.splitlines()[0]


def _ragged(
    attend: Callable[[Tiles, PagedKVCache], Attend],
    batch: RaggedBatch,
    cache: PagedKVCache,
) -> Attend:
    """Tile i is all that sequence i has in the batch, so its pages are row i."""
    return attend(Tiles.of(batch, max(batch.counts)), cache)


def on_pages(
    lengths_name: str, call: Call, tiles: Tiles, cache: PagedKVCache
) -> Attend:
    """A function that reads the pages; keys are stored before. Versions 3 and 4 differ
    in the name of the lengths, and 4 returns a pair."""
    options = {
        "cu_seqlens_q": tiles.borders,
        "max_seqlen_q": tiles.longest,
        "page_table": tiles.blocks,
        lengths_name: _lengths(tiles),
    }

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pages = cache.pages[layer]  # keys and values [nb, block_size, k, d]
        store(pages, tiles.slots, k, v)
        with torch.cuda.device_of(q):  # version 4 launches on the current device
            mixed = call(q, *pages, causal=True, **options)
        return mixed[0] if isinstance(mixed, tuple) else mixed

    return attend


def on_gathered_pages(call: Call, tiles: Tiles, cache: PagedKVCache) -> Attend:
    """`flash_attn_varlen_func` of version 2, which takes the sums of the lengths."""
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


SIGNATURES = (
    Signature(
        "flash-attn-4",
        "flash_attn.cute:flash_attn_varlen_func",
        partial(on_pages, "seqused_k"),
    ),
    Signature(
        "flash-attn-3",
        "flash_attn_interface:flash_attn_with_kvcache",
        partial(on_pages, "cache_seqlens"),
        decodes=True,
    ),
    Signature("flash-attn", "flash_attn:flash_attn_varlen_func", on_gathered_pages),
)
"""In the order in which they are tried."""
