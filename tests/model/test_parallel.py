"""A model over several processes computes what it computes in one, and a rank that dies
ends the run with its number.
"""

import gc
import os
import signal
import threading
import time
from multiprocessing import active_children

import pytest
import torch
import torch.distributed as dist
from model_kit import compute_alike, hf_model, runner_on

from lr.errors import SettingError
from lr.model.attention import REFERENCE
from lr.model.ranks import RankLM, WorkerError, load_parallel
from lr.model.weights import load_model

CPU = torch.device("cpu")
LIMIT = 30.0
"""Seconds within which a run must have ended."""


@pytest.mark.parametrize(
    "size, kind, changes",
    [
        (2, "qwen3", {"tie_word_embeddings": False}),
        (4, "qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    ],
)
def test_logits_and_hidden_states_are_those_of_one_rank(size, kind, changes, tmp_path):
    """fp64, to 1e-10. 4 query heads, of which two share a KV head, so two of four ranks
    do; a vocabulary of 61, which neither 2 nor 4 divides."""
    hf_model(kind, **changes).save_pretrained(tmp_path, max_shard_size="30KB")
    alone = load_model(tmp_path)
    model = load_parallel(tmp_path, [CPU] * size)
    with pytest.raises(SettingError, match="belongs to a group"):
        load_parallel(tmp_path, [CPU] * 2)
    try:
        for attention in (model.attention, REFERENCE):
            model.attention = attention  # the others follow, with a second cache
            runners = [runner_on(m, 80, max_batch_tokens=8) for m in (alone, model)]
            compute_alike(runners, seed=1, steps=12)
            assert runners[1].cache.copied_blocks, "a fork wrote"
    finally:
        model.close()
    assert not active_children()
    assert not dist.is_initialized()


def test_what_nobody_holds_ends_on_all_ranks():
    model = load_parallel("tiny-target", [CPU] * 2)
    for _ in range(2):  # the second forward drops the first cache
        runner = runner_on(model)
        runner.forward([runner.open([5])])
        gc.collect()
        assert list(model.others.caches) == [runner.cache]
    del model, runner
    gc.collect()
    assert not active_children()


def feed_for_ever(model, strike=None):
    """Decode; `strike` happens in the middle, in another thread."""
    runner = runner_on(model)
    branch = runner.open([5, 6, 7])
    while True:
        runner.forward([branch])
        branch.append(8)
        if len(branch) == 10 and strike is not None:
            threading.Thread(target=strike).start()
        if len(branch) > 500:
            runner.rewind(branch, 12)


def test_a_killed_rank_ends_the_run_with_its_number():
    model = load_parallel("tiny-target", [CPU] * 4)
    victim = model.others.processes[1]
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"rank 2 .* code -9"):
        feed_for_ever(model, lambda: os.kill(victim.pid, signal.SIGKILL))
    assert time.monotonic() - started < LIMIT
    assert not active_children(), "no rank is left"
    with pytest.raises(WorkerError, match="load it again"):  # from now on
        feed_for_ever(model)


def test_an_interrupted_pass_ends_the_ranks(monkeypatch):
    """Ctrl-C in a notebook: the ranks would be out of step."""
    model = load_parallel("tiny-target", [CPU] * 2)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RankLM, "trunk", interrupt)
    with pytest.raises(KeyboardInterrupt):
        feed_for_ever(model)
    with pytest.raises(WorkerError, match="load it again"):
        feed_for_ever(model)
    assert not active_children()
