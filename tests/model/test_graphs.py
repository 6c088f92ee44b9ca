"""Forwards on static buffers, replayed: whatever the rows and whatever ran before, they
give what the ordinary forward gives.

The recorder is the twin without CUDA, which overwrites its result as a graph does;
attention is the kit's.
"""

from dataclasses import replace

import pytest
import torch
from attention_kit import TILES
from model_kit import compute_alike, poisoned, random_model, runner_on
from torch.utils._python_dispatch import TorchDispatchMode

from lr.engine.runner import IdleRunners
from lr.errors import SettingError
from lr.model.graphs import StepGraphs, record_eager
from lr.model.qwen import CausalLM

V = 23


MODEL = random_model(0, num_layers=2, vocab_size=V, max_position_embeddings=128)
MODEL.attention = TILES


def replaying(recorder=record_eager, rows=(1, 2, 4, 8)):
    runner = runner_on(MODEL, num_blocks=80)
    runner.graphs = StepGraphs(MODEL, runner.cache, recorder, rows)
    return runner, runner.graphs


@pytest.mark.parametrize("seed", range(6))
def test_replayed_forwards_are_the_ordinary_ones(seed):
    """Between batches of every size, those that are too large included."""
    plain = poisoned(runner_on(MODEL, num_blocks=80))
    replays, graphs = replaying()
    compute_alike([plain, poisoned(replays)], seed)
    assert len(graphs._recordings) > 2
    assert plain.cache.pool.num_used == 0
    assert replays.cache.pool.num_used == 1  # the padding block
    for _ in range(2):
        replays.end()
    assert replays.cache.pool.num_used == 0


@pytest.mark.parametrize("prompts", [1, 3])
def test_results_outlive_the_next_replay(prompts):
    """Logits of two forwards of one size are two tensors, with and without padding
    rows."""
    runner, _ = replaying()
    branches = [runner.open([1 + i]) for i in range(prompts)]
    first = torch.stack(runner.forward(branches))
    copies = first.clone()
    for branch in branches:
        branch.append(9)
    runner.forward(branches)
    assert torch.equal(first, copies)


def test_what_cannot_be_recorded_is_said():
    def record(compute):
        raise RuntimeError("out of memory")

    with pytest.raises(SettingError, match="out of memory"):
        replaying(record)


def test_the_block_for_padding_rows_is_not_lent(monkeypatch):
    monkeypatch.setattr(CausalLM, "replayable", True)
    monkeypatch.setattr("lr.model.graphs.recorder_for", lambda device: record_eager)
    runners = IdleRunners(MODEL)
    small = runners.lend(4)
    runners.put_back(small)
    large = runners.lend(5)
    assert large is not small
    assert large.cache.pool.num_free == 5
    runners.put_back(large)
    assert runners.lend(5) is large


FORBIDDEN = "_local_scalar_dense nonzero masked_select unique pin_memory".split()
"""What a CUDA graph may not contain: reading a value back, shapes that depend on
values, copies from the host."""


class Operations(TorchDispatchMode):
    """Notes every operation."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_what_is_recorded_can_be_recorded(monkeypatch):
    """Whatever is in the buffers, the model issues the same operations, and none that
    asks the device for a value.
    """
    lists = []

    def watch(compute):
        compute()  # warms up

        def replay():
            with Operations() as operations:
                logits = compute()
            lists.append(operations.names)
            return logits

        return replay

    kind = replace(TILES, tiles=lambda tiles, cache: lambda layer, q, k, v: q)
    monkeypatch.setattr(MODEL, "attention", kind)
    runner, _ = replaying(watch, rows=(4,))
    branches = [runner.open([token]) for token in range(2)]
    for token in range(4):
        runner.forward(branches)
        for branch in branches:
            branch.append(token)
    assert len(lists) == 4
    assert all(names == lists[0] for names in lists)
    assert not [name for name in lists[0] for word in FORBIDDEN if word in name]
