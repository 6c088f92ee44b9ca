"""Random scenes of branches, computed by the Triton kernel and by the reference in fp64, and whole
models with fused layers beside plain ones; run by `test_attention_triton.py`. Not in bf16, whose
products Triton's interpreter computes wrongly."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.kvcache.cache import PagedKVCache
from lr.model import attention_triton, fused
from lr.model.attention import RaggedBatch, RowPages, reference_attention
from lr.model.attention_choice import ROUNDINGS, AttentionNeeds, find_kernels, probe
from lr.model.attention_triton import TRITON
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
def scene(seed: int) -> None:
    chance, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    h, kv, d = HEADS[seed % len(HEADS)] if seed < 9 else LARGE[seed - 9]
    block_size = chance.choice([1, 4, 16]) if seed < 8 else 16
    dtype = chance.choice([torch.float32, torch.float16]) if seed != 8 else torch.float16
    cache, exact = cache_of(kv, d, block_size, dtype), cache_of(kv, d, block_size, torch.float64)
    tables = [cache.new(), cache.new()]
    with cache.append(tables, [chance.randint(1, 20), chance.randint(1, 9)]):
        pass
    tables.append(cache.fork(tables[0]))
    counts = [1] * 3 if seed % 3 == 0 else [chance.choice([1, 2, 5, 17]) for _ in tables]
    if seed >= 9:  # two decode, one goes on by a few tokens
        counts = [1, 3, 1]
    if seed == 8:  # a prompt alone, after what is cached
        tables, counts = tables[:1], [67]
    if block_size == 1:
        counts = [min(count, 5) for count in counts]
    with cache.append(tables, counts) as slots:
        tokens = [[0] * count for count in counts]
        batch = RaggedBatch.build(tables, tokens, slots, wanted=counts, device=CPU)
        held = sorted({block for table in tables for block in table.blocks})
        for memory, copy in ((cache.keys, exact.keys), (cache.values, exact.values)):
            drawn = torch.randn(memory[:, held].shape, generator=noise)
            memory[:, held] = drawn.to(dtype)
            copy.copy_(memory)
        heads = torch.randn(sum(counts), h + 2 * kv, d, generator=noise).to(dtype)
        q, k, v = heads.split((h, kv, kv), 1)
        expected = reference_attention(batch, exact)(0, q.double(), k.double(), v.double())
        assert TRITON.rows is not None
        for attend in (TRITON.ragged(batch, cache), TRITON.rows(RowPages.of(batch), cache)):
            off = (attend(0, q, k, v).double() - expected).flatten(1).norm(dim=1)
            worst = (off / expected.flatten(1).norm(dim=1)).max().item()
            assert worst <= ROUNDINGS * torch.finfo(dtype).eps, (seed, block_size, dtype, worst)


@torch.inference_mode()
def fused_model(qk_norm: bool, dtype: torch.dtype, layers: int) -> None:
    """A forward with every kernel of `fused.py` is the plain one, up to roundings."""
    config = ModelConfig(31, 24, 40, layers, 2, 1, 16, 64, 1e-6, 1e4, not qk_norm, qk_norm, True)
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
    model.use_kernels(fused)
    bound = 1e-5 if dtype is torch.float32 else 0.02
    assert (made() - plain).abs().max() <= bound
    linear, rows = fused.linear, []
    fused.linear = lambda x, *rest, **more: rows.append(len(x)) or linear(x, *rest, **more)
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
    heads, kept = AttentionNeeds(CPU, torch.float32, 3, 1, 24), (fused.add_norm, fused.linear)
    assert find_kernels(heads) is fused, find_kernels(heads)
    for qk_norm, dtype, block, layers in (
        (True, torch.float32, 1024, 2),
        (False, torch.float16, 16, 1),
    ):
        fused.ROW["BLOCK"] = block  # rows are longer than 16 numbers, and no multiple of it
        fused_model(qk_norm, dtype, layers)
        fused.add_norm, fused.linear = kept
    for name, wrong in (("silu_mul", torch.relu), ("linear", lambda x, *_, **__: x)):
        right = getattr(fused, name)
        setattr(fused, name, wrong)
        assert isinstance(find_kernels(heads), str), name
        setattr(fused, name, right)
    for seed in range(9 + len(LARGE)):
        scene(seed)
    for dtype in (torch.float32, torch.float16):
        assert not probe(TRITON, AttentionNeeds(CPU, dtype, 4, 2, 16))
