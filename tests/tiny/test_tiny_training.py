"""Rows, optimiser and loop: the loss falls where it should, and an interrupted training
ends in the very same weights.
"""

import importlib
from signal import SIGINT, SIGTERM, getsignal, signal

import pytest
import torch
from tiny_training.checkpoint import tiny_config
from tiny_training.judge import JudgeRows
from tiny_training.pairs import grammar_pair
from tiny_training.rows import RowMaker
from tiny_training.trainer import Recipe, Trainer, fresh_model
from tiny_training.vocabulary import build_tokenizer
from tiny_training.wording import Style

from lr.model.weights import load_model

TOKENIZER = build_tokenizer()


@pytest.fixture(scope="module", autouse=True)
def small_pools():
    """A pool has 20 problems: the full one of 320 takes a second to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiny_training.rows.POOL_PROBLEMS", 16)
        patch.setattr("tiny_training.rows.POOL_LONG", 4)
        patch.setattr("tiny_training.judge.POOL_PAIRS", 64)
        yield


def language_rows():
    return RowMaker(TOKENIZER, Style.TARGET, seed=5)


def judge_rows():
    return JudgeRows(TOKENIZER, 0, [grammar_pair(i, seed=3) for i in range(600)])


def trainer(rows=None):
    model = fresh_model(tiny_config(1, len(TOKENIZER)), seed=0)
    recipe = Recipe(tokens=5000, batch=300, warmup=5, drills=0.0 if rows else 0.4)
    return Trainer(model, rows or language_rows(), recipe)


@pytest.mark.parametrize("rows", [language_rows, judge_rows])
def test_resuming_gives_the_same_weights_bit_for_bit(rows, tmp_path):
    straight, first, second = trainer(rows()), trainer(rows()), trainer(rows())
    losses = [straight.step() for _ in range(3)]
    assert losses[0] == first.step()
    first.save(tmp_path / "state.pt")
    second.load(tmp_path / "state.pt")
    assert [second.step() for _ in range(2)] == losses[1:]
    assert second.progress == straight.progress
    weights = zip(straight.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


@pytest.mark.parametrize(
    "name, words",
    [
        ("train_tiny", "--role draft --tokens 20000 --batch 200"),
        ("train_judge", "--tokens 3000 --batch 600 --layers 1 --real-share 0"),
    ],
)
def test_a_script_trains_and_goes_on(name, words, tmp_path):
    script = importlib.import_module(name)
    signals = [SIGINT, SIGTERM]
    before = [getsignal(number) for number in signals]
    for last_step in ("--steps 1", "--steps 2 --resume"):
        flags = f"--out {tmp_path} {words} {last_step}".split()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", [f"{name}.py", *flags])
            try:
                script.main()
            finally:
                for number, handler in zip(signals, before, strict=True):
                    signal(number, handler)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["progress"]["step"] == 2
    layers = 2 if name == "train_tiny" else 1
    assert load_model(tmp_path / "hf").config.num_layers == layers
