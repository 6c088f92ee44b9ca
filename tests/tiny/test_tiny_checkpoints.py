"""The checkpoints that come with the package: found by name, loaded by plain
transformers and by us alike, and able.
"""

import pytest

from lr.errors import CheckpointError
from lr.model.codec import Codec, require_same
from lr.model.files import resolve
from lr.reasoner import Reasoner
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


@pytest.mark.usefixtures("whole_targets")
def test_the_target_solves_and_stays_in_the_language():
    options = {"mode": "ar", "temperature": 0.0, "max_tokens": 400}
    right = 0
    with Reasoner() as reasoner:
        for i in range(3):
            task = problem(Split.TEST, i, seed=1)
            result = reasoner.generate(task.question, **options)
            assert all(parse(step.text.strip()) for step in result.steps)
            right += result.answer == str(task.answer)
    assert right == 3
