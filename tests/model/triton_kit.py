"""Random scenes of branches, computed by the Triton kernel and by the reference in
fp64, and whole models with fused layers beside plain ones; run by
`test_attention_triton.py`. Not in bf16, whose products Triton's interpreter computes
wrongly."""

from __future__ import annotations

import random
from unittest.mock import patch

import torch
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.kernels import attention as attention_triton
from lr.kernels import fused
from lr.kernels.attention import TRITON
from lr.kernels.install import install
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import RaggedBatch, RowPages, reference_attention
from lr.model.attention_choice import ROUNDINGS, AttentionNeeds, find_kernels, probe
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM

CPU = torch.device("cpu")
HEADS = ((4, 2, 16), (7, 1, 8), (6, 6, 24), (8, 2, 64))
LARGE = ((32, 8, 64), (28, 4, 128), (16, 8, 128), (8, 1, 256))
"""Query heads, KV heads and head dim; the large ones are those of real models."""


def cache_of(kv: int, d: int, block_size: int, dtype: torch.dtype) -> PagedKVCache:
    return PagedKVCache(
        num_layers=1, num_kv_heads=kv, head_dim=d, num_blocks=64, block_size=block_size,
        dtype=dtype, device=CPU, poison_freed=True,
    )  # fmt: skip


@torch.inference_mode()
def compare(
    seed: int, heads: tuple[int, int, int], block_size: int, dtype: torch.dtype,
    cached: list[int], counts: list[int], *, spoiled: bool = False,
) -> set[int]:  # fmt: skip
    """Sequences of `cached` tokens and a fork of the first, as many as there are
    `counts` of new tokens. `spoiled`: row 0 asks with NaN, and the first key of
    sequence 1 is infinite. Into how many parts the keys were divided.
    """
    sizes: list[tuple[int, ...]] = []

    def empty(*size: int, **how: object) -> Tensor:  # full of 7
        sizes.append(size)
        return torch.full(size, 7.0, **how)

    (h, kv, d), noise = heads, torch.Generator().manual_seed(seed)
    cache, exact = (
        cache_of(kv, d, block_size, dtype),
        cache_of(kv, d, block_size, torch.float64),
    )
    tables = [cache.new() for _ in cached]
    with cache.append(tables, cached):
        pass
    tables = [*tables, cache.fork(tables[0])][: len(counts)]
    with cache.append(tables, counts) as slots:
        tokens = [[0] * count for count in counts]
        batch = RaggedBatch.build(tables, tokens, slots, wanted=counts, device=CPU)
        held = sorted({block for table in tables for block in table.blocks})
        for memory, copy in ((cache.keys, exact.keys), (cache.values, exact.values)):
            drawn = torch.randn(memory[:, held].shape, generator=noise)
            memory[:, held] = drawn.to(dtype)
            copy.copy_(memory)
        drawn = torch.randn(sum(counts), h + 2 * kv, d, generator=noise).to(dtype)
        q, k, v = drawn.split((h, kv, kv), 1)
        if spoiled:
            q[0], k[counts[0], :, 0] = torch.nan, -torch.inf
        expected = reference_attention(batch, exact)(
            0, q.double(), k.double(), v.double()
        )
        wrong = expected.isnan().flatten(1).all(1)
        assert wrong.nonzero()[:, 0].tolist() == ([0, counts[0]] if spoiled else [])
        assert TRITON.rows is not None
        for attend in (
            TRITON.ragged(batch, cache),
            TRITON.rows(RowPages.of(batch), cache),
        ):
            with patch.object(torch, "empty", empty):
                made = attend(
                    0, q, k, v
                ).double()  # no row may keep what its memory held before
            assert torch.equal(made.isnan().flatten(1).all(1), wrong), (
                seed,
                dtype,
                made,
            )
            off = (made - expected)[~wrong].flatten(1).norm(dim=1)
            worst = (off / expected[~wrong].flatten(1).norm(dim=1)).max().item()
            assert worst <= 2 * ROUNDINGS * torch.finfo(dtype).eps, (
                seed,
                block_size,
                dtype,
                worst,
            )
    return {size[0] for size in sizes if len(size) == 4}


