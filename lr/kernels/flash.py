"""Dao's FlashAttention 2, where its package (`flash-attn`, from sm_80 on) is installed,
for prompts and large batches.

It reads pages of 256 tokens, so the pages of the cache are gathered into larger ones.
In a recording it would divide the keys by the width of the block table instead of their
number, so our own kernel decodes (`attention.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.kernels.attention import TRITON
from lr.kernels.fused import store
from lr.kvcache.branch import block_rows
from lr.kvcache.cache import PagedKVCache, integers
from lr.model.attention import AttentionKind, RaggedBatch
from lr.model.layers import Attend

PAGE = 256  # tokens in a page of the package


def find() -> AttentionKind:
    """Raises ImportError if the package is not installed."""
    from flash_attn import flash_attn_varlen_func

    ragged = partial(flash_attention, flash_attn_varlen_func)
    return replace(TRITON, name="flash", ragged=ragged)


def flash_attention(
    varlen: Callable[..., Tensor], batch: RaggedBatch, cache: PagedKVCache
) -> Attend:
    """`varlen`: the package's function, which takes sums of the counts and lengths."""
    ints = partial(integers, device=batch.tokens.device, dtype=torch.int32)
    lengths = [table.length for table in batch.tables]
    counts, sums = (ints([0, *accumulate(each)]) for each in (batch.counts, lengths))
    # [b, nb] blocks of 16 tokens become [b, nb / 16] pages of 256, which are numbered
    # 0, 1, 2 ... as they are gathered.
    blocks = ints(block_rows(batch.tables))
    blocks = F.pad(blocks, (0, -blocks.shape[1] % (PAGE // cache.block_size)))
    b, width = len(blocks), blocks.shape[1] * cache.block_size // PAGE
    table = torch.arange(b * width, dtype=torch.int32, device=blocks.device).view(b, -1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        store(cache.pages[layer], batch.slots, k, v)
        pages = (  # [b, nb * 16, k, d] -> [b * nb / 16, 256, k, d]
            memory.unflatten(1, (-1, PAGE)).flatten(0, 1)
            for memory in cache.gather(layer, blocks)
        )
        return varlen(
            q, *pages, counts, sums, max(batch.counts), width * PAGE,
            causal=True, block_table=table,
        )  # fmt: skip

    return attend
