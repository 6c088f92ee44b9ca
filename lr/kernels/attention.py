"""Attention that reads pages in place: a Triton kernel for any page size, in bf16, fp16
and fp32. Triton comes with PyTorch for CUDA.

The queries are cut into *tiles* of a few tokens of one sequence (`Tiles`). One program
computes one tile and KV head over one part of the keys. It reads the keys in pieces of
`BLOCK_S`, looks up their pages in the block table, and keeps a running softmax (Milakov
and Gimelshein, arXiv 1805.02867). With m the largest score so far, l the sum of
exp(score - m) and acc the sum of exp(score - m) * value, a new piece with maximum m'
changes them to

    m_new = max(m, m')     l_new = l * exp(m - m_new) + sum exp(score - m_new)     acc likewise

and acc / l is the result. A decoding step has too few tiles to occupy a GPU. So the
keys are divided into `splits` parts (flash decoding), and `_combine` adds their results
with the weights exp(m) l.

A tile of 2 tokens with 4 query heads per KV head is a matrix of 8 rows: row r is token
r // 4 and head r % 4. Axes: n tokens, h query heads, k KV heads, d head size, nb blocks
of a table, m tiles.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from lr.kernels.fused import begin, chained, store
from lr.kernels.install import install
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind, RaggedBatch, Tiles, sdpa_attention
from lr.model.layers import Attend

TILE = 16  # tokens of a tile of a prompt
ALONE = 512
"""From this many tokens on, a single sequence is faster in PyTorch's FlashAttention: a
prompt of 4,096 takes 0.54 ms a layer there and 0.75 here (Qwen3-8B on an H200)."""
PROGRAMS = 512  # about how many fill a GPU; with fewer tiles, the keys are divided


# These change from batch to batch. For each, Triton would compile several variants.
@triton.jit(
    do_not_specialize=["splits", "split_rows", "table_row"],
    do_not_specialize_on_alignment=["borders", "owners", "positions", "tables"],
)
def _kernel(  # type: ignore[no-untyped-def]
    q, keys, values, out, lses, borders, owners, positions, tables,
    scale, q_row, q_head, kv_slot, kv_head, splits, split_rows, table_row,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(borders + tile)  # its first row among the n
    count = tl.load(borders + tile + 1) - first  # its tokens
    if count == 0:
        return
    table = tables + tl.load(owners + tile).to(tl.int64) * table_row

    # 1. The queries [BLOCK_M, BLOCK_D] of the tile and KV head.
    r = tl.arange(0, BLOCK_M)
    row = first + r // GROUP
    query_head = head * GROUP + r % GROUP
    in_tile = r < count * GROUP
    position = tl.load(positions + row, mask=in_tile, other=0)  # [BLOCK_M]
    d = tl.arange(0, BLOCK_D)
    inside = d < D
    rows = in_tile[:, None] & inside[None, :]
    at = row.to(tl.int64) * q_row + query_head * q_head
    query = tl.load(q + at[:, None] + d[None, :], mask=rows, other=0.0)

    # 2. Which keys: this split's part of those that the tile's last token sees.
    length = tl.load(positions + first + count - 1) + 1
    part = tl.cdiv(tl.cdiv(length, splits), BLOCK_S) * BLOCK_S
    start = split * part
    stop = tl.minimum(start + part, length)

    # 3. The running softmax over them.
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for s0 in range(start, stop, BLOCK_S):
        s = s0 + tl.arange(0, BLOCK_S)
        block = tl.load(table + s // PAGE, mask=s < stop, other=0).to(tl.int64)
        slot = block * PAGE + s % PAGE
        key = slot * kv_slot + head.to(tl.int64) * kv_head  # [BLOCK_S]
        read = (s < stop)[:, None] & inside[None, :]
        k = tl.load(keys + key[:, None] + d[None, :], mask=read, other=0.0)
        v = tl.load(values + key[:, None] + d[None, :], mask=read, other=0.0)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        visible = (s[None, :] <= position[:, None]) & (s[None, :] < stop)
        scores = tl.where(visible & in_tile[:, None], scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, 1))
        # no NaN in a row that sees no key
        base = tl.where(m_new == float("-inf"), 0.0, m_new)
        weights = tl.exp(scores - base[:, None])
        fade = tl.exp(m - base)
        l = l * fade + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        acc = acc * fade[:, None] + mixed
        m = m_new

    # 4. The result of this part, and the weight that it has among the parts: -inf where
    # a row sees no key of this part, NaN where a score is NaN.
    lse = m + tl.log(l)
    to = split.to(tl.int64) * split_rows + row.to(tl.int64) * H + query_head
    tl.store(lses + to, lse, mask=in_tile)
    defined = tl.where(split == 0, in_tile, l != 0)  # every row sees the first key
    mask = defined[:, None] & inside[None, :]
    tl.store(out + to[:, None] * D + d[None, :], acc / l[:, None], mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _combine(  # type: ignore[no-untyped-def]
    out, lses, mixed, rows,
    SPLITS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)  # of [n, h]
    d = tl.arange(0, BLOCK_D)
    at = tl.arange(0, SPLITS) * rows + row
    lse = tl.load(lses + at)  # [SPLITS]
    weight = tl.exp(lse - tl.max(lse, 0))  # the largest is finite, or the result is NaN
    mask = (weight > 0)[:, None] & (d < D)[None, :]
    parts = tl.load(out + at[:, None] * D + d[None, :], mask=mask, other=0.0)
    mean = tl.sum(weight[:, None] * parts, 0) / tl.sum(weight, 0)
    tl.store(mixed + row * D + d, mean, mask=d < D)


def _ragged(batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    """Tiles of at most `TILE` tokens. A prompt alone goes to PyTorch."""
    alone = len(batch.counts) == 1 and batch.counts[0] >= ALONE
    if alone and cache.keys.element_size() == 2:  # as FlashAttention needs
        return sdpa_attention(batch, cache)
    tiles = Tiles.of(batch, TILE)
    return partial(_attend, cache, tiles, len(tiles.owners))


def _tiles(tiles: Tiles, cache: PagedKVCache) -> Attend:
    """In a recording every row may be a tile of its own, but most are empty."""
    expected = max(1, len(tiles.owners) // 4)
    return partial(_attend, cache, tiles, expected)


def _attend(
    cache: PagedKVCache, tiles: Tiles, expected: int,
    layer: int, q: Tensor, k: Tensor, v: Tensor,
) -> Tensor:  # fmt: skip
    """q [n, h, d], k and v [n, k, d] -> [n, h, d]; `expected`: the number of tiles for
    which the keys are divided."""
    pages = cache.pages[layer]  # keys and values [nb, block_size, k, d]
    store(pages, tiles.slots, k, v)
    n, h, d = q.shape
    kv_heads = k.shape[1]
    splits = max(1, min(64, PROGRAMS // (expected * kv_heads)))
    splits = 1 << splits.bit_length() - 1  # a power of two
    partial_dtype = torch.float32 if splits > 1 else q.dtype
    out = torch.empty(splits, n, h, d, dtype=partial_dtype, device=q.device)
    lses = torch.empty(splits, n, h, dtype=torch.float32, device=q.device)
    sizes = block_sizes(tiles.longest * (h // kv_heads), d, q.dtype)
    early = chained(q)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        _kernel[len(tiles.owners), kv_heads, splits](
            q, *pages, out, lses, tiles.borders, tiles.owners, tiles.positions,
            tiles.blocks, d**-0.5, q.stride(0), q.stride(1), *pages[0].stride()[1:3],
            splits, n * h, tiles.blocks.stride(0),
            H=h, GROUP=h // kv_heads, D=d, PAGE=cache.block_size, **sizes, **early,
        )  # fmt: skip
        if splits == 1:
            return out[0]
        mixed = torch.empty(n, h, d, dtype=q.dtype, device=q.device)
        wide = sizes["BLOCK_D"]
        _combine[n * h,](
            out, lses, mixed, n * h, SPLITS=splits, D=d, BLOCK_D=wide, **early
        )
    return mixed


def block_sizes(rows: int, d: int, dtype: torch.dtype) -> dict[str, int]:
    """Sizes for which the kernel is compiled, with tiles of `rows` rows. The stages of
    keys and values fit the shared memory of every GPU since sm_80 (99 KiB on sm_89).
    """
    block_m, block_d = (max(16, triton.next_power_of_2(size)) for size in (rows, d))
    query = block_m * block_d
    wide = dtype.itemsize // 2 * max(1, block_d // 128) * (1 + (query > 16384))
    block_s = max(16, 64 // wide)
    stages = 2
    if query == 8192 and wide == 1:
        # 64 rows of 128, the tiles of a recording of Qwen3-32B: from 192 to 146
        # microseconds a layer for 5 sequences of 16,000 keys (H200)
        block_s = 32
        stages = 3
    return {
        "BLOCK_M": block_m, "BLOCK_S": block_s, "BLOCK_D": block_d,
        "num_stages": stages, "num_warps": 8 if query > 8192 else 4,
    }  # fmt: skip


TRITON = AttentionKind("triton", _ragged, _tiles, install=install)
