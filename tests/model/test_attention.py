"""Every kind of attention against the reference in fp64: over ragged batches, forks and
reused blocks, with freed blocks full of NaN; our kernels in Triton's interpreter;
FlashAttention's calls answered by an emulation; and all kinds on a GPU, if there is one.
"""

from __future__ import annotations

import importlib.util
import math
import os
import pickle
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from attention_kit import LARGE, TILES, Scene, compare, random_scene, tile_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lr.kvcache.branch import BlockTable
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import (
    LONG,
    REFERENCE,
    SDPA,
    RaggedBatch,
    Tiles,
    cut_tiles,
    reference_attention,
)
from lr.model.attention_choice import AttentionNeeds, candidates

CPU = torch.device("cpu")
LAYERS, HEADS, KV_HEADS, DIM = 2, 6, 2, 8
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="the package triton is not installed",
)


class Forest:
    """A cache whose branches grow, fork, shrink and end; every forward is computed by
    the reference, by fused attention and in tiles.
    """

    def __init__(self, block_size: int, seed: int) -> None:
        self.cache = PagedKVCache(
            num_layers=LAYERS,
            num_kv_heads=KV_HEADS,
            head_dim=DIM,
            num_blocks=240,
            block_size=block_size,
            dtype=torch.float64,
            device=CPU,
            poison_freed=True,
        )
        self.chance = random.Random(seed)
        self.noise = torch.Generator().manual_seed(seed)
        self.tables: list[BlockTable] = []
        self.sizes = [1, 1, 2, 5, 9]

    def heads(self, n: int) -> tuple[Tensor, ...]:
        """q, k and v as a layer makes them: views of one tensor, whose rows are not
        contiguous."""
        shape = n, HEADS + 2 * KV_HEADS, DIM
        rows = torch.randn(shape, dtype=torch.float64, generator=self.noise)
        return rows.split((HEADS, KV_HEADS, KV_HEADS), 1)

    def change(self) -> None:
        """Something that happens to branches between two forwards."""
        act = self.chance.choice(["open", "fork", "truncate", "release"])
        if act == "open" or not self.tables:
            self.tables.append(self.cache.new())
            return
        table = self.chance.choice(self.tables)
        if act == "fork" and table.length:
            self.tables.append(self.cache.fork(table))
        elif act == "truncate":
            self.cache.truncate(table, self.chance.randint(0, table.length))
        elif act == "release":
            self.cache.release(table)
            self.tables.remove(table)

    def forward(self) -> None:
        """A few new tokens for some branches: prompts, single tokens and runs between,
        all in one batch.
        """
        number = self.chance.randint(1, len(self.tables))
        chosen = self.chance.sample(self.tables, number)
        counts = [self.chance.choice(self.sizes) for _ in chosen]
        with self.cache.append(chosen, counts) as slots:
            tokens = [[0] * count for count in counts]
            batch = RaggedBatch.build(chosen, tokens, slots, wanted=counts, device=CPU)
            forms = [SDPA.ragged(batch, self.cache)]
            for most in (1, 4):
                forms.append(tile_attention(Tiles.of(batch, most), self.cache))
            for layer in range(LAYERS):
                q, k, v = self.heads(len(slots))
                expected = reference_attention(batch, self.cache)(layer, q, k, v)
                for attend in forms:
                    torch.testing.assert_close(
                        attend(layer, q, k, v), expected, rtol=0, atol=1e-12
                    )

    def end(self) -> None:
        for table in self.tables:
            self.cache.release(table)


@given(seed=st.integers(0, 10**6), block_size=st.sampled_from([1, 3, 4, 16]))
@settings(max_examples=25, deadline=None)
def test_every_kind_agrees_with_the_reference(seed: int, block_size: int) -> None:
    forest = Forest(block_size, seed)
    for _ in range(6):
        forest.change()
        if forest.tables:
            forest.forward()
    forest.end()


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_long_chunks_agree_with_the_reference(seed: int) -> None:
    """Prompts, long chunks after a cache, and single tokens in one batch."""
    forest = Forest(4, seed)
    forest.sizes = [1, 2, LONG, 40]
    for _ in range(3):
        forest.tables.append(forest.cache.new())
        forest.forward()
        forest.tables.append(forest.cache.fork(forest.tables[0]))
        forest.forward()
    forest.end()


def test_tiles_cut_sequences() -> None:
    assert cut_tiles((1, 20), 16) == ([0, 1, 17, 21], [0, 1, 1])


