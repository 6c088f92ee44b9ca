"""Rows, optimiser and loop: the loss falls where it should, and an interrupted training
ends in the very same weights.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from signal import SIGINT, SIGTERM, getsignal, signal
from typing import Any

import pytest
import torch
from tiny_training.rows import RESULT_WEIGHT, WIDTHS, RowMaker
from tiny_training.trainer import (
    Recipe,
    Trainer,
    fresh_model,
    held_out_counts,
    hidden_rows,
)
from torch.multiprocessing import start_processes

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.tiny.grammar import Style
from lr.tiny.language import Split, problem
from lr.tiny.names import tiny_config
from lr.tiny.oracle import parse
from lr.tiny.vocabulary import build_tokenizer

TOKENIZER = build_tokenizer()


def shrink_pools(patch: pytest.MonkeyPatch) -> None:
    """A pool has 20 problems: the full one of 320 takes a second to make."""
    patch.setattr("tiny_training.rows.POOL_PROBLEMS", 16)
    patch.setattr("tiny_training.rows.POOL_LONG", 4)
    patch.setattr("tiny_training.judge.POOL_PAIRS", 64)


@pytest.fixture(scope="module", autouse=True)
def small_pools() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink_pools(patch)
        yield


def with_small_pools(rank: int, work: Callable[..., None], *words: Any) -> None:
    """The work of a process, whose pools are small too."""
    with pytest.MonkeyPatch.context() as patch:
        shrink_pools(patch)
        work(rank, *words)


def start_small(
    work: Callable[..., None], args: tuple[Any, ...] = (), **how: Any
) -> None:
    """Instead of `spawn`: forks of the tests' server."""
    start_processes(
        with_small_pools, args=(work, *args), start_method="forkserver", **how
    )


def rows(style: Style = Style.TARGET) -> RowMaker:
    return RowMaker(TOKENIZER, style, seed=5)


def trainer() -> Trainer:
    model = fresh_model(tiny_config(1, len(TOKENIZER)), seed=0)
    return Trainer(model, rows(), Recipe(tokens=5000, batch=300, warmup=5))


def weights_of(model: CausalLM) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def test_resuming_gives_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    straight, first = trainer(), trainer()
    losses = [straight.step()[0] for _ in range(3)]
    assert losses[0] == first.step()[0]
    first.save(tmp_path / "state.pt")
    second = trainer()
    second.load(tmp_path / "state.pt")
    assert [second.step()[0] for _ in range(2)] == losses[1:]
    assert second.progress == straight.progress
    for a, b in zip(weights_of(straight.model), weights_of(second.model), strict=True):
        assert torch.equal(a, b)


def test_the_loss_falls() -> None:
    one = trainer()
    losses = [one.step()[0] for _ in range(8)]
    assert losses[-1]["loss"] < 0.8 * losses[0]["loss"]
    assert set(losses[0]) == {"loss", "results", "names", "words"}


def test_as_many_processes_as_before(tmp_path: Path) -> None:
    one = trainer()
    one.progress.places = ((0, 0), (1, 0))
    torch.save(
        {
            "progress": {"step": 0, "tokens": 0, "places": one.progress.places},
            "model": {},
            "muon": {},
            "adam": {},
        },
        tmp_path / "state.pt",
    )
    with pytest.raises(SettingError, match="written by 2 processes"):
        one.load(tmp_path / "state.pt")


def test_schedule() -> None:
    recipe = Recipe(tokens=1000, warmup=10)
    assert recipe.rate(0, 0) == pytest.approx(0.1)
    assert recipe.rate(100, 500) == pytest.approx(0.51)
    assert recipe.rate(200, 1000) == recipe.rate(300, 2000) == pytest.approx(0.02)
    with pytest.raises(SettingError):
        Recipe(tokens=0)


def test_a_row_has_loss_on_its_own_style_only() -> None:
    """The prompt carries none, nor does a step of the other style; every step that
    carries loss can be read.
    """
    foreign = 0
    for i in range(40):
        what = problem(Split.TRAIN, i)
        ids, weights, _ = rows().problem_row(what, random.Random(i))
        assert len(ids) == len(weights)
        prompt = rows().prompt(what.question)
        assert ids[: len(prompt)] == prompt and not any(weights[: len(prompt)])
        steps = TOKENIZER.decode(ids[len(prompt) : -1]).split("\n\n")
        assert [parse(step) for step in steps] == list(what.steps)
        at = len(prompt)
        for step in steps:
            width = len(TOKENIZER.encode(step, add_special_tokens=False)) + 1
            here = weights[at : at + width]
            assert all(here) or not any(here)
            foreign += not any(here)
            at += width
    assert 30 < foreign < 120


