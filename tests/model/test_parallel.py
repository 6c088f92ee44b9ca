"""A model over two and four processes says what it says in one: forwards, whole
answers, several models of one group.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from attention_kit import row_attention
from model_kit import hf_model
from parallel_kit import alive, pids_of, readings, shared_memory, wait_for
from reasoner_kit import write_checkpoint

from lr.engine.runner import ModelRunner
from lr.errors import ProtocolError, SettingError
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import REFERENCE, AttentionKind, RowPages, sdpa_attention
from lr.model.graphs import ROWS as ROW_COUNTS
from lr.model.layers import Attend
from lr.model.qwen import CausalLM
from lr.model.ranks import RankGroup, WorkerError, load_parallel, spread_over
from lr.model.weights import load_model
from lr.reasoner import Reasoner
from lr.types import Origin

NETWORKS = {
    "qwen3": ("qwen3", {"tie_word_embeddings": False}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "as many KV heads as query heads": (
        "qwen3",
        {"num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "one KV head": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
}
"""All with 4 query heads and a vocabulary of 61, which neither 2 nor 4 divides; two KV
heads are fewer than four ranks.
"""
QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"

HOW = {"segmenter": "fixed", "segment_tokens": 6}


@pytest.mark.parametrize("size", [2, 4])
def test_logits_and_hidden_states_are_those_of_one_rank(
    size: int, tmp_path: Path
) -> None:
    """fp64, over prompts in pieces, forks, copies, cut branches: to 1e-10. The models
    share one group.
    """
    before = shared_memory()
    group = RankGroup(spread_over(size, "cpu"))
    try:
        for name, (kind, changes) in NETWORKS.items():
            path = tmp_path / name
            hf_model(kind, **changes).save_pretrained(path, max_shard_size="30KB")
            alone = readings(load_model(path), 61)
            model = group.load(path)
            spread = readings(model, 61)
            assert alone.shape == spread.shape
            assert (alone - spread).abs().max() < 1e-10, name
            assert alone.abs().max() > 0.1
        model.attention = REFERENCE  # the followers follow in this too, with a second cache for the same model
        assert (readings(model, 61) - alone).abs().max() < 1e-10
        pids = pids_of(group)
        assert len(pids) == size - 1
    finally:
        group.close()
    assert not any(map(alive, pids))
    assert shared_memory() <= before


def no_kernel(rows: RowPages, cache: PagedKVCache) -> Attend:
    raise RuntimeError("no kernel for so many rows")


def no_kernel_on_one(rows: RowPages, cache: PagedKVCache) -> Attend:
    return (
        row_attention(rows, cache) if dist.get_rank() == 0 else no_kernel(rows, cache)
    )


def test_a_rank_alone_that_cannot_record_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others have begun sums that it will never join."""
    model = load_parallel("tiny-target", spread_over(2, "cpu"), patience=2.0)
    (pid,) = pids_of(model.group)
    model.attention = AttentionKind("sdpa", sdpa_attention, no_kernel_on_one)
    monkeypatch.setattr(CausalLM, "replayable", True)
    with pytest.raises(WorkerError, match="rank 1"):
        ModelRunner(model, num_blocks=4)
    assert not alive(pid)


