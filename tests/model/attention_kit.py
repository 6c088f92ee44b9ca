"""A kind of attention that is recorded without CUDA: every row by itself, in plain
arithmetic."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind, RowPages, reference_attention
from lr.model.layers import Attend


def row_attention(rows: RowPages, cache: PagedKVCache) -> Attend:
    """Like a kernel, it computes everything from the tensors when it is called. What a
    kernel would read silently wrong (too few pages, a page that does not exist or is
    not finite) is an error.
    """
    assert rows.blocks.dtype == torch.int32
    assert rows.positions.dtype == rows.slots.dtype == torch.int64

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, rows.slots, k, v)
        group, scale = q.shape[1] // k.shape[1], 1 / math.sqrt(q.shape[-1])
        keys, values = (  # [n, s, h, d]
            page.repeat_interleave(group, dim=2)
            for page in cache.gather(layer, rows.blocks)
        )
        places = torch.arange(keys.shape[1], device=q.device)
        at = rows.positions[:, None]
        assert at.max() < len(places), "too few pages"
        read = places - places % cache.block_size <= at  # [n, s]: whole pages
        assert keys[read].isfinite().all() and values[read].isfinite().all()
        later = places > at
        scores = torch.einsum("nhd,nshd->nhs", q, keys) * scale
        weights = scores.masked_fill(later[:, None], -math.inf).softmax(-1)
        seen = values.masked_fill(later[:, :, None, None], 0)
        return torch.einsum("nhs,nshd->nhd", weights, seen)

    return attend


ROWS = AttentionKind("rows", reference_attention, row_attention)
