"""The memory plan: exact where it counts (against models and caches that are really
made), clear where something does not fit.
"""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from lr.engine.runner import num_kv_blocks_needed
from lr.measure.memory import (
    MemoryPlan,
    MemoryShortError,
    cache_bytes,
    free_bytes,
    plan_memory,
    weight_bytes,
)
from lr.model.device import DeviceMap
from lr.model.dummy import SHAPES, random_model, shape
from lr.model.quantize import quantize
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.reasoner import Reasoner

BF16 = torch.bfloat16
F32 = torch.float32
TINY = shape("tiny-target")
PAPER = GenerateOptions(mode="lr+sd", drafter="ngram", depth=4, driver="overlapped")
NAMES = ("Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-7B-Instruct")
CUDA = [torch.device("cuda", n) for n in range(4)]
ONE_GPU = DeviceMap((CUDA[0],), CUDA[0], CUDA[0])
FOUR_GPUS = DeviceMap((CUDA[0], CUDA[1]), CUDA[2], CUDA[3])


def plan(
    places: DeviceMap = ONE_GPU,
    options: GenerateOptions = PAPER,
    tokens: int = 37000,
    names: tuple[str | None, ...] = NAMES,
    **changes: object,
) -> MemoryPlan:
    settings = {"free_gib": 1000.0} | changes
    return plan_memory(names, places, BF16, options, tokens, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_weights_and_cache_are_counted_to_the_byte(dtype: torch.dtype) -> None:
    model, config = load_model("tiny-target", dtype=dtype), TINY
    assert weight_bytes(config, dtype) == sum(p.nbytes for p in model.parameters())
    cache = model.make_cache(7, 16)
    assert cache_bytes(config, dtype, 7) == cache.keys.nbytes + cache.values.nbytes


def test_ranks_share_matrices_not_norms_nor_single_heads() -> None:
    large = SHAPES["Qwen3-32B"]
    full, half = (weight_bytes(large, BF16, ranks) for ranks in (1, 2))
    norms = 64 * (2 * 5120 + 2 * 128) + 5120
    assert half == (full - 2 * norms) // 2 + 2 * norms
    few = replace(large, num_kv_heads=2)
    assert cache_bytes(few, BF16, 5, ranks=4) == cache_bytes(few, BF16, 5, ranks=2)


def test_needs_add_up_where_models_share_a_device() -> None:
    together, apart = plan(), plan(FOUR_GPUS)
    assert list(together.free) == ["cuda:0"]
    assert list(apart.free) == [f"cuda:{n}" for n in range(4)]
    [target, *_], [half, *_] = together.models, apart.models
    assert half.devices == ("cuda:0", "cuda:1")
    assert 2 * half.cache == target.cache
    blocks = num_kv_blocks_needed(PAPER, 37000)
    assert target.cache == cache_bytes(SHAPES["Qwen3-32B"], BF16, blocks)
    names = DeviceMap((torch.device("cuda"),), CUDA[0], torch.device("cuda"))
    assert plan(names) == together  # two names of one GPU


def test_what_options_add() -> None:
    def need(role: str, options: GenerateOptions = PAPER, **changes: object) -> tuple:
        models = {m.role: m for m in plan(options=options, **changes).models}  # type: ignore[arg-type]
        return models[role].weights, models[role].cache

    weights, cache = need("draft")
    # The draft writes steps, and proposes tokens.
    assert need("draft", replace(PAPER, drafter="draft")) == (weights, 2 * cache)
    # On another device than the target, its worker is a process.
    assert need("draft", places=FOUR_GPUS) == (2 * weights, cache)
    asked = need("target", verifier="score:7")[1] - need("target")[1]
    assert asked == cache_bytes(SHAPES["Qwen3-32B"], BF16, (40960 + 8192) // 16)
    assert need("target", share=3)[1] == 3 * need("target")[1]
    plain = plan(options=replace(PAPER, mode="ar"))
    assert [model.role for model in plain.models] == ["target", "judge"]
    assert plan(tokens=10**9).tokens == 40960  # no chain is longer than the context


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(MemoryShortError, match="cuda:0"):
        plan(free_gib=84).check()
    plan(free_gib=84, tokens=2000).check()


def test_quantised_weights_are_counted() -> None:
    """To the byte, with an untied head; and a tied head becomes a copy."""
    shape_of = replace(TINY, hidden_size=64, head_dim=16, vocab_size=320)
    for tied in (False, True):
        config = replace(shape_of, tie_word_embeddings=tied)
        for kind in ("int8", "int4"):
            model = random_model(config, F32, torch.device("cpu"))
            quantize(model, kind)
            tensors = [*model.parameters(), *model.buffers()]
            sizes = [t.nbytes for t in tensors if t.dtype != torch.int64]
            assert weight_bytes(config, F32, 1, kind) == sum(sizes)


@pytest.mark.usefixtures("whole_targets")
def test_the_plan_of_an_answer_is_what_it_reserves() -> None:
    names = ("tiny-target", "tiny-draft")
    options = GenerateOptions(mode="lr", max_tokens=100)
    with Reasoner(*names, "exact") as reasoner:
        answer = reasoner.run("hello", mode="lr", max_tokens=100)
        length = len(answer.prompt) + 100
        on_cpu = DeviceMap.of("cpu")
        planned = plan_memory((*names, None), on_cpu, F32, options, length)
        models = reasoner.engine.target, reasoner.engine.draft
        for need, model in zip(planned.models, models, strict=True):
            assert model is not None
            assert need.weights == sum(p.nbytes for p in model.parameters())
            assert need.cache == cache_bytes(model.config, F32, answer.blocks)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_plan_is_what_a_gpu_allocates() -> None:
    """Dummy weights of published shapes: all that is counted is there, and at its peak
    the run does not take more than the plan.
    """
    names, blocks = ("dummy:Qwen3-1.7B", "dummy:Qwen3-0.6B"), 1024
    options = GenerateOptions(mode="lr+sd", drafter="draft", max_tokens=64)
    planned = plan(options=options, names=(*names, None), num_blocks=blocks)
    gc.collect()  # what earlier tests have left
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with Reasoner(
        *names, "random:0.5", device="cuda", dtype=BF16, num_blocks=blocks
    ) as reasoner:
        reasoner.generate("hello", mode="lr+sd", drafter="draft", max_tokens=64)
        held = torch.cuda.memory_allocated() - before
        peak = torch.cuda.max_memory_allocated() - before
    assert sum(need.weights + need.cache for need in planned.models) <= held
    assert peak <= planned.needed("cuda:0")


def test_nothing_is_refused_where_nobody_knows_what_is_free() -> None:
    assert (free_bytes("cpu") or 1) > 0
    unknown = replace(plan(), free={"mps": None})
    unknown.check()
    assert unknown.rows()[-1][-1] == "not known"
