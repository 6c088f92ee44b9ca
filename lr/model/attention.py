"""Attention over a paged cache: one signature, several back ends, held equal by a test.

**The batch.** New tokens of several sequences are laid end to end; no rectangle of tokens exists. A
batch of three sequences that bring 1, 4 and 2 new tokens has n = 7 rows; `counts` is (1, 4, 2). The
length of a table includes the new tokens, so those of sequence i stand at the positions length -
counts[i] .. length - 1. Example, block size 4, one sequence of 6 tokens in blocks 9 and 2 that
brings 2 more: length 8, positions (6, 7), slots (2*4+2, 2*4+3) = (10, 11).

**The back ends.** Each takes (batch, cache) and gives the `attend` that the layers call: it stores
the new keys and values at the batch's slots, then lets every query row see its own sequence up to
its own position (a mask by absolute positions: a chunk after a cache is not a prompt). Here:

* `reference_attention`, one sequence at a time in plain arithmetic: the page to read, and what the
  others are tested against;
* `sdpa_attention`, PyTorch's fused attention on gathered pages, for any device.

On CUDA, `attention_triton.py` reads the pages where they lie; `attention_choice.py` decides which
a model gets. Axis letters: n tokens of a batch (its rows), t new positions of a sequence, s key
positions, h query heads, k KV heads, d head size, nb blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lr.kvcache.branch import BlockTable, block_rows
from lr.kvcache.cache import PagedKVCache, integers
from lr.model.layers import Attend


@dataclass(frozen=True)
class RaggedBatch:
    """What one forward needs to know, besides the cache.

    `rows` [3, n] are `tokens` [n] ids, `positions` [n] and `slots` [n], flat cache slots that
    receive the new K/V; per sequence `counts` and its block table; `logit_rows` [m]: those of the n
    rows that need logits (None: all). `source`: what `build` made it of.
    """

    rows: Tensor
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    counts: tuple[int, ...]
    tables: tuple[BlockTable, ...]
    logit_rows: Tensor | None
    source: tuple[Any, ...] = field(repr=False)

    @classmethod
    def build(
        cls,
        tables: Sequence[BlockTable],
        tokens: Sequence[Sequence[int]],
        slots: Sequence[int],
        wanted: Sequence[int],
        *,
        device: torch.device,
    ) -> RaggedBatch:
        """The batch that feeds `tokens[i]` to `tables[i]`, whose lengths already include them
        (inside `cache.append`), with logits after the last `wanted[i]` tokens of each. Example:
        counts (3, 1), wanted (2, 1): logits of the rows 1, 2 and 3.
        """
        counts = tuple(map(len, tokens))
        ids = [token for row in tokens for token in row]
        new = [range(t.length - n, t.length) for t, n in zip(tables, counts, strict=True)]
        positions = [position for some in new for position in some]
        logit_rows = None
        if sum(wanted) < len(ids):
            ends = zip(wanted, accumulate(counts), strict=True)
            logit_rows = integers([row for n, end in ends for row in range(end - n, end)], device)
        rows, source = integers((ids, positions, slots), device), (tables, tokens, slots, wanted)
        flat, at, where = rows.unbind(0)
        return cls(rows, flat, at, where, counts, tuple(tables), logit_rows, source)


@dataclass(frozen=True)
class RowPages:
    """n rows that each know their own pages, whichever sequences they belong to: `positions` [n]
    and `slots` [n] (int64), `blocks` [n, nb] (int32).

    The keys of a forward are stored before anybody looks, so a row at position p sees the first p +
    1 places of its pages, whatever other rows of its sequence stand beside it. Every index is a
    tensor and the shapes do not depend on how the rows are divided among sequences: what a CUDA
    graph needs (`graphs.py`, with an example).
    """

    positions: Tensor
    slots: Tensor
    blocks: Tensor

    @classmethod
    def of(cls, batch: RaggedBatch) -> RowPages:
        """The rows of a ragged batch, each with the pages of its sequence."""
        owners = zip(batch.tables, batch.counts, strict=True)
        rows = block_rows([table for table, count in owners for _ in range(count)])
        blocks = integers(rows, batch.tokens.device, torch.int32)
        return cls(batch.positions, batch.slots, blocks)


@dataclass(frozen=True)
class AttentionKind:
    """One way to compute attention over the cache. `ragged` serves any batch; `rows`, if there is
    such a form, rows with pages of their own, by kernels only that a CUDA graph can record.
    """

    name: str
    ragged: Callable[[RaggedBatch, PagedKVCache], Attend]
    rows: Callable[[RowPages, PagedKVCache], Attend] | None = None


def reference_attention(batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    """softmax(q k^T / sqrt(d)) v, one sequence after another, with an explicit causal mask."""
    device = batch.tokens.device

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        mixed, start = [], 0
        for count, table in zip(batch.counts, batch.tables, strict=True):
            rows = slice(start, start + count)
            start += count
            pages = cache.gather(layer, torch.tensor([table.blocks], device=device))
            group = q.shape[1] // k.shape[1]
            keys, values = (  # [s, h, d]: query heads share a KV head
                page[0, : table.length].repeat_interleave(group, dim=1) for page in pages
            )
            scores = torch.einsum("thd,shd->hts", q[rows], keys) / math.sqrt(q.shape[-1])
            places = torch.arange(table.length, device=device)
            later = places[None, :] > batch.positions[rows, None]  # [t, s]
            weights = scores.masked_fill(later, -math.inf).softmax(-1)
            mixed.append(torch.einsum("hts,shd->thd", weights, values))
        return torch.cat(mixed)

    return attend


def without_cudnn(device: torch.device) -> None:
    """On CUDA, keep PyTorch from cuDNN's attention, its first choice on new GPUs: it plans anew for
    each length of the keys, which takes 23 to 37 ms, and is wrong for few KV heads on some cards.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


