"""Attention over a paged cache, group by group: the branches that bring equally many new tokens
share one fused call.

The way for branches that have little in common, such as different problems in one batch: each reads
its own pages, gathered into a rectangle (or in place where a branch is alone and its blocks lie in
a row). On CUDA a long run of new tokens goes by itself and says only that it is causal, aligned to
the bottom right: with an explicit mask PyTorch would leave FlashAttention, which shares KV heads
among query heads, for plain arithmetic over the whole matrix of scores. Axis letters as in
`attention.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.kvcache.cache import PagedKVCache
from lr.kvcache.table import block_rows
from lr.model.attention_pages import Reader, reader
from lr.model.batch import RaggedBatch, integers
from lr.model.layers import Attend

LONG = 16
"""New tokens of a branch from which on it goes by itself on CUDA."""


@dataclass(frozen=True)
class _Group:
    """The branches of a batch that bring equally many new tokens, so that they fit one fused call
    without padded query rows.

    `rows` [g*c] are their rows in the batch (None: all of them, in order); `read` gives what the
    cache holds for them; `bias` [g, 1, c, s] is 0 where a query sees a key and -inf elsewhere (None
    where every query sees all s keys), or just says "causal".
    """

    size: int
    count: int
    rows: Tensor | None
    read: Reader
    bias: Tensor | None


def grouped_attention(
    batch: RaggedBatch, cache: PagedKVCache, *, long_apart: bool | None = None
) -> Attend:
    """One fused call for all branches that bring the same number of new tokens. `long_apart`:
    whether those that bring many go by themselves (None: on CUDA)."""
    if long_apart is None:
        long_apart = batch.tokens.is_cuda
    members: dict[tuple[int, int], list[int]] = {}
    for branch, (count, length) in enumerate(zip(batch.counts, batch.lengths, strict=True)):
        members.setdefault((count, length if long_apart and count >= LONG else 0), []).append(
            branch
        )
    whole = len(members) == 1
    groups = [
        _group(batch, cache, branches, whole=whole, causal=key[1] > 0)
        for key, branches in members.items()
    ]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        if whole:
            return _attend_group(groups[0], q, *groups[0].read(layer))
        mixed = torch.empty_like(q)
        for group in groups:
            mixed[group.rows] = _attend_group(group, q[group.rows], *group.read(layer))
        return mixed

    return attend


def _group(
    batch: RaggedBatch, cache: PagedKVCache, branches: list[int], *, whole: bool, causal: bool
) -> _Group:
    """Lay out one group; `causal`: its branches are equally long.

    Example: counts (1, 3, 1), branches [0, 2] (count 1): rows [0, 4], because branch 1 holds rows 1
    to 3.
    """
    device = batch.tokens.device
    count = batch.counts[branches[0]]
    lengths = [batch.lengths[i] for i in branches]
    rows = None
    if not whole:
        starts = [0]
        for c in batch.counts:
            starts.append(starts[-1] + c)
        rows = integers(
            [row for i in branches for row in range(starts[i], starts[i] + count)], device
        )
    bias: Tensor | None = None
    span = max(lengths)
    if causal:
        from torch.nn.attention.bias import (
            causal_lower_right,
        )  # imported where it is used: it takes a second

        bias = causal_lower_right(count, span)
    elif count > 1 or min(lengths) < span:
        positions = batch.positions if rows is None else batch.positions[rows]
        hidden = torch.arange(span, device=device) > positions.view(len(branches), 1, count, 1)
        bias = torch.zeros(hidden.shape, dtype=cache.keys.dtype, device=device).masked_fill_(
            hidden, -math.inf
        )
    return _Group(
        len(branches),
        count,
        rows,
        reader(cache, block_rows([batch.tables[i] for i in branches]), span),
        bias,
    )


def _attend_group(group: _Group, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q [g*c, h, d] over keys and values [g, kv, s, d] -> [g*c, h, d]."""
    _, h, d = q.shape
    if (
        group.count == 1
    ):  # decoding: the query heads that share a KV head are the rows of one small matrix
        queries = q.view(group.size, keys.shape[1], -1, d)  # [g, kv, h/kv, d]
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=group.bias).view(
            -1, h, d
        )
    queries = q.view(group.size, group.count, h, d).transpose(1, 2)  # [g, h, c, d]
    mixed = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=group.bias, enable_gqa=True
    )
    return mixed.transpose(1, 2).reshape(-1, h, d)