def scene(seed: int) -> None:
    chance = random.Random(seed)
    heads = HEADS[seed % len(HEADS)] if seed < 9 else LARGE[seed - 9]
    block_size = chance.choice([1, 4, 16]) if seed < 8 else 16
    dtype = (
        chance.choice([torch.float32, torch.float16]) if seed != 8 else torch.float16
    )
    cached = [chance.randint(1, 20), chance.randint(1, 9)]
    counts = (
        [1] * 3 if seed % 3 == 0 else [chance.choice([1, 2, 5, 17]) for _ in range(3)]
    )
    if seed >= 9:  # two decode, one goes on by a few tokens
        counts = [1, 3, 1]
    if seed == 8:  # a prompt alone, after what is cached
        counts = [67]
    if block_size == 1:
        counts = [min(count, 5) for count in counts]
    compare(seed, heads, block_size, dtype, cached, counts)


@torch.inference_mode()
def fused_model(qk_norm: bool, dtype: torch.dtype, layers: int) -> None:
    """A forward with every kernel of `fused.py` is the plain one, up to roundings."""
    config = ModelConfig(
        31, 24, 40, layers, 2, 1, 16, 64, 1e-6, 1e4, not qk_norm, qk_norm, True
    )
    model = CausalLM(config).eval()
    noise = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.copy_(torch.randn(weight.shape, generator=noise) * 0.3)
    model = model.to(dtype)

    def made() -> Tensor:
        runner = ModelRunner(model, num_blocks=32, block_size=4)
        branches = [runner.open([5, 9, 30]), runner.open([1])]
        first = runner.forward(branches)
        for branch in branches:
            branch.extend([3, 4])
        rows = [torch.stack(first), *runner.forward(branches, "all")]
        return torch.cat(rows).float().softmax(-1)

    def token() -> Tensor:
        runner = ModelRunner(model, num_blocks=8, block_size=4)
        branch = runner.open([5, 9, 30])
        rows = runner.forward([branch])
        branch.append(7)
        return torch.stack([*rows, *runner.forward([branch])]).float().softmax(-1)

    plain, alone = made(), token()
    model.attention = TRITON
    install(model.layers, model.norm)
    bound = 1e-5 if dtype is torch.float32 else 0.02
    assert (made() - plain).abs().max() <= bound
    linear, rows = fused.linear, []
    fused.linear = lambda x, *rest, **more: (
        rows.append(len(x)) or linear(x, *rest, **more)
    )
    assert (token() - alone).abs().max() <= bound
    assert rows == [1] * 4 * len(model.layers)  # the second of the two forwards
    add_norm, seen = fused.add_norm, []  # the second norm has a hook, so it is called
    fused.add_norm = lambda x, y, *rest: add_norm(x, None, *rest) if y is None else None
    for layer in model.layers:
        layer.mlp_norm.register_forward_hook(lambda norm, given, out: seen.append(out))
    made()
    assert len(seen) == 2 * len(model.layers)
    assert (token() - alone).abs().max() <= bound
    assert len(seen) == 4 * len(model.layers)
    assert rows == [1] * 4 * len(model.layers)


if __name__ == "__main__":
    attention_triton.PROGRAMS = 16  # the interpreter runs them one by one
    attention_triton.ALONE = 64
    heads, kept = (
        AttentionNeeds(CPU, torch.float32, 3, 1, 24),
        (fused.add_norm, fused.linear),
    )
    assert find_kernels(heads) == ""
    for qk_norm, dtype, block, layers in (
        (True, torch.float32, 1024, 2),
        (False, torch.float16, 16, 1),
    ):
        fused.ROW["BLOCK"] = (
            block  # rows are longer than 16 numbers, and no multiple of it
        )
        fused_model(qk_norm, dtype, layers)
        fused.add_norm, fused.linear = kept
    for name, wrong in (("silu_mul", torch.relu), ("linear", lambda x, *_, **__: x)):
        right = getattr(fused, name)
        setattr(fused, name, wrong)
        assert find_kernels(heads) != "", name
        setattr(fused, name, right)
    for seed in range(9 + len(LARGE)):
        scene(seed)
    for parts in (1, 8, 32, 64):
        attention_triton.PROGRAMS = (
            parts * 4
        )  # so many parts of the keys of up to four tiles
        if parts > 8:
            made = compare(parts, LARGE[3], 16, torch.float32, [800, 5, 90], [1] * 4)
            assert made == {parts}
            continue
        for dtype in (torch.float32, torch.float16):
            made = compare(
                parts, (4, 1, 16), 4, dtype, [20, 0], [2, 1, 1], spoiled=True
            )
            assert made == {parts}
    attention_triton.PROGRAMS = 16
    for dtype in (torch.float32, torch.float16):
        assert not probe(TRITON, AttentionNeeds(CPU, dtype, 4, 2, 16))
