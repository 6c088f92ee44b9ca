"""For tests of attention: a kind that is recorded without CUDA, random scenes in which
a kind is compared with the reference in fp64, and name spaces of FlashAttention."""

import importlib.util
import math
import random
import sys
from dataclasses import dataclass
from types import ModuleType
from unittest.mock import patch

import pytest
import torch
from kvcache_kit import small_cache

from lr.model.attention import AttentionKind, RaggedBatch, Tiles, reference_attention

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="the package triton is not installed",
)
LARGE = ((32, 8, 64), (28, 4, 128), (16, 8, 128), (8, 1, 256))
"""Query heads, KV heads and head dim of real models."""


def tile_attention(tiles, cache):
    """Like a kernel, it computes everything from the tensors when it is called: every
    row by itself, in plain arithmetic. What a kernel would read silently wrong (too few
    pages, a page that does not exist or is not finite) is an error. Rows in no tile
    stay zero.
    """
    assert (
        tiles.borders.dtype == tiles.owners.dtype == tiles.blocks.dtype == torch.int32
    )
    assert tiles.positions.dtype == tiles.slots.dtype == torch.int64

    def attend(layer, q, k, v):
        cache.write(layer, tiles.slots, k, v)
        counts = tiles.borders.diff()
        assert counts.min() >= 0 and counts.max() <= tiles.longest
        n = int(tiles.borders[-1])  # rows that are in a tile
        owners = tiles.owners.repeat_interleave(counts.long())
        group, scale = q.shape[1] // k.shape[1], 1 / math.sqrt(q.shape[-1])
        keys, values = (  # [n, s, h, d]
            page.repeat_interleave(group, dim=2)
            for page in cache.gather(layer, tiles.blocks[owners.long()])
        )
        places = torch.arange(keys.shape[1], device=q.device)
        at = tiles.positions[:n, None]
        assert at.max() < len(places), "too few pages"
        read = places - places % cache.block_size <= at  # [n, s]: whole pages
        assert keys[read].isfinite().all() and values[read].isfinite().all()
        later = places > at
        scores = torch.einsum("nhd,nshd->nhs", q[:n], keys) * scale
        weights = scores.masked_fill(later[:, None], -math.inf).softmax(-1)
        visible = values.masked_fill(later[:, :, None, None], 0)
        mixed = torch.zeros_like(q)
        mixed[:n] = torch.einsum("nhs,nshd->nhd", weights, visible)
        return mixed

    return attend


def ragged_tiles(batch, cache):
    return tile_attention(Tiles.of(batch, 3), cache)


TILES = AttentionKind("tiles", ragged_tiles, tile_attention, tile=4)


def padded(tiles, extra, slot):
    """The same rows as a recording holds them: more tiles, which are empty, more pages
    per table, and more rows, which are in no tile and write to `slot`."""
    n, m = len(tiles.positions), len(tiles.owners)
    blocks = tiles.blocks[tiles.owners.long()]
    wide = torch.zeros(
        m + extra, blocks.shape[1] + 2, dtype=blocks.dtype, device=blocks.device
    )
    wide[:m, :-2] = blocks
    return Tiles(
        torch.cat((tiles.positions, tiles.positions.new_zeros(extra))),
        torch.cat((tiles.slots, tiles.slots.new_full((extra,), slot))),
        torch.cat((tiles.borders, tiles.borders.new_full((extra,), n))),
        torch.arange(m + extra, dtype=torch.int32, device=blocks.device),
        wide,
        max(tiles.longest, 2),
    )


@dataclass(frozen=True)
class Scene:
    """Sequences of `cached` tokens, and a fork of the first, with `counts` new ones."""

    heads: tuple[int, int, int]
    block_size: int
    cached: tuple[int, ...]
    counts: tuple[int, ...]


def random_scene(seed, heads, block_size):
    chance = random.Random(seed)
    cached = (chance.randint(0, 20), chance.randint(0, 9))
    counts = tuple(chance.choice([1, 1, 2, 5, 17]) for _ in range(3))
    return Scene(heads, block_size, cached, counts)


