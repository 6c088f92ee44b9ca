"""Attention over a paged cache: one interface with several kinds, which tests hold
equal.

**The batch.** The new tokens of several sequences are concatenated, without padding. Three
sequences with 1, 4 and 2 new tokens are a batch of n = 7 rows; `counts` is (1, 4, 2). A table's
length includes the new tokens, so those of sequence i have the positions length - counts[i] ..
length - 1. Example, block size 4, one sequence of 6 tokens in blocks 9 and 2 with 2 new tokens:
length 8, positions (6, 7), slots (2*4+2, 2*4+3) = (10, 11).

**The kinds.** Each takes (batch, cache) and returns the `attend` that the layers call. `attend`
stores the new keys and values in the batch's slots. Then each query row sees its own sequence up to
its own position; the mask compares absolute positions, because a chunk after a cache is no prompt.

* `reference_attention` takes one sequence at a time, in plain arithmetic. Read it first; the others
  are tested against it.
* `sdpa_attention` is PyTorch's fused attention on gathered pages, for any device.

On CUDA, the kernel in `attention_triton.py` reads the pages in place.
`attention_choice.py` decides which kind a model gets. Axes: n tokens of a batch (its
rows), t new positions of a sequence, s key positions, h query heads, k KV heads, d head
size, nb blocks.
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
    """What one forward needs to know besides the cache.

    `rows` [3, n] holds `tokens` [n], `positions` [n] and `slots` [n], the cache slots
    of the new K/V. `counts` and `tables` have one entry per sequence. `logit_rows` [m]:
    the rows that need logits (None: all). `source`: the arguments of `build`.
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
        """Feed `tokens[i]` to `tables[i]`, whose length already includes them (inside
        `cache.append`), with logits after the last `wanted[i]` tokens. Example: counts
        (3, 1) and wanted (2, 1) give the logits of rows 1, 2 and 3.
        """
        counts = tuple(map(len, tokens))
        ids = [token for row in tokens for token in row]
        new = [
            range(t.length - n, t.length) for t, n in zip(tables, counts, strict=True)
        ]
        positions = [position for some in new for position in some]
        logit_rows = None
        if sum(wanted) < len(ids):
            ends = zip(wanted, accumulate(counts), strict=True)
            logit_rows = integers(
                [row for n, end in ends for row in range(end - n, end)], device
            )
        rows, source = (
            integers((ids, positions, slots), device),
            (tables, tokens, slots, wanted),
        )
        flat, at, where = rows.unbind(0)
        return cls(rows, flat, at, where, counts, tuple(tables), logit_rows, source)


@dataclass(frozen=True)
class RowPages:
    """n rows with their own pages: `positions` and `slots` [n] (int64), `blocks` [n,
    nb] (int32).

    A forward stores its keys before any row reads them. So a row at position p sees the
    first p + 1 places of its pages, whichever other rows of its sequence are in the
    batch. Every index is a tensor, and the shapes depend only on n and nb, as a CUDA
    graph needs (example: `graphs.py`).
    """

    positions: Tensor
    slots: Tensor
    blocks: Tensor

    @classmethod
    def of(cls, batch: RaggedBatch) -> RowPages:
        """The rows of a batch, each with the pages of its sequence."""
        owners = zip(batch.tables, batch.counts, strict=True)
        rows = block_rows([table for table, count in owners for _ in range(count)])
        blocks = integers(rows, batch.tokens.device, torch.int32)
        return cls(batch.positions, batch.slots, blocks)


@dataclass(frozen=True)
class AttentionKind:
    """One way to compute attention over the cache. `ragged` takes any batch. `rows`, if
    given, takes rows with their own pages, and runs only kernels that a CUDA graph can
    record.
    """

    name: str
    ragged: Callable[[RaggedBatch, PagedKVCache], Attend]
    rows: Callable[[RowPages, PagedKVCache], Attend] | None = None


