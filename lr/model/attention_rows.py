"""Attention of rows that each know their own pages: every row of the batch as a branch of one new
token.

The keys and values of a forward are stored before anybody looks, so a row at position p sees the
first p + 1 places of its branch, whatever other rows of the same branch stand beside it: causality
is nothing but a length per row. The shapes depend on the number of rows and of pages alone, not on
how the rows are divided among branches, and every index is a tensor. That is what a CUDA graph
needs (`padded.py`): prompt, draft and decoding rows replay the same kernels. The price is that rows
of one branch read its pages again, so it is meant for few rows.

Example, blocks of 4: a branch of 6 tokens in blocks 9 and 2 that brings 2 of them has two rows,
positions (4, 5), slots (8, 9), blocks ((9, 2), (9, 2)); the first sees 5 places, the second 6. Axis
letters as in `attention.py`, w pages per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.kvcache.cache import PagedKVCache
from lr.model.layers import Attend


@dataclass(frozen=True)
class RowPages:
    """Where n rows stand: `positions` [n] and `slots` [n] (int64), and `blocks` [n, w] (int32), the
    pages of each row in order.

    Pages behind a row's position may be any that hold finite numbers (fill up with the row's own
    last one).
    """

    positions: Tensor
    slots: Tensor
    blocks: Tensor


RowAttention = Callable[[RowPages, PagedKVCache], Attend]
"""Makes the `attend` of a forward over rows. Issues kernels only: nothing in it may read a tensor's
value back to the host.
"""


def gathered_rows(rows: RowPages, cache: PagedKVCache) -> Attend:
    """PyTorch's fused attention over each row's gathered pages."""
    n, w = rows.blocks.shape
    span = torch.arange(w * cache.block_size, device=rows.blocks.device)
    hidden = (span > rows.positions[:, None]).view(n, 1, 1, -1)
    bias = torch.zeros(hidden.shape, dtype=cache.keys.dtype, device=span.device).masked_fill_(
        hidden, -math.inf
    )

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, rows.slots, k, v)
        keys, values = (
            pages.transpose(1, 2) for pages in cache.gather(layer, rows.blocks)
        )  # [n, kv, s, d]
        _, h, d = q.shape
        queries = q.view(
            n, k.shape[1], -1, d
        )  # the query heads that share a KV head are the rows of one small matrix
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias).reshape(
            n, h, d
        )

    return attend
