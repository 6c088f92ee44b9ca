"""A model over two and four processes says what it says in one: forwards, whole answers, several
models of one team.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from model_kit import hf_model
from parallel_kit import alive, readings, shared_memory, wait_for

from lr.errors import ProtocolError, SettingError
from lr.model.attention import REFERENCE
from lr.model.batch import RaggedBatch
from lr.model.parallel.start import load_on, load_parallel, spread_over, start_team
from lr.model.parallel.watch import WorkerError
from lr.model.weights import load_model
from lr.reasoner import Reasoner

NETWORKS = {
    "qwen3": ("qwen3", {"tie_word_embeddings": False}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "as many KV heads as query heads": (
        "qwen3",
        {"num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "one KV head": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
}
"""All with 4 query heads and a vocabulary of 61, which neither 2 nor 4 divides; two KV heads are
fewer than four ranks.
"""
QUESTION = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
)


@pytest.mark.parametrize("size", [2, 4])
def test_logits_and_hidden_states_are_those_of_one_rank(size: int, tmp_path: Path) -> None:
    """fp64, over prompts in pieces, forks, copies, cut branches: to 1e-10. The models share one
    team.
    """
    before = shared_memory()
    team = start_team(spread_over(size, "cpu"))
    try:
        for name, (kind, changes) in NETWORKS.items():
            path = tmp_path / name
            hf_model(kind, **changes).save_pretrained(path, max_shard_size="30KB")
            alone = readings(load_model(path), 61)
            model = load_on(team, path)
            spread = readings(model, 61)
            assert alone.shape == spread.shape
            assert (alone - spread).abs().max() < 1e-10, name
            assert alone.abs().max() > 0.1
        model.attention = (
            REFERENCE  # the followers follow in this too, with a second cache for the same model
        )
        assert (readings(model, 61) - alone).abs().max() < 1e-10
        pids = team.pids
        assert len(pids) == size - 1
    finally:
        team.close()
    assert not any(map(alive, pids))
    assert shared_memory() <= before


def test_whole_answers_are_those_of_one_rank() -> None:
    """Token for token in fp64, with speculation on both levels; also while another process
    drafts.
    """
    ways = [
        {"mode": "lr+sd", "depth": 3, "width": 2, "temperature": 0.7, "seed": 3},
        {"mode": "lr+sd", "drafter": "step", "driver": "overlapped", "temperature": 0.0},
    ]
    answers: list[list[list[tuple[int, ...]]]] = []
    for device in ("cpu", spread_over(2, "cpu")):
        with Reasoner(verifier="oracle", device=device, dtype=torch.float64) as reasoner:
            results = [reasoner.generate(QUESTION, max_tokens=45, **options) for options in ways]
        answers.append([[step.tokens for step in result.steps] for result in results])
    assert all(len(steps) > 1 for steps in answers[0])
    assert answers[0] == answers[1]


def test_bf16_and_a_head_on_other_hidden_states() -> None:
    model = load_parallel("tiny-target", spread_over(2, "cpu"), torch.bfloat16)
    alone = load_model("tiny-target", dtype=torch.bfloat16)
    try:
        hidden = torch.randn(3, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
        assert torch.equal(model.logits(hidden), alone.logits(hidden))
        cache, other = model.make_cache(4, 16), alone.make_cache(4, 16)
        rows = []
        for one, its_cache in ((model, cache), (alone, other)):
            table = its_cache.new()
            with torch.inference_mode(), its_cache.append([table], [5]) as slots:
                batch = RaggedBatch.build(
                    [table], [[5, 6, 7, 8, 9]], slots, wanted=[5], device=torch.device("cpu")
                )
                rows.append(one(batch, its_cache))
            its_cache.release(table)
        assert rows[0].dtype == torch.bfloat16
        far = (rows[0].float().softmax(-1) - rows[1].float().softmax(-1)).abs().sum(-1) / 2
        assert far.max() < 0.05, (
            "distributions, not tokens: sums of bf16 are rounded in another order"
        )
    finally:
        model.close()


def test_a_cache_that_is_forgotten_is_forgotten_everywhere_and_misuse_is_named() -> None:
    model = load_parallel("tiny-target", spread_over(2, "cpu"), torch.float32)
    (pid,) = model.team.pids
    with pytest.raises(ProtocolError, match="its own make_cache"):
        model.hidden(None, load_model("tiny-target").make_cache(2, 16))
    with pytest.raises(ProtocolError, match="without a cache"):
        model.trunk(torch.tensor([1]), torch.tensor([0]), None)
    with pytest.raises(SettingError, match="belongs to a group"):
        load_parallel("tiny-target", spread_over(2, "cpu"))
    cache = model.make_cache(2, 16)
    number = cache.number
    del cache
    gc.collect()
    assert any(
        getattr(order, "cache", None) == number and type(order).__name__ == "DropCache"
        for order in model.team._queue
    )
    model.logits(torch.zeros(1, 128))
    assert not model.team._queue
    model.close()
    with pytest.raises(WorkerError, match="was closed"):
        model.logits(torch.zeros(1, 128))
    assert wait_for(lambda: not alive(pid), 5)
    model = load_parallel("tiny-target", spread_over(2, "cpu"))
    (pid,) = model.team.pids
    del model
    gc.collect()
    assert wait_for(lambda: not alive(pid), 10), "nobody holds the model, and nobody has closed it"