@torch.inference_mode()
def compare(kind, scene, dtype, device="cpu", *, roundings=8, spoiled=False):
    """Hold both forms of a kind equal to the reference in fp64, row by row. `spoiled`:
    row 0 asks with NaN, and the first key of sequence 1 is infinite. Returns into how
    many parts our kernel divided the keys.
    """
    h, kv, d = scene.heads
    counts, parts = scene.counts, set()
    noise = torch.Generator().manual_seed(sum(counts) + h)
    sizes = {"num_layers": 1, "num_kv_heads": kv, "head_dim": d, "device": device}
    cache, exact = (
        small_cache(400, scene.block_size, dtype=each, **sizes)
        for each in (dtype, torch.float64)
    )
    tables = [cache.new() for _ in scene.cached]
    with cache.append([cache.new(), *tables], [1, *scene.cached]) as [slot, *_]:
        pass
    tables = [*tables, cache.fork(tables[0])][: len(counts)]

    def empty(*size, **options):  # full of 7
        parts.update(size[:1] if len(size) == 4 else ())
        return torch.full(size, 7.0, **options)

    with cache.append(tables, counts) as slots:
        # 1. A batch, and keys and values of what is cached.
        tokens = [[0] * count for count in counts]
        batch = RaggedBatch.build(
            tables, tokens, slots, wanted=counts, device=torch.device(device)
        )
        held = sorted({block for table in tables for block in table.blocks})
        for memory, copy in ((cache.keys, exact.keys), (cache.values, exact.values)):
            drawn = torch.randn(memory[:, held].shape, generator=noise)
            memory[:, held] = drawn.to(memory)
            copy.copy_(memory)
        heads = torch.randn(sum(counts), h + 2 * kv, d, generator=noise)
        q, k, v = heads.to(device, dtype).split((h, kv, kv), 1)
        if spoiled:
            q[0], k[counts[0], :, 0] = torch.nan, -torch.inf

        # 2. What each row should be; spoiled rows are NaN.
        expected = reference_attention(batch, exact)(
            0, q.double(), k.double(), v.double()
        )
        wrong = expected.isnan().flatten(1).all(1)
        assert wrong.nonzero()[:, 0].tolist() == ([0, counts[0]] if spoiled else [])

        # 3. No row may keep what its memory held before.
        forms = [kind.ragged(batch, cache)]
        if kind.tiles is not None:
            tiles = Tiles.of(batch, kind.tile)
            forms += [
                kind.tiles(tiles, cache),
                kind.tiles(padded(tiles, 3, slot), cache),
            ]
        for attend in forms:
            n = sum(counts)
            added = 3 if len(forms) > 1 and attend is forms[-1] else 0
            heads = torch.cat((q, k, v), 1)
            rows = torch.cat((heads, heads.new_zeros(added, h + 2 * kv, d)))
            with patch.object(torch, "empty", empty):
                mixed = attend(0, *rows.split((h, kv, kv), 1))[:n].double()
            assert torch.equal(mixed.isnan().flatten(1).all(1), wrong)
            off = (mixed - expected)[~wrong].flatten(1).norm(dim=1)
            worst = (off / expected[~wrong].flatten(1).norm(dim=1)).max()
            assert worst <= roundings * torch.finfo(dtype).eps, (scene, dtype, worst)
    return parts


FUNCTIONS = {
    "flash-attn-4": ("flash_attn.cute", "flash_attn_varlen_func"),
    "flash-attn-3": ("flash_attn_interface", "flash_attn_with_kvcache"),
    "flash-attn": ("flash_attn", "flash_attn_varlen_func"),
}
"""Where each package of FlashAttention has the function that we call."""


def fake_flash_attention(monkeypatch, installed):
    """Only these packages are installed, with these functions. As in reality, version 4
    brings the name space `flash_attn`, but not version 2's function in it."""
    for package, (name, function) in FUNCTIONS.items():
        module = ModuleType(name) if package in installed else None
        if module is not None:
            setattr(module, function, installed[package])
        elif name == "flash_attn" and "flash-attn-4" in installed:
            module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
