"""The memory plan: exact where it counts (against models and caches that are really
made), clear where something does not fit.
"""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from lr.engine.runner import num_kv_blocks_needed
from lr.errors import LRError
from lr.kvcache.cache import PagedKVCache
from lr.measure.memory import (
    GIB,
    DevicePlan,
    MemoryPlan,
    MemoryShortError,
    ModelNeed,
    Placed,
    PlacedModels,
    cache_bytes,
    free_bytes,
    place,
    plan_run,
    weight_bytes,
    working_bytes,
)
from lr.model.dummy import SHAPES, shape
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.tiny.names import tiny_config

BF16 = torch.bfloat16
PAPER = GenerateOptions(mode="lr+sd", drafter="ngram", depth=4)


def placed(
    devices: dict[str, str | tuple[str, ...]], **changes: object
) -> PlacedModels:
    def at(role: str, name: str) -> Placed:
        where = devices[role]
        return place(name, (where,) if isinstance(where, str) else where, BF16)

    made = PlacedModels(
        at("target", "Qwen/Qwen3-32B"),
        at("draft", "Qwen/Qwen3-1.7B"),
        at("judge", "Qwen/Qwen2.5-7B-Instruct"),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tiny-target", "tiny-judge"])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_weights_and_cache_are_counted_to_the_byte(
    name: str, dtype: torch.dtype
) -> None:
    model, config = load_model(name, dtype=dtype), shape(name)
    held = sum(
        parameter.numel() * parameter.element_size() for parameter in model.parameters()
    )
    assert weight_bytes(config, dtype) == held
    cache = PagedKVCache(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        num_blocks=7,
        block_size=16,
        dtype=dtype,
        device="cpu",
    )
    assert cache_bytes(config, dtype, 7, 16) == cache.keys.nbytes + cache.values.nbytes


def test_the_numbers_of_the_docstring() -> None:
    large = SHAPES["Qwen3-32B"]
    assert round(weight_bytes(large, BF16) / GIB, 1) == 61.0
    assert cache_bytes(large, BF16, 1, 1) == 256 * 1024


def test_ranks_share_matrices_not_norms_nor_single_heads() -> None:
    large = SHAPES["Qwen3-32B"]
    whole, half = (weight_bytes(large, BF16, ranks) for ranks in (1, 2))
    norms = 64 * (2 * 5120 + 2 * 128) + 5120
    assert half == (whole - 2 * norms) // 2 + 2 * norms
    few = tiny_config(2, 300)  # 4 heads, 2 KV heads
    a_head = (
        2 * 2 * few.head_dim * few.hidden_size * 2
    )  # k and v rows of a head in both layers, bf16
    split = weight_bytes(few, BF16, 4)
    matrices = (
        weight_bytes(few, BF16)
        - 2 * 2 * few.num_kv_heads * few.head_dim * few.hidden_size * 2
    )
    norms = 2 * (2 * (2 * 128 + 2 * 32) + 128)
    assert split == (matrices - norms) // 4 + norms + a_head
    assert cache_bytes(few, BF16, 5, 16, ranks=4) == cache_bytes(
        few, BF16, 5, 16, ranks=2
    )


def test_needs_add_up_where_models_share_a_device() -> None:
    apart = plan_run(
        placed({"target": ("cuda:0", "cuda:1"), "draft": "cuda:2", "judge": "cuda:3"}),
        PAPER,
        37000,
        free=lambda _: 0,
    )
    together = plan_run(
        placed({"target": "cuda:0", "draft": "cuda:0", "judge": "cuda:0"}),
        PAPER,
        37000,
        free=lambda _: 0,
    )
    assert [device.device for device in apart.devices] == [
        "cuda:0",
        "cuda:1",
        "cuda:2",
        "cuda:3",
    ]
    assert [len(device.needs) for device in together.devices] == [3]
    target = [device.needs[0] for device in apart.devices[:2]]
    assert target[0].weights == target[1].weights < together.devices[0].needs[0].weights
    assert 2 * target[0].cache == together.devices[0].needs[0].cache
    blocks = num_kv_blocks_needed(PAPER, 37000)
    assert together.devices[0].needs[0].cache == cache_bytes(
        SHAPES["Qwen3-32B"], BF16, blocks, 16
    )


def test_two_names_of_one_gpu_are_one_device() -> None:
    plan = plan_run(
        placed({"target": "cuda", "draft": "cuda:0", "judge": "cuda"}),
        PAPER,
        4096,
        free=lambda _: None,
    )
    assert [(device.device, len(device.needs)) for device in plan.devices] == [
        ("cuda:0", 3)
    ]