def test_a_kind_can_be_sent_to_another_process() -> None:
    for kind in (SDPA, REFERENCE, TILES):
        assert pickle.loads(pickle.dumps(kind)) == kind


@needs_triton
def test_our_kernels_are_right() -> None:
    """In Triton's interpreter, which is chosen when a kernel is defined: a process of
    its own."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(Path(__file__).with_name("triton_kit.py")),
        ],
        env=os.environ
        | {
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# FlashAttention's two signatures, computed plainly


def plainly(
    q: Tensor, keys: Tensor, values: Tensor, borders: Tensor, lengths: Tensor,
    blocks: Tensor, longest: int,
) -> Tensor:  # fmt: skip
    """Sequence i has the rows borders[i] .. borders[i + 1] - 1, the last of its
    lengths[i] places."""
    assert borders.dtype == lengths.dtype == blocks.dtype == torch.int32
    assert len(borders) - 1 == len(lengths) == len(blocks)
    mixed = torch.full_like(q, 7.0)
    group = q.shape[1] // keys.shape[2]
    for i, (first, end) in enumerate(
        torch.stack((borders[:-1], borders[1:]), 1).tolist()
    ):
        length, count = int(lengths[i]), end - first
        assert count <= longest
        if count == 0:
            continue
        pages = blocks[i, : -(-length // keys.shape[1])].long()
        k, v = (
            memory[pages].flatten(0, 1)[:length].repeat_interleave(group, 1).double()
            for memory in (keys, values)
        )
        scores = torch.einsum("thd,shd->hts", q[first:end].double(), k)
        scores = scores / math.sqrt(q.shape[-1])
        later = torch.ones(count, length).tril(length - count) == 0
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        mixed[first:end] = torch.einsum("hts,shd->thd", weights, v).to(q.dtype)
    return mixed


def with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, cache_seqlens: Tensor,
    page_table: Tensor, cu_seqlens_q: Tensor, max_seqlen_q: int, causal: bool,
) -> Tensor:  # fmt: skip
    """`flash_attn_with_kvcache` of FlashAttention 3."""
    assert causal
    return plainly(
        q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, max_seqlen_q
    )


def varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, *, causal: bool, block_table: Tensor,
) -> Tensor:  # fmt: skip
    """`flash_attn_varlen_func` of FlashAttention 2."""
    assert causal
    assert k.shape[1] % 256 == 0, "a page of FlashAttention 2 has 256 tokens"
    lengths = cu_seqlens_k.diff()
    assert lengths.max() <= max_seqlen_k
    return plainly(q, k, v, cu_seqlens_q, lengths, block_table, max_seqlen_q)


@needs_triton
@pytest.mark.parametrize("version", [2, 3])
def test_flash_attention_is_called_as_it_expects(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own store is a Triton kernel, which cannot run here."""
    from lr.kernels import flash

    module: Any = ModuleType("emulation")
    module.flash_attn_with_kvcache, module.flash_attn_varlen_func = (
        with_kvcache,
        varlen_func,
    )
    three = module if version == 3 else None
    monkeypatch.setitem(sys.modules, "flash_attn_interface", three)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(flash, "store", store)
    kind = flash.find()
    if version == 2:  # our own kernel decodes
        kind = replace(kind, tiles=None)
    for seed, heads in enumerate(((4, 2, 16), (6, 6, 24), (8, 1, 64))):
        scene = random_scene(seed, heads, 16)
        compare(kind, scene, torch.float16)


def store(pages: tuple[Tensor, Tensor], slots: Tensor, k: Tensor, v: Tensor) -> None:
    """`lr.kernels.fused.store`, plainly."""
    for memory, new in zip(pages, (k, v), strict=True):
        memory[slots // memory.shape[1], slots % memory.shape[1]] = new


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_kind_is_right_on_a_gpu(dtype: torch.dtype) -> None:
    """Those that can be used here; `lr info` says why not the others."""
    for heads in LARGE:
        needs = AttentionNeeds(torch.device("cuda"), dtype, *heads)
        for _, kind in candidates(needs):
            if isinstance(kind, str):
                continue
            scenes = [random_scene(seed, heads, 16) for seed in range(6)]
            prompt = Scene(heads, 16, (5,), (700,))
            for scene in (*scenes, prompt):
                compare(kind, scene, dtype, "cuda")
