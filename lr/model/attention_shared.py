"""Attention over a paged cache, all branches at once: every row looks at the blocks of *all*
branches, a mask hides what is not its own.

The forks of one problem share most of their blocks. Read branch by branch, the shared ones would be
gathered once for each; here every block is there once, and if the blocks lie side by side in memory
nothing is gathered at all. Rows of a prompt, of a draft step that is being read and of a step that
is being written are just rows: one fused call per layer serves them all.

Example, blocks of 4: branch A has the blocks 0, 1 (7 tokens), its fork B the blocks 0, 2 (6
tokens), each brings one token. Keys are those of the blocks 0, 1, 2, that is s = 12 columns. Branch
A sees the columns 0-3 and 4-6, branch B 0-3 and 8-9. Axis letters as in `attention.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.kvcache.cache import PagedKVCache
from lr.model.attention_pages import in_a_row, reader
from lr.model.batch import RaggedBatch, integers
from lr.model.layers import Attend

CALL = 4096
"""Looks (a row at a column) that cost as much as another fused call and its gathering, on a CPU."""
MOST_LOOKS = 1 << 20
"""The mask has one number for each look; more would be a waste of memory."""
NOWHERE = 1 << 62
"""The position of a column that is not a branch's own: behind everything."""


def blocks_to_share(batch: RaggedBatch, cache: PagedKVCache) -> list[int] | None:
    """The blocks of all branches in the order of their ids, if looking at all of them together is
    less work than branch by branch.

    A branch that is alone and whose blocks lie in a row needs no mask: None. Blocks in between that
    belong to others are taken along where that makes a row of blocks without gaps; never a free
    one, which may contain NaN.
    """
    tables = batch.tables
    if len(tables) == 1 and in_a_row(tables[0].blocks):
        return None
    blocks = sorted({block for table in tables for block in table.blocks})
    whole = list(range(blocks[0], blocks[-1] + 1))
    if len(whole) <= 2 * len(blocks) and all(cache.pool.refcount(block) for block in whole):
        blocks = whole
    rows = sum(batch.counts)
    looks = rows * len(blocks) * cache.block_size
    apart = sum(count * length for count, length in zip(batch.counts, batch.lengths, strict=True))
    return blocks if looks <= min(MOST_LOOKS, 2 * apart + CALL * len(set(batch.counts))) else None


def shared_attention(batch: RaggedBatch, cache: PagedKVCache, blocks: list[int]) -> Attend:
    """One fused call per layer over the columns of `blocks`."""
    bias: Tensor | None = None
    read = reader(cache, [blocks], len(blocks) * cache.block_size)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        nonlocal bias
        n, h, d = q.shape
        kv = k.shape[1]
        if bias is None:  # the query heads that share a KV head are rows of one matrix
            bias = _bias(batch, cache, blocks).repeat_interleave(h // kv, dim=0)
        cache.write(layer, batch.slots, k, v)
        keys, values = read(layer)
        queries = (
            q.view(n, kv, -1, d).transpose(0, 1).reshape(1, kv, -1, d)
        )  # [1, kv, n * h / kv, d]
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        return mixed.view(kv, n, -1, d).transpose(0, 1).reshape(n, h, d)

    return attend


def _bias(batch: RaggedBatch, cache: PagedKVCache, blocks: list[int]) -> Tensor:
    """[n, s]: 0 where a row sees a column, -inf elsewhere."""
    size, device = cache.block_size, batch.tokens.device
    place = {block: index for index, block in enumerate(blocks)}
    starts = [
        [NOWHERE] * len(blocks) for _ in batch.tables
    ]  # by branch and block: the position of the block's first token
    for row, table in zip(starts, batch.tables, strict=True):
        for index, block in enumerate(table.blocks):
            row[place[block]] = index * size
    positions = (integers(starts, device)[:, :, None] + torch.arange(size, device=device)).flatten(
        1
    )  # [g, s]
    branch_of_row = integers(
        [i for i, count in enumerate(batch.counts) for _ in range(count)], device
    )
    hidden = positions[branch_of_row] > batch.positions[:, None]
    return torch.zeros(hidden.shape, dtype=cache.keys.dtype, device=device).masked_fill_(
        hidden, -math.inf
    )
