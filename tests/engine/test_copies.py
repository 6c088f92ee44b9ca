"""A `Reasoner` that has answered can be copied, pickled and saved; the copy answers as it
does."""

import copy
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.variants.kit.tokens import random_runner

QUESTION = "How many apples has Tom?"


WAYS = {
    "pickle": lambda reasoner: pickle.loads(pickle.dumps(reasoner)),
    "process pool": lambda reasoner: pickle.loads(ForkingPickler.dumps(reasoner)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
USES = {
    "lookahead": {"mode": "lr"},
    "both levels": {"mode": "lr+sd", "drafter": "draft"},
    "a worker": {"mode": "lr", "driver": "overlapped"},
}


@pytest.fixture(scope="module")
def reasoner(target, draft):
    return Reasoner(target, draft, num_blocks=128)


@pytest.mark.parametrize("use", USES)
def test_a_copy_answers_as_the_reasoner_does(reasoner, use):
    options = {"max_tokens": 40, "max_step_tokens": 12, **USES[use]}
    answer = reasoner.generate(QUESTION, **options)
    for way, copied in WAYS.items():
        with copied(reasoner) as other:
            tokens = other.generate(QUESTION, **options).tokens
        assert tokens == answer.tokens, way


def test_a_cache_in_use_survives_a_pickle():
    """A judge keeps the beginning of its prompts in a cache of its own."""
    runner = random_runner(layers=2)
    branch = runner.open([5, 6, 7, 8])
    runner.forward([branch])
    copied, twin = pickle.loads(pickle.dumps((runner, branch)))
    for model, text in ((runner, branch), (copied, twin)):
        text.extend([9, 5])
        [logits] = model.forward([text])
        [anew] = runner.forward([runner.open(branch.tokens)])
        torch.testing.assert_close(logits, anew)


def test_idle_caches_stay_out_of_a_pickle(reasoner):
    reasoner.close()
    before = len(pickle.dumps(reasoner))
    reasoner.generate(QUESTION, mode="lr", max_tokens=40)
    assert len(pickle.dumps(reasoner)) < 1.01 * before


def test_an_answer_in_progress_cannot_be_copied(reasoner):
    answer = reasoner.run(QUESTION, mode="ar", max_tokens=40)
    next(iter(answer))
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(SettingError, match="answer"):
            way(answer)
    assert pickle.loads(pickle.dumps(answer.finish())).tokens == answer.result.tokens
