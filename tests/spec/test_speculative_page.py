"""`lr/speculative.py` emits the target's law, by enumeration: every draw and every
decision of the page goes both ways, on models with a cache, until no way is left.
"""

from functools import partial

import pytest
import torch
from law_kit import Choices
from model_kit import random_model, runner_on
from toy_kit import PROMPT

from lr import speculative
from lr.rng import Stream
from lr.types import SamplingParams

LENGTH = 3
END = frozenset({1})


def runner(seed, vocab_size=3):
    return runner_on(random_model(seed, vocab_size=vocab_size), block_size=2)


@pytest.mark.parametrize(
    "draft_seed, sampling",
    [
        (1, SamplingParams(1.0)),
        (1, SamplingParams(0.7, top_k=2)),  # distributions with zeros
        (0, SamplingParams(1.0)),  # the draft is the target: p = q everywhere
        (1, SamplingParams(0.0)),
    ],
)
def test_the_page_emits_the_law_of_the_target(draft_seed, sampling, monkeypatch):
    choices = Choices()
    monkeypatch.setattr(speculative, "sample", choices.sample)
    monkeypatch.setattr(speculative, "uniform", choices.uniform)
    draft, target = runner(draft_seed), runner(0)

    def run(k):
        rounds = speculative.speculative_sampling(
            [2, 0, 1], draft, target, sampling, Stream.root(0), LENGTH, END, k
        )
        return tuple(token for tokens in rounds for token in tokens)

    law = choices.enumerate(partial(run, 2))
    plain = choices.enumerate(partial(run, 0))  # a token per forward, from the target
    assert law.keys() == plain.keys()
    assert all(law[text] == pytest.approx(plain[text], abs=1e-12) for text in plain)
    assert draft.cache.pool.num_used == target.cache.pool.num_used == 0


def test_no_decision_uses_the_number_of_another(monkeypatch):
    keys = []
    monkeypatch.setattr(speculative, "uniform", lambda key: keys.append(key) or 0.7)
    models = runner(1, 12), runner(0, 12)
    sampling = SamplingParams(1.0)
    [*_] = speculative.speculative_sampling(
        PROMPT, *models, sampling, Stream.root(3), 40
    )
    assert len(keys) > 20 and len(set(keys)) == len(keys)


def test_the_residual_of_equal_distributions_is_p():
    p = torch.tensor([0.25, 0.75])
    assert speculative.residual(p, p).equal(p)