def test_a_drill_has_loss_on_results_only() -> None:
    seen = set()
    for seed in range(20):
        ids, weights, _ = rows().drill_row(80, random.Random(seed))
        assert len(ids) <= 80
        results = [ids[i] for i in range(len(ids)) if weights[i] == RESULT_WEIGHT]
        assert results and all(
            TOKENIZER.decode([token]).strip().isdigit() for token in results
        )
        seen.add("Then" in TOKENIZER.decode(ids) or "read" in TOKENIZER.decode(ids))
    assert seen == {True, False}, "both kinds of drill occur"


def test_batches_resume_at_a_place_and_are_shared_out() -> None:
    batches = list(islice(rows().batches((0, 0), 1, 1200, 0.4), 6))
    again = list(islice(rows().batches(batches[2].place, 1, 1200, 0.4), 3))
    for a, b in zip(batches[3:], again, strict=True):
        assert (
            torch.equal(a.tokens, b.tokens)
            and torch.equal(a.weights, b.weights)
            and a.place == b.place
        )
    for batch in batches:
        assert batch.tokens.shape[1] in WIDTHS
        assert batch.tokens.numel() <= 1200 or len(batch.tokens) == 1, (
            "one row may be longer"
        )
    other = next(rows().batches((1, 0), 2, 1200, 0.4))
    assert not torch.equal(other.tokens, batches[0].tokens)


def run_script(name: str, out: Path, *words: str) -> None:
    """A training script, as if it were started with these words. Its processes are
    forks of the tests' server; what it does with signals is undone."""
    script, known = importlib.import_module(name), [SIGINT, SIGTERM]
    before = [getsignal(number) for number in known]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [f"{name}.py", "--out", str(out), *words])
        patch.setattr("torch.multiprocessing.spawn", start_small)
        try:
            script.start(script.work, script.arguments())
        finally:
            for number, handler in zip(known, before, strict=True):
                signal(number, handler)


def test_the_script_trains_a_model_and_goes_on(tmp_path: Path) -> None:
    words = [
        "--language",
        "plans",
        "--role",
        "draft",
        "--tokens",
        "20000",
        "--batch",
        "200",
    ]
    words += ["--processes", "2"]
    run_script("train_tiny", tmp_path, *words, "--eval-problems", "1", "--steps", "1")
    assert (tmp_path / "hf").is_dir()  # a check on held-out problems leaves a copy
    run_script(
        "train_tiny",
        tmp_path,
        *words,
        "--eval-problems",
        "1",
        "--steps",
        "2",
        "--resume",
    )
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["progress"]["step"] == 2
    assert load_model(tmp_path / "hf").config.num_layers == 2


def test_the_script_trains_a_judge(tmp_path: Path) -> None:
    words = ["--tokens", "3000", "--batch", "600", "--layers", "1", "--real-share", "0"]
    words += ["--check", "4", "--processes", "1"]
    run_script("train_judge", tmp_path, *words, "--steps", "1")
    assert (tmp_path / "hf").is_dir()
    run_script("train_judge", tmp_path, *words, "--steps", "2", "--resume")
    assert load_model(tmp_path / "hf").config.num_layers == 1


def test_rectangles_agree_with_the_engine() -> None:
    """Greedy tokens, one by one with the paged cache, are the argmax of the causal pass
    over whole rows.
    """
    model = fresh_model(tiny_config(2, len(TOKENIZER)), seed=1)
    torch.nn.init.normal_(model.layers[0].mlp.down.weight, std=0.1)
    runner = ModelRunner(model, num_blocks=8, vocab_size=len(TOKENIZER))
    branches = [runner.open(prompt) for prompt in ([5, 6, 7], [8, 9, 10, 11, 12])]
    while any(len(branch) < 10 for branch in branches):
        live = [branch for branch in branches if len(branch) < 10]
        for branch, logits in zip(live, runner.forward(live), strict=True):
            branch.append(int(logits.argmax()))
    with torch.no_grad():
        tokens = torch.tensor([branch.tokens for branch in branches])
        best = model.logits(hidden_rows(model, tokens)).argmax(-1)
    for row, start in enumerate((3, 5)):
        assert torch.equal(best[row, start - 1 : -1], tokens[row, start:])


def test_a_check_leaves_the_training_as_it_was() -> None:
    """Held-out problems are answered between two steps, and the losses are those
    without it."""
    checked, plain = trainer(), trainer()
    losses = [plain.step()[0] for _ in range(3)]
    again = [checked.step()[0]]
    counts = held_out_counts(checked.model, Codec(TOKENIZER, name="tiny"), range(2))
    assert (
        counts[0] == counts[2] == 2 and counts[1] <= 2 and counts[5] <= counts[4] <= 2
    )
    assert again + [checked.step()[0] for _ in range(2)] == losses