# PyTorch's fused attention. Sequences are put into groups, one fused call per layer for each group:
# every row looks at the blocks of all sequences of its group, and a mask hides what is not its own.
# The forks of one problem share most of their blocks, so they are one group, and each shared block
# is read once. Others join where that is less work than a call of their own.
#
# Example, blocks of 4: sequence A has the blocks 0, 1 (7 tokens), its fork B the blocks 0, 2 (6
# tokens), each brings one token. Keys are those of the blocks 0, 1, 2, that is s = 12 columns.
# A sees the columns 0-3 and 4-6, B 0-3 and 8-9.

CALL = 4096
"""Looks (of a row at a column) that cost as much as another fused call, on a CPU."""
MOST_LOOKS = 1 << 20
"""The mask has a number for each look; more would be a waste of memory."""
LONG = 16
"""New tokens of a sequence from which on it is read by itself."""
NOWHERE = 1 << 62
"""How far a block that a sequence does not have lies after all of its tokens."""


def sdpa_attention(batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    """One fused call per layer for each group of sequences."""
    without_cudnn(batch.tokens.device)
    groups = _groups(batch, cache)
    looks = [_read(batch, cache, members, blocks) for members, blocks in groups]
    rows: list[Tensor] = []
    if len(groups) > 1:  # a single one has all rows, in their order
        starts, device = [0, *accumulate(batch.counts)], batch.tokens.device
        for members, _ in groups:
            own = [r for i in members for r in range(starts[i], starts[i + 1])]
            rows.append(integers(own, device))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        if not rows:
            return looks[0](layer, q)
        mixed = torch.empty_like(q)
        for own, look in zip(rows, looks, strict=True):
            mixed[own] = look(layer, q[own])
        return mixed

    return attend


def _groups(batch: RaggedBatch, cache: PagedKVCache) -> list[tuple[list[int], list[int]]]:
    """The groups of a batch, each the numbers of its sequences and the blocks they are read from.

    Those that begin with the same block are forks of one prompt. A sequence that brings many tokens
    is read by itself, where no mask is needed. All groups become one if that is less work.
    """
    families: dict[int, list[int]] = {}
    for i, (count, table) in enumerate(zip(batch.counts, batch.tables, strict=True)):
        alone = count >= LONG and count * len(table.blocks) * cache.block_size > CALL
        families.setdefault(~i if alone else table.blocks[0], []).append(i)
    everybody = list(range(len(batch.tables)))
    together = [(everybody, _blocks(batch, cache, everybody))]

    def looks(groups: list[tuple[list[int], list[int]]]) -> int:
        sizes = ((sum(batch.counts[i] for i in some), len(blocks)) for some, blocks in groups)
        return sum(rows * nb * cache.block_size for rows, nb in sizes)

    calls = CALL * len(families)
    if len(families) == 1 or (work := looks(together)) <= min(MOST_LOOKS, calls):
        return together
    groups = [(members, _blocks(batch, cache, members)) for members in families.values()]
    return together if work <= min(MOST_LOOKS, 2 * looks(groups) + calls) else groups


def _blocks(batch: RaggedBatch, cache: PagedKVCache, members: Sequence[int]) -> list[int]:
    """The blocks of these sequences. Where they lie close together, those in between are taken
    along: then all are read where they lie, and nothing need be gathered. What others have in them
    is hidden by the mask; free ones, which may contain NaN, are cleared.
    """
    own, alone = batch.tables[members[0]].blocks, len(members) == 1
    maskless = batch.tokens.is_cuda and batch.counts[members[0]] >= LONG  # FlashAttention: no mask
    if alone and (maskless or (own[-1] - own[0] == len(own) - 1 and own == sorted(own))):
        return own
    blocks = {block for i in members for block in batch.tables[i].blocks}
    whole = list(range(min(blocks), max(blocks) + 1))
    if len(whole) <= 2 * len(blocks):
        cache.clear_free(set(whole) - blocks)
        return whole
    return own if alone else sorted(blocks)


def _read(
    batch: RaggedBatch, cache: PagedKVCache, members: Sequence[int], blocks: Sequence[int]
) -> Callable[[int, Tensor], Tensor]:
    """look(layer, q [n, h, d]) -> [n, h, d], for the n rows of a group over the columns of its
    blocks. One sequence whose blocks are its own, in order, needs no column after its last token.
    """
    first, device = blocks[0], batch.tokens.device
    alone = len(members) == 1 and blocks is batch.tables[members[0]].blocks
    span = batch.tables[members[0]].length if alone else len(blocks) * cache.block_size
    count = batch.counts[members[0]]
    long = alone and count >= LONG
    causal = long and count == span  # a prompt with nothing before it
    bias: Tensor | None = None
    if long and not causal and device.type == "cuda":  # FlashAttention takes this, not a mask
        from torch.nn.attention.bias import causal_lower_right  # imported here: it takes a second

        bias = causal_lower_right(count, span)
    elif not causal and not (alone and count == 1):
        bias = _bias(batch, cache, members, blocks)[:, :span]
    in_place = list(blocks) == list(range(first, first + len(blocks)))
    pages = None if in_place else integers([blocks], device)
    if pages is None:  # read where they lie: the views of all layers at once
        views = cache.stretch(first * cache.block_size, span)
    folded: Tensor | None = None

    def look(layer: int, q: Tensor) -> Tensor:
        nonlocal folded
        n, h, d = q.shape
        if pages is None:
            keys, values = views[0][layer], views[1][layer]  # [1, k, s, d]
        else:
            keys, values = (page[:, :span].transpose(1, 2) for page in cache.gather(layer, pages))
        k = keys.shape[1]
        if long:
            heads = q.transpose(0, 1)[None]  # [1, h, n, d]
            mixed = F.scaled_dot_product_attention(
                heads, keys, values, attn_mask=bias, is_causal=causal, enable_gqa=True
            )
            return mixed[0].transpose(0, 1)
        # few rows: the query heads that share a KV head are rows of one matrix, [1, k, n * h/k, d]
        if n == 1:
            rows = q.view(1, k, -1, d)
            mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=bias)
            return mixed.reshape(1, h, d)
        if folded is None and bias is not None:
            folded = bias.repeat_interleave(h // k, dim=0)
        rows = q.view(n, k, -1, d).transpose(0, 1).reshape(1, k, -1, d)
        mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=folded)
        return mixed.reshape(k, n, -1, d).transpose(0, 1).reshape(n, h, d)

    return look


