"""Attention over a paged cache: one interface with several kinds, which tests hold
equal.

**The batch.** The new tokens of several sequences are concatenated, without padding.
Three sequences with 1, 4 and 2 new tokens are a batch of n = 7 rows; `counts` is (1, 4,
2). A table's length includes the new tokens, so those of sequence i have the positions
length - counts[i] .. length - 1. Example, block size 4, one sequence of 6 tokens in
blocks 9 and 2 with 2 new tokens: length 8, positions (6, 7), slots (2*4+2, 2*4+3) =
(10, 11).

**The kinds.** Each takes (batch, cache) and returns the `attend` that the layers call.
`attend` stores the new keys and values in the batch's slots. Then each query row sees
its own sequence up to its own position; the mask compares absolute positions, because a
chunk after a cache is no prompt.

* `reference_attention` takes one sequence at a time, in plain arithmetic. Read it
  first; the others are tested against it.
* `sdpa_attention` is PyTorch's fused attention on gathered pages, for any device.
* On CUDA, `lr/kernels` reads the pages in place: FlashAttention, if it is installed
  (`flash.py`), or our own kernel (`attention.py`).

`attention_choice.py` decides which kind a model gets. Axes: n tokens of a batch (its
rows), t new positions of a sequence, s key positions, h query heads, k KV heads, d head
size, nb blocks, m tiles. Read next: `lr/kvcache/pool.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lr.kvcache.branch import BlockTable, Tables, block_rows
from lr.kvcache.cache import PagedKVCache, integers
from lr.model.layers import Attend, RMSNorm


@dataclass(frozen=True)
class RaggedBatch:
    """What one forward needs to know besides the cache.

    `rows` [3, n] holds `tokens` [n], `positions` [n] and `slots` [n], the cache slots
    of the new K/V. `counts` and `tables` have one entry per sequence. `logit_rows`: the
    rows that need logits. `source`: the arguments of `build`.
    """

    rows: Tensor
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    counts: tuple[int, ...]
    tables: tuple[BlockTable, ...]
    logit_rows: Tensor
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
        ids: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        for table, new, num_logits in zip(tables, tokens, wanted, strict=True):
            ids += new
            positions += range(table.length - len(new), table.length)
            logit_rows += range(len(ids) - num_logits, len(ids))
        rows = integers((ids, positions, slots), device)
        flat, at, places = rows.unbind(0)
        counts = tuple(map(len, tokens))
        wanted_rows = integers(logit_rows, device)
        source = (tables, tokens, slots, wanted)
        return cls(rows, flat, at, places, counts, tuple(tables), wanted_rows, source)


@dataclass(frozen=True)
class Tiles:
    """n rows, cut into m *tiles*: consecutive rows of one sequence, which a kernel
    computes together, so that they read the keys once.

    Tile i has the rows borders[i] .. borders[i + 1] - 1 and the pages
    blocks[owners[i]]; it may be empty. `longest`: the rows of the largest. Example:
    counts (1, 20) in tiles of at most 16 rows: borders (0, 1, 17, 21), owners (0, 1, 1).

    Every index is a tensor, and the shapes depend only on n, m and nb, as a CUDA graph
    needs (`graphs.py`). A forward stores its keys before any row reads them. So a row at
    position p sees the first p + 1 places of its pages, whichever other rows of its
    sequence are in the batch.
    """

    positions: Tensor  # [n] int64
    slots: Tensor  # [n] int64
    borders: Tensor  # [m + 1] int32
    owners: Tensor  # [m] int32
    blocks: Tensor  # [rows of tables, nb] int32
    longest: int

    @classmethod
    def of(cls, batch: RaggedBatch, tile: int) -> Tiles:
        """The tiles of a batch, of at most `tile` rows each."""
        device = batch.tokens.device
        borders, owners = cut_tiles(batch.counts, tile)
        return cls(
            batch.positions,
            batch.slots,
            integers(borders, device, torch.int32),
            integers(owners, device, torch.int32),
            integers(block_rows(batch.tables), device, torch.int32),
            min(tile, max(batch.counts)),
        )


def cut_tiles(counts: Sequence[int], tile: int) -> tuple[list[int], list[int]]:
    """The borders of the tiles of sequences with `counts` rows, and their owners."""
    borders, owners = [0], list[int]()
    for owner, count in enumerate(counts):
        for first in range(0, count, tile):
            borders.append(borders[-1] + min(tile, count - first))
            owners.append(owner)
    return borders, owners


@dataclass(frozen=True)
class AttentionKind:
    """One way to compute attention over the cache. `ragged` takes any batch. `tiles`, if
    given, runs only kernels that a CUDA graph can record; recorded tiles have at most
    `tile` rows. `install`: makes a model's layers and last norm run on the kernels that
    go with it.
    """

    name: str
    ragged: Callable[[RaggedBatch, PagedKVCache], Attend]
    tiles: Callable[[Tiles, PagedKVCache], Attend] | None = None
    tile: int = 8
    install: Callable[[nn.ModuleList, RMSNorm], None] | None = None


def reference_attention(batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    """softmax(q k^T / sqrt(d)) v, one sequence at a time, with an explicit causal
    mask."""
    device, counts = batch.tokens.device, batch.counts

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        mixed = []
        for rows, positions, table in zip(
            q.split(counts), batch.positions.split(counts), batch.tables, strict=True
        ):
            pages = cache.gather(layer, torch.tensor([table.blocks], device=device))
            group = q.shape[1] // k.shape[1]
            keys, values = (  # [s, h, d]: query heads share a KV head
                page[0, : table.length].repeat_interleave(group, dim=1)
                for page in pages
            )
            scores = torch.einsum("thd,shd->hts", rows, keys) / math.sqrt(q.shape[-1])
            places = torch.arange(table.length, device=device)
            later = places > positions[:, None]  # [t, s]
            weights = scores.masked_fill(later, -math.inf).softmax(-1)
            mixed.append(torch.einsum("hts,shd->thd", weights, values))
        return torch.cat(mixed)

    return attend


CALL = 4096  # looks (of a row at a column) that take as long as another call, on a CPU
MOST_LOOKS = 1 << 20  # the mask has a number per look; a larger one would waste memory
LONG = 16  # with so many new tokens, one sequence has no use for a mask of its own
_Call = Callable[[int, Tensor], Tensor]
"""call(layer, q [n, h, d]) -> [n, h, d]: one fused attention of n rows."""


def sdpa_attention(batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    """PyTorch's fused attention: one call for all sequences, or one for each.

    Forks of one prompt share most of their blocks. In one call, every row reads the
    blocks of all sequences once, and a mask hides those of others. Example, blocks of
    4: A has blocks 0, 1 (7 tokens), its fork B has blocks 0, 2 (6 tokens), and each has
    one new token. The keys of blocks 0, 1, 2 are s = 12 columns. A sees columns 0-3 and
    4-6, B sees 0-3 and 8-9.
    """
    # 1. Together or apart? One call saves others, unless most of it would be hidden.
    tables, counts = batch.tables, batch.counts
    pairs = [*zip(tables, counts, strict=True)]
    all_blocks = {block for table in tables for block in table.blocks}
    together = len(batch.tokens) * len(all_blocks) * cache.block_size
    apart = sum(count * table.length for table, count in pairs)
    limit = min(MOST_LOOKS, 2 * apart + CALL * len(tables))

    # 2. What each call reads, the same in every layer.
    if len(tables) > 1 and together > limit:
        calls = [_call(cache, [table], [count]) for table, count in pairs]
    else:
        calls = [_call(cache, tables, counts)]

    def read(layer: int, q: Tensor) -> Tensor:
        if len(calls) == 1:
            return calls[0](layer, q)
        parts = zip(calls, q.split(counts), strict=True)
        return torch.cat([call(layer, rows) for call, rows in parts])

    # 3. In a layer: store the new keys and values, then read.
    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, batch.slots, k, v)
        if q.is_cpu:
            return read(layer, q)
        with flash_or_plain(q.device):
            return read(layer, q)

    return attend


def flash_or_plain(device: torch.device) -> AbstractContextManager[None]:
    """On CUDA, without cuDNN's attention, which PyTorch prefers on new GPUs. It makes a
    new plan for each length of the keys, in 23 to 37 ms, and is wrong for few KV heads
    on some cards.
    """
    if device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )


def _call(cache: PagedKVCache, tables: Tables, counts: Sequence[int]) -> _Call:
    """One fused call for the new rows of these sequences."""
    # 1. The blocks that are read, and how many of their columns.
    alone = len(tables) == 1
    count = counts[0]
    table = tables[0]
    prompt = alone and count >= LONG
    blocks = table.blocks if prompt else _blocks(cache, tables)
    alone = alone and blocks == table.blocks  # nothing between its blocks is read
    span = table.length if alone else len(blocks) * cache.block_size
    read = _reader(cache, blocks, span)

    # 2. The mask. A single row sees all that it reads; so do the rows of a prompt with
    # nothing before it, up to themselves.
    causal = prompt and count == span
    mask: Any = None
    if prompt and not causal and cache.keys.is_cuda:
        from torch.nn.attention.bias import causal_lower_right  # takes a second

        mask = causal_lower_right(count, span)  # FlashAttention takes no other mask
    elif not causal and not (alone and count == 1):
        mask = _mask(cache, tables, counts, blocks)[:, :span]

    @functools.cache  # once for all layers
    def mask_of_heads(group: int) -> Tensor:
        return mask.repeat_interleave(group, dim=0)

    def call(layer: int, q: Tensor) -> Tensor:
        keys, values = read(layer)
        n, h, d = q.shape
        k = keys.shape[1]
        if prompt:
            rows = q.transpose(0, 1)[None]  # [1, h, n, d]
            mixed = F.scaled_dot_product_attention(
                rows, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=True
            )
            return mixed[0].transpose(0, 1)
        # 3. With few rows, the query heads of a KV head are rows of one matrix,
        # [1, k, n * h/k, d]: up to three times as fast. A single row has them in this
        # order already.
        if n == 1:
            rows = q.view(1, k, -1, d)
            mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
            return mixed.reshape(1, h, d)
        rows = q.view(n, k, -1, d).transpose(0, 1).reshape(1, k, -1, d)
        mixed = F.scaled_dot_product_attention(
            rows, keys, values, attn_mask=mask_of_heads(h // k)
        )
        return mixed.reshape(k, n, -1, d).transpose(0, 1).reshape(n, h, d)

    return call


def _reader(
    cache: PagedKVCache, blocks: list[int], span: int
) -> Callable[[int], Sequence[Tensor]]:
    """read(layer) -> keys and values [1, k, span, d] in these blocks: in place if they
    are in a row, else gathered. One row and 2048 columns of 8 KV heads of 128 (float32,
    one thread) take 0.9 ms in place and 2.4 ms gathered.
    """
    start = blocks[0]
    if blocks == [*range(start, start + len(blocks))]:
        keys, values = cache.stretch(start * cache.block_size, span)
        return lambda layer: (keys[layer], values[layer])
    pages = integers([blocks], cache.keys.device)
    # [1, nb * block_size, k, d] to [1, k, span, d]
    return lambda layer: [
        memory[:, :span].transpose(1, 2) for memory in cache.gather(layer, pages)
    ]


def _blocks(cache: PagedKVCache, tables: Tables) -> list[int]:
    """The blocks that these sequences read. If they are close together, the blocks
    between them are read too: then all can be read in place. The mask hides other
    sequences' blocks; free ones, which may contain NaN, are cleared.
    """
    blocks = {block for table in tables for block in table.blocks}
    stretch = [*range(min(blocks), max(blocks) + 1)]
    if len(stretch) <= 2 * len(blocks):
        cache.clear_free(set(stretch) - blocks)
        return stretch
    return tables[0].blocks if len(tables) == 1 else sorted(blocks)


def _mask(
    cache: PagedKVCache, tables: Tables, counts: Sequence[int], blocks: Sequence[int]
) -> Tensor:
    """[n, s] for the n rows of these sequences: 0 where a row sees a column, -inf
    elsewhere."""
    size = cache.block_size
    column_of = {block: index for index, block in enumerate(blocks)}
    # 1. Which of its positions each sequence has in each column, [b, s]; in others'
    # blocks, one later than all.
    held = np.full((len(tables), len(blocks), size), 1 << 62)
    for row, table in enumerate(tables):
        columns = [column_of[block] for block in table.blocks]
        held[row, columns] = np.arange(len(columns) * size).reshape(-1, size)
    # 2. A row sees the columns up to its own position.
    rows = zip(tables, counts, strict=True)
    positions = [np.arange(table.length - n, table.length) for table, n in rows]
    held = held.reshape(len(tables), -1).repeat(counts, axis=0)  # [n, s]
    hidden = held > np.concatenate(positions)[:, None]
    keys = cache.keys
    mask = torch.zeros(hidden.shape, dtype=keys.dtype, pin_memory=keys.is_cuda)
    mask.masked_fill_(torch.from_numpy(hidden), -math.inf)  # NumPy is faster here
    return mask.to(keys.device, non_blocking=True)


REFERENCE = AttentionKind("reference", reference_attention)
SDPA = AttentionKind("sdpa", sdpa_attention)
