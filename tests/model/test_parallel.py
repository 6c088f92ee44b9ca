"""A model over several processes computes what it computes in one, and a rank that dies
ends the run with its number.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from model_kit import hf_model
from parallel_kit import scenario
from reasoner_kit import write_checkpoint

from lr.commands.cli import main
from lr.engine.runner import ModelRunner
from lr.errors import ProtocolError, SettingError
from lr.model.attention import REFERENCE
from lr.model.ranks import LeaderLM, RankLM, WorkerError, load_parallel, spread_over
from lr.model.weights import load_model
from lr.reasoner import Reasoner
from lr.types import Origin

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
LIMIT = 30.0
"""Seconds within which a run must have ended."""


@pytest.mark.parametrize(
    ("size", "kind", "changes"),
    [
        (2, "qwen3", {"tie_word_embeddings": False}),
        (4, "qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ],
)
def test_logits_and_hidden_states_are_those_of_one_rank(
    size: int, kind: str, changes: dict[str, object], tmp_path: Path
) -> None:
    """fp64, to 1e-10, over prompts in pieces, forks, copies and cut branches. 4 query
    heads, a vocabulary of 61, which neither 2 nor 4 divides."""
    hf_model(kind, **changes).save_pretrained(tmp_path, max_shard_size="30KB")
    alone = scenario(load_model(tmp_path), 61)
    model = load_parallel(tmp_path, spread_over(size, "cpu"))
    try:
        assert (scenario(model, 61) - alone).abs().max() < 1e-10
        model.attention = REFERENCE  # the others follow, with a second cache
        assert (scenario(model, 61) - alone).abs().max() < 1e-10
    finally:
        model.close()
    assert not active_children()
    assert not dist.is_initialized()


def test_whole_answers_are_those_of_one_rank(tmp_path: Path) -> None:
    """Token for token in fp64, also while another process drafts."""
    target = write_checkpoint(tmp_path / "target", seed=1, layers=2, heads=(4, 2))
    draft = write_checkpoint(tmp_path / "draft", seed=2)
    modes: list[dict[str, object]] = [
        {"mode": "lr+sd", "depth": 3, "width": 2, "temperature": 1.0, "seed": 3},
        {"mode": "lr", "driver": "overlapped"},
    ]
    answers = []
    for device in ("cpu", {"target": ["cpu", "cpu"]}):
        with Reasoner(
            target, draft, "random:0.6", device=device, dtype=torch.float64
        ) as reasoner:
            answers += [
                reasoner.generate(
                    QUESTION,
                    max_tokens=24,
                    segmenter="fixed",
                    segment_tokens=6,
                    **options,  # type: ignore[arg-type]
                ).steps
                for options in modes
            ]
    origins = {step.origin for steps in answers for step in steps}
    assert {Origin.ACCEPTED, Origin.CORRECTION} <= origins
    spread = [[(s.tokens, s.origin) for s in steps] for steps in answers[2:]]
    assert spread == [[(s.tokens, s.origin) for s in steps] for steps in answers[:2]]


def test_a_spread_model_has_its_own_caches_and_one_group() -> None:
    """A cache that is forgotten is forgotten on all ranks; a model that nobody holds
    ends its ranks."""
    model = load_parallel("tiny-target", spread_over(2, "cpu"))
    with pytest.raises(SettingError, match="belongs to a group"):
        load_parallel("tiny-target", spread_over(2, "cpu"))
    cache = model.make_cache(2, 16)
    runner = ModelRunner(model, num_blocks=4)
    assert len(model.group.caches) == 2
    del cache
    gc.collect()
    branch = runner.open([5])
    runner.forward([branch])
    assert list(model.group.caches.values()) == [runner.cache]
    runner.close(branch)
    runner.cache = load_model("tiny-target").make_cache(2, 16)
    with pytest.raises(ProtocolError, match="make_cache"):
        runner.forward([runner.open([5])])
    del model, runner, branch
    gc.collect()
    assert not active_children()


def feed_for_ever(model: LeaderLM, strike: Callable[[], None] | None = None) -> None:
    """Decode; `strike` happens in the middle, in another thread."""
    runner = ModelRunner(model, num_blocks=40)
    branch = runner.open([5, 6, 7])
    while True:
        runner.forward([branch])
        branch.append(8)
        if len(branch) == 10 and strike is not None:
            threading.Thread(target=strike).start()
        if len(branch) > 500:
            runner.rewind(branch, 12)


def test_a_killed_rank_ends_the_run_with_its_number() -> None:
    model = load_parallel("tiny-target", spread_over(4, "cpu"))
    victim = model.group.processes[1]
    assert victim.pid is not None
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"rank 2 .* was killed by SIGKILL"):
        feed_for_ever(model, lambda: os.kill(victim.pid or 0, signal.SIGKILL))
    assert time.monotonic() - started < LIMIT
    assert not active_children(), "no rank is left"
    with pytest.raises(WorkerError, match="rank 2"):  # from now on
        feed_for_ever(model)


def test_a_rank_that_fails_reports_why() -> None:
    """Here, it gets a message that it cannot carry out."""
    model = load_parallel("tiny-target", spread_over(2, "cpu"))
    model.group.send(set(), 0, "no pass")
    with pytest.raises(WorkerError, match=r"rank 1 .* failed(.|\n)*TypeError"):
        feed_for_ever(model)


def test_an_interrupted_pass_ends_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook: the ranks would be out of step."""
    model = load_parallel("tiny-target", spread_over(2, "cpu"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RankLM, "trunk", interrupt)
    with pytest.raises(KeyboardInterrupt):
        feed_for_ever(model)
    with pytest.raises(WorkerError, match="KeyboardInterrupt"):
        feed_for_ever(model)
    assert not active_children()


@pytest.mark.parametrize("ranks", ["0", "3"])
def test_the_command_line_refuses_what_cannot_be(
    ranks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--tensor_parallel", ranks, "--device", "cpu"]
    assert main(["generate", "How many?", *flags]) == 2
    assert f"tensor_parallel is {ranks}" in capsys.readouterr().err