def _bias(
    batch: RaggedBatch, cache: PagedKVCache, members: Sequence[int], blocks: Sequence[int]
) -> Tensor:
    """[n, s] for the n rows of these sequences: 0 where a row sees a column, -inf elsewhere."""
    size, place = cache.block_size, {block: index for index, block in enumerate(blocks)}
    # [b, nb]: how many places, from the first of a block on, the first new token of a sequence
    # sees; < 1: none, >= size: all
    seen = []
    for i in members:
        table, count = batch.tables[i], batch.counts[i]
        row = [-NOWHERE] * len(blocks)
        for start, block in enumerate(table.blocks):
            row[place[block]] = table.length - count + 1 - start * size
        seen.append(row)
    counts = [batch.counts[i] for i in members]
    rows = np.array(seen)
    if set(counts) != {1}:  # each later token of a sequence sees one place more
        later = [n for count in counts for n in range(count)]
        rows = rows.repeat(counts, axis=0) + np.array(later)[:, None]
    hidden = (np.arange(size) >= rows[:, :, None]).reshape(len(rows), -1)
    bias = torch.zeros(hidden.shape, dtype=cache.keys.dtype, pin_memory=batch.tokens.is_cuda)
    bias.masked_fill_(torch.from_numpy(hidden), -math.inf)  # NumPy's calls cost less than PyTorch's
    return bias.to(batch.tokens.device, non_blocking=True)


REFERENCE = AttentionKind("reference", reference_attention)
SDPA = AttentionKind("sdpa", sdpa_attention)