def test_what_options_add() -> None:
    devices = {"target": "cpu", "draft": "cpu", "judge": "cpu"}

    def need(role: str, options: GenerateOptions, **changes: object) -> ModelNeed:
        [device] = plan_run(
            placed(devices, **changes), options, 4096, free=lambda _: None
        ).devices
        return next(one for one in device.needs if one.role.startswith(role))

    ngram, drafted = (
        need("draft", PAPER),
        need("draft", replace(PAPER, drafter="draft")),
    )
    assert (
        drafted.cache == 2 * ngram.cache
    )  # as the writer of steps, and as the drafter of tokens
    assert (
        need("draft", replace(PAPER, driver="overlapped")).weights == 2 * ngram.weights
    )
    assert (
        need("draft", replace(PAPER, driver="overlapped"), apart=False).weights
        == ngram.weights
    )
    asked = (
        need("target", PAPER, verifier="score:7").cache - need("target", PAPER).cache
    )
    assert asked == cache_bytes(SHAPES["Qwen3-32B"], BF16, (40960 + 8192) // 16, 16)
    plain = plan_run(
        placed(devices), replace(PAPER, mode="ar"), 4096, free=lambda _: None
    ).devices[0]
    assert [one.role for one in plain.needs] == ["target", "judge"]
    few = plan_run(placed(devices), PAPER, 10**9, free=lambda _: None)
    assert few.tokens == 40960  # no chain is longer than the context


def test_what_does_not_fit_is_said_with_all_numbers_and_what_helps() -> None:
    place_all = placed({"target": "cuda:0", "draft": "cuda:0", "judge": "cuda:0"})
    plan = plan_run(place_all, PAPER, 37000, free=lambda _: 84 * GIB)
    with pytest.raises(MemoryShortError) as caught:
        plan.check()
    text = str(caught.value)
    assert isinstance(caught.value, LRError)
    assert "do not fit on cuda:0" in text and "84.0 GiB are free" in text
    assert "target Qwen/Qwen3-32B: weights 61.0 GiB, cache 9" in text
    assert "--draft_gpu_id" in text and "--target_gpu_id 0,1" in text
    longest = plan.devices[0].longest(37000)
    assert f"--max_tokens_len {longest // 64 * 64} instead of 37000" in text
    plan_run(
        place_all, PAPER, longest // 64 * 64, free=lambda _: 84 * GIB
    ).check()  # the advice is right
    with pytest.raises(MemoryShortError):
        plan_run(place_all, PAPER, longest + 256, free=lambda _: 84 * GIB).check()
    with pytest.raises(MemoryShortError) as caught:
        plan_run(place_all, PAPER, 37000, free=lambda _: 40 * GIB).check()
    assert "--max_tokens_len" not in str(
        caught.value
    )  # the weights alone are too large


@pytest.mark.usefixtures("whole_targets")
def test_the_plan_of_a_run_is_what_the_run_reserves() -> None:
    """The twin on the CPU: given a number of free bytes, a run that is said to fit
    takes no more for weights and cache.
    """
    from lr import Reasoner

    reasoner = Reasoner("tiny-target", "tiny-draft", "exact")
    options = GenerateOptions(mode="lr", max_tokens=100)
    run = reasoner.run("hello", mode="lr", max_tokens=100)
    length = len(run.prompt) + 100
    placed = [
        place(name, ("cpu",), torch.float32) for name in ("tiny-target", "tiny-draft")
    ]
    plan = plan_run(PlacedModels(*placed), options, length, free=lambda _: 10 * GIB)
    plan.check()
    [device] = plan.devices
    from lr.types import Role

    for need, role in zip(device.needs, (Role.TARGET, Role.DRAFT), strict=True):
        model = reasoner.engine.target if role is Role.TARGET else reasoner.engine.draft
        assert model is not None
        reserved = run.blocks
        assert need.cache == cache_bytes(model.config, torch.float32, reserved, 16)
        assert need.weights == sum(p.nbytes for p in model.parameters())
    with pytest.raises(MemoryShortError, match="do not fit on cpu"):
        plan_run(
            PlacedModels(*placed), options, length, free=lambda _: device.needed - 1
        ).check()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_plan_of_a_run_is_what_a_gpu_allocates() -> None:
    """Dummy weights of published shapes: all that is counted is there, and at its peak
    the run does not take more than the plan.
    """
    from lr import Reasoner

    names, blocks = ("dummy:Qwen3-1.7B", "dummy:Qwen3-0.6B"), 1024
    options = GenerateOptions(mode="lr+sd", drafter="draft", max_tokens=64)
    roles = PlacedModels(*(place(name, ("cuda",), BF16) for name in names))
    [device] = plan_run(roles, options, 4096, num_blocks=blocks).devices
    gc.collect()  # what earlier tests have left
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with Reasoner(
        *names, "random:0.5", device="cuda", dtype=BF16, num_blocks=blocks
    ) as reasoner:
        reasoner.generate("hello", mode="lr+sd", drafter="draft", max_tokens=64)
        held = torch.cuda.memory_allocated() - before
        peak = torch.cuda.max_memory_allocated() - before
    assert sum(need.weights + need.cache for need in device.needs) <= held
    assert peak <= device.needed


def test_answers_that_wait_for_room_need_it_for_one_alone() -> None:
    """As `Engine.serve` does: on CUDA what does not fit waits, and what never fits is
    refused; on the CPU all is allocated at once.
    """
    options = GenerateOptions(mode="ar")
    for device, waits in (("cuda:7", True), ("cpu", False)):
        roles = PlacedModels(Placed("x", SHAPES["Qwen3-8B"], BF16, (device,)))
        one, eight = (
            plan_run(roles, options, 4096, share=n, free=lambda _: None).needed
            for n in (1, 8)
        )
        for free, fits in (
            (eight, True),
            (eight - 1, waits),
            (one, waits),
            (one - 1, False),
        ):
            plan = plan_run(
                roles, options, 4096, share=8, queues=True, free=lambda _, n=free: n
            )
            if fits:
                plan.check()
            else:
                with pytest.raises(MemoryShortError, match=f"do not fit on {device}"):
                    plan.check()


def test_free_bytes_and_the_unknown() -> None:
    found = free_bytes("cpu")
    assert found is None or found > 0
    need = ModelNeed("target", "x", 10 * GIB, 0, 0)
    plan = MemoryPlan((DevicePlan("mps", None, (need,)),), 100)
    plan.check()  # nobody says what is free: nothing is refused
    assert plan.rows()[-1][-1] == "not known"
    assert working_bytes(SHAPES["Qwen3-32B"], BF16, 10**6, 5) < 2 * GIB