def reference_attention(batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    """softmax(q k^T / sqrt(d)) v, one sequence at a time, with an explicit causal
    mask."""
    device, counts = batch.tokens.device, batch.counts

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        mixed, places = [], batch.positions.split(counts)
        for rows, positions, table in zip(
            q.split(counts), places, batch.tables, strict=True
        ):
            pages = cache.gather(layer, torch.tensor([table.blocks], device=device))
            group = q.shape[1] // k.shape[1]
            keys, values = (  # [s, h, d]: query heads share a KV head
                page[0, : table.length].repeat_interleave(group, dim=1)
                for page in pages
            )
            scores = torch.einsum("thd,shd->hts", rows, keys) / math.sqrt(q.shape[-1])
            later = (
                torch.arange(table.length, device=device) > positions[:, None]
            )  # [t, s]
            weights = scores.masked_fill(later, -math.inf).softmax(-1)
            mixed.append(torch.einsum("hts,shd->thd", weights, values))
        return torch.cat(mixed)

    return attend


def without_cudnn(device: torch.device) -> None:
    """On CUDA, switch off cuDNN's attention, which PyTorch prefers on new GPUs. It
    makes a new plan for each length of the keys, in 23 to 37 ms, and is wrong for few
    KV heads on some cards.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


# PyTorch's fused attention runs once per layer for each group of sequences. Every row of a group
# reads the blocks of all sequences of the group, and a mask hides those of other sequences. The
# forks of one prompt form a group: they share most of their blocks, which are read once. Groups
# are merged where that is less work than several calls.
#
# Example, blocks of 4: sequence A has blocks 0, 1 (7 tokens), its fork B has blocks 0, 2 (6
# tokens), and each has one new token. The keys of blocks 0, 1, 2 are s = 12 columns. A sees columns
# 0-3 and 4-6, B sees 0-3 and 8-9.

CALL = 4096  # looks (of a row at a column) that take as long as another fused call, on a CPU
MOST_LOOKS = (
    1 << 20
)  # the mask has a number per look, and a larger one would waste memory
LONG = 16  # with at least this many new tokens, a sequence may form its own group


def sdpa_attention(batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    """One fused call per layer and group of sequences."""
    without_cudnn(batch.tokens.device)
    groups = _groups(batch, cache)
    looks = [_read(batch, cache, members, blocks) for members, blocks in groups]
    rows: list[Tensor] = []
    if len(groups) > 1:  # a single group has all rows, in order
        starts, device = [0, *accumulate(batch.counts)], batch.tokens.device
        for members, _ in groups:
            own = [row for i in members for row in range(starts[i], starts[i + 1])]
            rows.append(integers(own, device))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        if not rows:
            return looks[0](layer, q)
        mixed = torch.empty_like(q)
        for some, look in zip(rows, looks, strict=True):
            mixed[some] = look(layer, q[some])
        return mixed

    return attend


def _groups(
    batch: RaggedBatch, cache: PagedKVCache
) -> list[tuple[list[int], list[int]]]:
    """The groups of a batch, each with the numbers of its sequences and the blocks that
    they read.

    Sequences with the same first block are forks of one prompt. A sequence with many
    new tokens has its own group, which needs no mask. All groups become one if that is
    less work.
    """
    families: dict[int, list[int]] = {}
    for i, (count, table) in enumerate(zip(batch.counts, batch.tables, strict=True)):
        alone = count >= LONG and count * len(table.blocks) * cache.block_size > CALL
        families.setdefault(~i if alone else table.blocks[0], []).append(i)
    everybody = list(range(len(batch.tables)))
    together = [(everybody, _blocks(batch, cache, everybody))]

    def looks(groups: list[tuple[list[int], list[int]]]) -> int:
        sizes = (
            (sum(batch.counts[i] for i in some), len(blocks)) for some, blocks in groups
        )
        return sum(rows * nb * cache.block_size for rows, nb in sizes)

    calls = CALL * len(families)
    if len(families) == 1 or (work := looks(together)) <= min(MOST_LOOKS, calls):
        return together
    groups = [
        (members, _blocks(batch, cache, members)) for members in families.values()
    ]
    return together if work <= min(MOST_LOOKS, 2 * looks(groups) + calls) else groups


def _blocks(
    batch: RaggedBatch, cache: PagedKVCache, members: Sequence[int]
) -> list[int]:
    """The blocks that these sequences read. If they are close together, the blocks
    between them are read too: then all can be read in place, without gathering. The
    mask hides other sequences' blocks; free ones, which may contain NaN, are cleared.
    """
    own, alone = batch.tables[members[0]].blocks, len(members) == 1
    maskless = (
        batch.tokens.is_cuda and batch.counts[members[0]] >= LONG
    )  # for FlashAttention
    if alone and (
        maskless or (own[-1] - own[0] == len(own) - 1 and own == sorted(own))
    ):
        return own
    blocks = {block for i in members for block in batch.tables[i].blocks}
    whole = list(range(min(blocks), max(blocks) + 1))
    if len(whole) <= 2 * len(blocks):
        cache.clear_free(set(whole) - blocks)
        return whole
    return own if alone else sorted(blocks)


def _read(
    batch: RaggedBatch,
    cache: PagedKVCache,
    members: Sequence[int],
    blocks: Sequence[int],
) -> Callable[[int, Tensor], Tensor]:
    """Returns look(layer, q [n, h, d]) -> [n, h, d] for the n rows of a group, over the
    columns of its blocks. One sequence that reads only its own blocks needs no column
    after its last token.
    """
    first, device = blocks[0], batch.tokens.device
    alone = len(members) == 1 and blocks is batch.tables[members[0]].blocks
    span = batch.tables[members[0]].length if alone else len(blocks) * cache.block_size
    count = batch.counts[members[0]]
    long = alone and count >= LONG
    causal = long and count == span  # a prompt with nothing before it
    bias: Tensor | None = None
    if (
        long and not causal and device.type == "cuda"
    ):  # FlashAttention takes no other mask
        from torch.nn.attention.bias import (
            causal_lower_right,  # importing it takes a second
        )

        bias = causal_lower_right(count, span)
    elif not causal and not (alone and count == 1):
        bias = _bias(batch, cache, members, blocks)[:, :span]
    in_place = list(blocks) == list(range(first, first + len(blocks)))
    pages = None if in_place else integers([blocks], device)
    if pages is None:  # read in place: views of all layers
        views = cache.stretch(first * cache.block_size, span)
    folded: Tensor | None = None

    def look(layer: int, q: Tensor) -> Tensor:
        nonlocal folded
        n, h, d = q.shape
        if pages is None:
            keys, values = views[0][layer], views[1][layer]  # [1, k, s, d]
        else:
            keys, values = (
                page[:, :span].transpose(1, 2) for page in cache.gather(layer, pages)
            )
        k = keys.shape[1]
        if long:
            heads = q.transpose(0, 1)[None]  # [1, h, n, d]
            mixed = F.scaled_dot_product_attention(
                heads, keys, values, attn_mask=bias, is_causal=causal, enable_gqa=True
            )
            return mixed[0].transpose(0, 1)
        # Few rows: the query heads of a KV head become rows of one matrix, [1, k, n *
        # h/k, d].
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
    batch: RaggedBatch,
    cache: PagedKVCache,
    members: Sequence[int],
    blocks: Sequence[int],
) -> Tensor:
    """[n, s] for the n rows of these sequences: 0 where a row sees a column, -inf
    elsewhere."""
    size, place = cache.block_size, {block: index for index, block in enumerate(blocks)}
    # [b, nb]: how many places of a block, and of those after it, a sequence's first new
    # token sees; below 1: none, from `size` on: all
    counts = [batch.counts[i] for i in members]
    seen = []
    for i in members:
        row, first = (
            [-(1 << 62)] * len(blocks),
            batch.tables[i].length - batch.counts[i],
        )
        for index, block in enumerate(batch.tables[i].blocks):
            row[place[block]] = first + 1 - index * size
        seen.append(row)
    rows = np.array(seen)
    if set(counts) != {1}:  # each further new token sees one place more
        later = [n for count in counts for n in range(count)]
        rows = rows.repeat(counts, axis=0) + np.array(later)[:, None]
    hidden = (np.arange(size) >= rows[:, :, None]).reshape(len(rows), -1)
    bias = torch.zeros(
        hidden.shape, dtype=cache.keys.dtype, pin_memory=batch.tokens.is_cuda
    )
    bias.masked_fill_(torch.from_numpy(hidden), -math.inf)  # NumPy is faster here
    return bias.to(batch.tokens.device, non_blocking=True)


REFERENCE = AttentionKind("reference", reference_attention)
SDPA = AttentionKind("sdpa", sdpa_attention)
