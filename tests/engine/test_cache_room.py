"""On CUDA, caches take the memory that is free, less a reserve, and answers wait for
their part of it."""

import pytest
import torch

from lr.engine.runner import RESERVE, IdleRunners, ModelRunner, room
from lr.errors import OutOfBlocks
from lr.measure.memory import GIB
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.reasoner import Reasoner
from lr.registry import SAMPLE_QUESTION


def cuda(monkeypatch, free, reserved=0, allocated=0):
    """As if models were on a GPU with so many bytes free."""
    monkeypatch.setattr(CausalLM, "device", torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)


def test_what_is_free_less_a_reserve_is_the_cache(monkeypatch):
    target, draft = (
        IdleRunners(load_model(f"tiny-{role}")) for role in ("target", "draft")
    )
    assert room([target, draft]) is None  # on a CPU as much as is needed
    held = ModelRunner(draft.model, num_blocks=8)
    cuda(monkeypatch, 3 * GIB, reserved=5 << 20, allocated=1 << 20)
    free = 3 * GIB - RESERVE + (4 << 20)
    ours, theirs = (
        16 * model.dtype.itemsize * model.config.cached_per_token
        for model in (target.model, draft.model)
    )
    block = ours + theirs
    assert room([target, draft]) == free // block
    assert room([target, draft, draft]) == free // (block + theirs)
    draft.idle.append(held)  # its memory comes back when a larger one is made
    bytes_held = held.cache.keys.nbytes + held.cache.values.nbytes
    assert bytes_held == 8 * theirs
    assert room([target, draft]) == (free + bytes_held) // block
    cuda(monkeypatch, GIB)
    assert room([target]) == 0


def test_answers_wait_for_the_room_there_is(monkeypatch):
    """Four at a time are asked for and two fit; one that never fits is refused with the
    numbers."""
    options = {"mode": "ar", "max_tokens": 24, "max_step_tokens": 16}
    with Reasoner(draft=None) as reasoner:
        alone = [
            reasoner.generate(SAMPLE_QUESTION, seed=seed, **options).tokens
            for seed in range(4)
        ]
        runs = [
            reasoner.run(SAMPLE_QUESTION, seed=seed, **options) for seed in range(4)
        ]
        need = runs[0].question.blocks
        monkeypatch.setattr("lr.engine.engine.room", lambda caches: 2 * need + 1)
        for runners in reasoner.engine.runners.values():
            runners.end()
        order = [run for run, _ in reasoner.engine.serve(runs, concurrency=4)]
        assert [run.result.tokens for run in runs] == alone
        before_the_third = order[: order.index(runs[2])]
        assert any(before_the_third.count(run) == order.count(run) for run in runs[:2])
        monkeypatch.setattr("lr.engine.engine.room", lambda caches: need - 1)
        with pytest.raises(OutOfBlocks, match=str(need)):
            reasoner.generate(SAMPLE_QUESTION, **options)
