"""Every kind of attention against the reference in fp64, over ragged batches and forks,
with free blocks full of NaN; our kernels in Triton's interpreter;
FlashAttention's calls answered by an emulation; and all kinds on a GPU, if there is one.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from attention_kit import (
    LARGE,
    TILES,
    Scene,
    compare,
    fake_flash_attention,
    needs_triton,
    random_scene,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_root import python

from lr.model.attention import SDPA
from lr.model.attention_choice import AttentionNeeds, candidates

UNLIKE = Scene((6, 2, 8), 4, cached=(500, 1), counts=(1, 40, 1))


@given(seed=st.integers(0, 10**6), block_size=st.sampled_from([1, 3, 4, 16]))
@settings(max_examples=30, deadline=None)
def test_every_kind_agrees_with_the_reference(seed, block_size):
    """To 1e-12 in fp64: prompts, single tokens, runs between and a fork in one batch;
    one sequence alone; and a few so unlike in length that each has a call of its own."""
    scene = random_scene(seed, (6, 2, 8), block_size)
    alone = replace(scene, cached=scene.cached[:1], counts=scene.counts[:1])
    for kind in (SDPA, TILES):
        for each in (scene, alone, UNLIKE):
            compare(kind, each, torch.float64, roundings=4000)


@needs_triton
def test_our_kernels_are_right():
    """In Triton's interpreter, which is chosen when a kernel is defined: a process of
    its own."""
    program = Path(__file__).with_name("kernels_in_the_interpreter.py")
    done = python("-W", "ignore", program, env={"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


# FlashAttention's three signatures, computed plainly


def plainly(
    q, keys, values, borders, lengths,
    blocks, longest
):  # fmt: skip
    """Sequence i has the rows borders[i] .. borders[i + 1] - 1, the last of its
    lengths[i] places."""
    assert borders.dtype == lengths.dtype == blocks.dtype == torch.int32
    assert len(borders) - 1 == len(lengths) == len(blocks)
    mixed = torch.full_like(q, 7.0)
    group = q.shape[1] // keys.shape[2]
    for i, length in enumerate(lengths.tolist()):
        first, end = borders[i : i + 2].tolist()
        count = end - first
        assert count <= longest
        pages = blocks[i, : -(-length // keys.shape[1])].long()
        k, v = (
            memory[pages].flatten(0, 1)[:length].repeat_interleave(group, 1).double()
            for memory in (keys, values)
        )
        scores = torch.einsum("thd,shd->hts", q[first:end].double(), k)
        later = torch.ones(count, length).tril(length - count) == 0
        scores = scores.masked_fill(later, -math.inf) / math.sqrt(q.shape[-1])
        mixed[first:end] = torch.einsum("hts,shd->thd", scores.softmax(-1), v).to(q)
    return mixed


def version_4(
    q, k, v, *, cu_seqlens_q, seqused_k,
    max_seqlen_q, page_table, causal
):  # fmt: skip
    """`flash_attn_varlen_func` of FlashAttention 4. Its second result is None unless
    the log-sum-exp is asked for."""
    assert causal
    assert q.dtype == k.dtype == v.dtype and q.element_size() == 2
    assert q.stride(-1) == page_table.stride(-1) == 1
    mixed = plainly(q, k, v, cu_seqlens_q, seqused_k, page_table, max_seqlen_q)
    return mixed, None


def version_3(
    q, k_cache, v_cache, *, cache_seqlens,
    page_table, cu_seqlens_q, max_seqlen_q, causal
):  # fmt: skip
    """`flash_attn_with_kvcache` of FlashAttention 3."""
    assert causal
    return plainly(
        q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, max_seqlen_q
    )


def version_2(
    q, k, v, cu_seqlens_q, cu_seqlens_k,
    max_seqlen_q, max_seqlen_k, *, causal, block_table
):  # fmt: skip
    """`flash_attn_varlen_func` of FlashAttention 2."""
    assert causal
    assert k.shape[1] % 256 == 0, "a page of FlashAttention 2 has 256 tokens"
    lengths = cu_seqlens_k.diff()
    assert lengths.max() <= max_seqlen_k
    return plainly(q, k, v, cu_seqlens_q, lengths, block_table, max_seqlen_q)


EMULATIONS = {
    "flash-attn-4": version_4,
    "flash-attn-3": version_3,
    "flash-attn": version_2,
}


@needs_triton
@pytest.mark.parametrize("package", EMULATIONS)
def test_flash_attention_is_called_as_it_expects(package, monkeypatch):
    """Its own store is a Triton kernel, which cannot run here."""
    from lr.kernels import flash
    from lr.kernels.attention import TRITON

    fake_flash_attention(monkeypatch, {package: EMULATIONS[package]})
    monkeypatch.setattr(flash, "store", store)
    kinds = dict(flash.find())
    assert [*kinds] == [*EMULATIONS]
    kind = kinds.pop(package)
    assert not isinstance(kind, str)
    assert {type(reason) for reason in kinds.values()} == {str}
    signatures = {signature.package: signature for signature in flash.SIGNATURES}
    if not signatures[package].decodes:  # our own kernel does
        assert kind.tiles is TRITON.tiles
        kind = replace(kind, tiles=None)
    for seed, heads in enumerate(((4, 2, 16), (6, 6, 24), (8, 1, 64))):
        scene = random_scene(seed, heads, 16)
        compare(kind, scene, torch.float16)
    if package == "flash-attn-4":  # as a GPU check records it
        decodes = replace(signatures[package], decodes=True).kind(version_4)
        compare(decodes, random_scene(7, (8, 2, 16), 16), torch.float16)


def store(pages, slots, k, v):
    """`lr.kernels.fused.store`, plainly."""
    for memory, new in zip(pages, (k, v), strict=True):
        memory[slots // memory.shape[1], slots % memory.shape[1]] = new


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_kind_is_right_on_a_gpu(dtype):
    """Those that can be used here; `lr info` says why not the others."""
    for heads in LARGE:
        needs = AttentionNeeds(torch.device("cuda"), dtype, heads)
        for _, kind in candidates(needs):
            if not isinstance(kind, str):
                for seed in range(6):
                    compare(kind, random_scene(seed, heads, 16), dtype, "cuda")
                compare(kind, Scene(heads, 16, (5,), (700,)), dtype, "cuda")