def test_ranks_replay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks record, by the counterpart of CUDA graphs, and replay in step: forwards
    of 3 rows are forwards of 4 on all of them, those of `read` and long prompts go the
    ordinary way.
    """
    hf_model("qwen3", tie_word_embeddings=False).save_pretrained(tmp_path)
    alone = readings(load_model(tmp_path), 61)
    model = load_parallel(tmp_path, spread_over(2, "cpu"))
    model.attention = AttentionKind("sdpa", sdpa_attention, row_attention)
    monkeypatch.setattr(CausalLM, "replayable", True)
    try:
        runner = ModelRunner(model, num_blocks=4)
        assert runner.graphs is not None and runner.graphs.recorded == list(ROW_COUNTS)
        for _ in range(
            2
        ):  # the second time on another cache, with recordings of its own
            assert (readings(model, 61) - alone).abs().max() < 1e-10
        runner.end()
        branch = runner.open([5, 6, 7])  # ranks agree that nothing is replayed any more
        assert runner.forward([branch])[0].isfinite().all()
        model.attention = AttentionKind("sdpa", sdpa_attention, no_kernel)
        with pytest.warns(RuntimeWarning, match="recording 64 rows failed: no kernel"):
            assert (readings(model, 61) - alone).abs().max() < 1e-10
    finally:
        model.close()


def test_whole_answers_are_those_of_one_rank(tmp_path: Path) -> None:
    """Token for token in fp64, in all modes over two and four ranks; also while another
    process drafts. The target has two layers: every layer is two exchanges between the
    ranks.
    """
    target = write_checkpoint(tmp_path / "target", seed=1, layers=2, heads=(4, 2))
    draft = write_checkpoint(tmp_path / "draft", seed=2)
    ways = [
        *({"mode": mode, "temperature": 1.0, "seed": 3} for mode in ("ar", "sd", "lr")),
        {"mode": "lr+sd", "depth": 3, "width": 2, "temperature": 1.0, "seed": 3},
        {
            "mode": "lr+sd",
            "drafter": "step",
            "driver": "overlapped",
            "acceptance": "match",
        },
    ]
    answers: list[list[list[tuple[int, ...]]]] = []
    for device in ("cpu", *({"target": ["cpu"] * size} for size in (2, 4))):
        with Reasoner(
            target, draft, "random:0.6", device=device, dtype=torch.float64
        ) as one:
            results = [
                one.generate(QUESTION, max_tokens=24, **HOW, **options)
                for options in ways
            ]
        answers.append(
            [[(s.tokens, s.origin) for s in result.steps] for result in results]
        )
    assert all(len(steps) > 1 for steps in answers[0])
    origins = {origin for steps in answers[0] for _, origin in steps}
    assert {Origin.ACCEPTED, Origin.CORRECTION} <= origins
    assert answers[0] == answers[1] == answers[2]


def test_bf16_and_the_ends_of_a_team() -> None:
    """Distributions, not tokens: sums of bf16 are rounded in another order. A cache
    that is forgotten is forgotten everywhere; a closed model says so; a forgotten one
    ends its ranks.
    """
    model = load_parallel("tiny-target", spread_over(2, "cpu"), torch.bfloat16)
    alone = load_model("tiny-target", dtype=torch.bfloat16)
    (pid,) = pids_of(model.group)
    said = []
    for one in (alone, model):
        runner = ModelRunner(one, num_blocks=4)
        branch = runner.open([5, 6, 7, 8, 9])
        said += runner.forward([branch], "all")
        runner.close(branch)
    assert said[0].dtype == torch.bfloat16
    far = (said[0].float().softmax(-1) - said[1].float().softmax(-1)).abs().sum(-1) / 2
    assert far.max() < 0.05
    runner.cache = alone.make_cache(2, 16)
    with pytest.raises(ProtocolError, match="its own make_cache"):
        runner.forward([runner.open([5])])
    with pytest.raises(SettingError, match="belongs to a group"):
        load_parallel("tiny-target", spread_over(2, "cpu"))
    cache = model.make_cache(2, 16)
    number = cache.number
    assert number in model.group.caches
    del cache
    gc.collect()
    assert number not in model.group.caches
    runner = ModelRunner(model, num_blocks=4)
    branch = runner.open([5])
    runner.forward([branch])
    assert list(model.group.caches) == [runner.cache.number]
    model.close()
    branch.append(6)
    with pytest.raises(WorkerError, match="was closed"):
        runner.forward([branch])
    runner.close(branch)
    assert wait_for(lambda: not alive(pid), 5)
    del model, runner, branch, one
    model = load_parallel("tiny-target", spread_over(2, "cpu"))
    (pid,) = pids_of(model.group)
    del model
    gc.collect()
    assert wait_for(lambda: not alive(pid), 10), (
        "nobody holds the model, and nobody has closed it"
    )
