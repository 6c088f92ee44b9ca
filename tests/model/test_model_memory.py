"""The memory plan: exact where it counts (against models and caches that are really
made), clear where something does not fit.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lr.engine.runner import num_kv_blocks_needed
from lr.measure.dummy import SHAPES
from lr.measure.memory import free_bytes, model_bytes, plan_memory
from lr.model.device import DeviceMap
from lr.options import GenerateOptions
from lr.reasoner import Reasoner

BF16 = torch.bfloat16
F32 = torch.float32
PAPER = GenerateOptions(mode="lr+sd", drafter="ngram", depth=4, driver="overlapped")
NAMES = ("Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-7B-Instruct")
MODELS = "--model Qwen3-32B --draft_model Qwen3-1.7B --judge_model Qwen2.5-7B"
CUDA = [torch.device("cuda", n) for n in range(4)]
ONE_GPU = DeviceMap((CUDA[0],), CUDA[0], CUDA[0])
FOUR_GPUS = DeviceMap((CUDA[0], CUDA[1]), CUDA[2], CUDA[3])


def plan(places=ONE_GPU, options=PAPER, tokens=37000, names=NAMES, **changes):
    settings = {"free_gib": 1000.0} | changes
    return plan_memory(names, places, BF16, options, tokens, **settings)


def bytes_of(plan, role):
    """Weights and caches of a model on its first device."""
    return next(
        (weights, cache)
        for _, model, weights, cache in plan.models
        if model.startswith(role)
    )


def test_ranks_share_matrices_not_norms_nor_single_heads():
    large = SHAPES["Qwen3-32B"]
    full, half = (model_bytes(large, BF16, 1, ranks)[0] for ranks in (1, 2))
    norms = 64 * (2 * 5120 + 2 * 128) + 5120
    assert half == (full - 2 * norms) // 2 + 2 * norms
    few = replace(large, num_kv_heads=2)
    assert model_bytes(few, BF16, 5, 4)[1] == model_bytes(few, BF16, 5, 2)[1]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no shared memory here")
@pytest.mark.parametrize("room, copies", [(0, 2), (1 << 50, 1)])
def test_a_process_needs_no_copy_of_weights_that_it_can_share(
    room, copies, monkeypatch
):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=room))
    cpu = DeviceMap.of("cpu")
    overlapped, lockstep = (
        bytes_of(plan(cpu, replace(PAPER, driver=driver)), "draft")[0]
        for driver in ("overlapped", "lockstep")
    )
    assert overlapped == copies * lockstep


def test_needs_add_up_where_models_share_a_device():
    together, apart = plan(), plan(FOUR_GPUS)
    assert list(together.free) == ["cuda:0"]
    assert list(apart.free) == [f"cuda:{n}" for n in range(4)]
    _, cache = bytes_of(together, "target")
    assert 2 * bytes_of(apart, "target")[1] == cache
    blocks = num_kv_blocks_needed(PAPER, 37000)
    assert cache == model_bytes(SHAPES["Qwen3-32B"], BF16, blocks)[1]


def test_what_options_add():
    weights, cache = bytes_of(plan(), "draft")
    # The draft writes steps, and proposes tokens.
    proposes = plan(options=replace(PAPER, drafter="draft"))
    assert bytes_of(proposes, "draft") == (weights, 2 * cache)
    # On another device than the target, its worker is a process.
    assert bytes_of(plan(FOUR_GPUS), "draft") == (2 * weights, cache)
    _, cache = bytes_of(plan(), "target")
    asked = bytes_of(plan(verifier="score:7"), "target")[1] - cache
    blocks = (40960 + 8192) // 16
    assert asked == model_bytes(SHAPES["Qwen3-32B"], BF16, blocks)[1]
    # It reads what it judges on branches of the target.
    assert bytes_of(plan(verifier="likelihood:-1"), "target")[1] == cache
    assert bytes_of(plan(share=3), "target")[1] == 3 * cache
    plain = plan(options=replace(PAPER, mode="ar"))
    assert [model.split()[0] for _, model, *_ in plain.models] == ["target", "judge"]
    # No chain is longer than the context.
    assert plan(tokens=10**9) == plan(tokens=40960)


@pytest.mark.usefixtures("whole_targets")
def test_the_plan_of_an_answer_is_what_it_reserves():
    names = ("tiny-target", "tiny-draft")
    options = GenerateOptions(mode="lr", max_tokens=100)
    with Reasoner(*names, "exact") as reasoner:
        answer = reasoner.run("hello", mode="lr", max_tokens=100)
        length = len(answer.question.prompt) + 100
        on_cpu = DeviceMap.of("cpu")
        planned = plan_memory((*names, None), on_cpu, F32, options, length)
        models = reasoner.engine.target_model, reasoner.engine.draft_model
        for (*_, weights, cache), model in zip(planned.models, models, strict=True):
            held = model.make_cache(answer.question.blocks, 16)
            assert weights == sum(weight.nbytes for weight in model.parameters())
            assert cache == held.keys.nbytes + held.values.nbytes


def test_nothing_is_refused_where_nobody_knows_what_is_free():
    assert (free_bytes("cpu") or 1) > 0
    replace(plan(), free={"mps": None}).check()


def test_the_papers_models_do_not_fit_one_gpu_of_80_gib(cli):
    """They fit its four; half of the target is on each of two."""
    devices = (
        "--target_device cuda:0,cuda:1 --draft_device cuda:2 --judge_device cuda:3"
    )
    assert cli(f"info {MODELS} {devices} --free_gib 79").out.count("30.5 GiB") == 2
    out, error = cli(f"info {MODELS} --target_device cuda:0 --free_gib 79", 2)
    assert "together" in out and "cuda:0" in error


@pytest.mark.parametrize(
    "judge, draft, device, shares",
    [
        ("Qwen3-32B", "Qwen3-1.7B", "cpu", True),
        ("Qwen3-1.7B", "Qwen3-1.7B", "cpu", True),
        ("Qwen3-1.7B", "int4:Qwen3-1.7B", "cpu", False),
        ("Qwen3-32B", "Qwen3-1.7B", "cuda:0", False),
        ("Qwen2.5-7B", "Qwen3-1.7B", "cpu", False),
    ],
)
def test_a_judge_that_is_target_or_draft_has_their_weights(
    judge, draft, device, shares, cli
):
    """A draft in four bits is another model."""
    models = f"--model Qwen3-32B --draft_model {draft} --judge_model {judge}"
    devices = f"--target_device cpu --judge_device {device}"
    shown = cli(f"info {models} {devices} --free_gib 900").out
    [line] = [line for line in shown.splitlines() if " judge " in line]
    assert ("shared" in line and " 0.0 GiB" in line) == shares


def test_lr_run_plans_before_it_loads(tmp_path, cli, monkeypatch):
    monkeypatch.setattr("lr.measure.memory.free_bytes", lambda _: 8 << 30)
    loaded = lambda *_, **__: pytest.fail("models were loaded")  # noqa: E731
    monkeypatch.setattr("lr.engine.loading.load_model", loaded)
    models = MODELS.replace(" Qwen", " dummy:Qwen")
    words = (
        f"run --dataset tiny:2 {models} --device cpu --mode lr --output {tmp_path}/r"
    )
    assert "do not fit on cpu" in cli(words, 2).err
