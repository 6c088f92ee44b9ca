"""The checkpoints that come with the package: found by name, loaded by plain
transformers and by us alike, and able.
"""

import pytest
import torch

from lr.engine.runner import ModelRunner
from lr.errors import CheckpointError
from lr.model.codec import Codec, require_same
from lr.model.files import resolve
from lr.model.weights import load_model
from lr.result import boxed
from lr.tiny import CHECKPOINTS
from lr.tiny.language import Split, problem
from lr.tiny.names import speaks_tiny
from lr.tiny.oracle import parse


def test_an_unknown_name_is_refused():
    with pytest.raises(CheckpointError, match="tiny-oracle"):
        resolve("tiny-oracle")


def test_all_are_small_and_speak_the_same_tokens():
    files = [file for name in CHECKPOINTS for file in resolve(name).iterdir()]
    assert sum(file.stat().st_size for file in files) < 12e6
    for name in CHECKPOINTS:
        codec = Codec.load(name)
        assert speaks_tiny(codec)
        require_same(Codec.load("tiny-target"), codec)


def test_the_target_solves_and_stays_in_the_language():
    codec = Codec.load("tiny-target")
    model = load_model("tiny-target", dtype=torch.float32)
    runner = ModelRunner(model, num_blocks=200, vocab_size=codec.vocab_size)
    problems = [problem(Split.TEST, i, seed=1) for i in range(6)]
    branches = [runner.open(codec.chat(task.question)) for task in problems]
    starts = [len(branch) for branch in branches]
    live = list(branches)
    while live:
        for branch, logits in zip(live, runner.forward(live), strict=True):
            branch.append(int(logits.argmax()))
        live = [b for b in live if b.tokens[-1] not in codec.eos_ids and len(b) < 400]
    right = 0
    for task, branch, start in zip(problems, branches, starts, strict=True):
        text = codec.decode(branch.tokens[start:])
        assert all(parse(step) for step in text.split("\n\n"))
        right += boxed(text) == str(task.answer)
    assert right >= 5
