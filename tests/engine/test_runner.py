"""Ragged forwards: nothing is ever half done, and long prompts go in pieces. What
forwards compute is compared in `tests/model/test_model_parity.py`.
"""

from dataclasses import replace

import pytest
import torch
from model_kit import poisoned, random_model, runner_on

from lr.errors import ContextError, SettingError
from lr.model.attention import REFERENCE, SDPA
from lr.spec.runner import reuse_computed

V = 23


MODEL = random_model(0, num_layers=2, vocab_size=V, max_position_embeddings=128)


def runner(attention=SDPA, **settings):
    MODEL.attention = attention
    return poisoned(runner_on(MODEL, num_blocks=64, **settings))


def tokens(count, seed):
    return torch.randint(
        V, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


def alone(ids):
    """Logits [t, v] of one sequence in a fresh runner."""
    fresh = runner(REFERENCE)
    return fresh.forward([fresh.open(ids)], logits="all")[0]


def close(a, b):
    return torch.allclose(a, b, rtol=0, atol=1e-12)


def state(model_runner, branches):
    return [
        (list(b.tokens), list(b.table.blocks), b.table.length) for b in branches
    ], model_runner.cache.pool.num_free


def test_a_failing_forward_changes_nothing(monkeypatch):
    model_runner = runner()
    branch = model_runner.open(tokens(6, 0))
    model_runner.forward([branch])
    branch.extend([1, 2, 3])
    before = state(model_runner, [branch])
    with monkeypatch.context() as patch:
        failing = replace(SDPA, ragged=lambda batch, cache: 1 / 0)
        patch.setattr(model_runner.model, "attention", failing)
        with pytest.raises(ZeroDivisionError):
            model_runner.forward([branch])
    assert state(model_runner, [branch]) == before
    assert close(model_runner.forward([branch])[0], alone(branch.tokens)[-1])


@pytest.mark.parametrize("limit", [1, 3, 5, 8, 100])
def test_long_prompts_go_in_pieces(limit):
    prompts = [tokens(11, 1), tokens(2, 2)]
    for logits in ("last", "all"):
        pieces = runner(max_batch_tokens=limit)
        branches = [pieces.open(prompt) for prompt in prompts]
        results = pieces.forward(branches, logits)
        for rows, prompt in zip(results, prompts, strict=True):
            expected = alone(prompt)
            assert close(rows, expected[-1] if logits == "last" else expected)


def test_ids_that_the_tokenizer_lacks_are_never_drawn():
    """A draft may be told less than its target: it reads such a token, and writes none."""
    model_runner = runner(vocab_size=20, known_tokens=15)
    [logits] = model_runner.forward([model_runner.open([1, 19])])
    assert logits.shape == (20,)
    assert logits.isfinite().tolist() == [True] * 15 + [False] * 5


def test_what_cannot_be_computed_is_refused():
    model_runner = runner(vocab_size=20)  # the rest is padding
    branch = model_runner.open([1, 2])
    assert model_runner.forward([]) == []
    assert model_runner.forward([branch])[0].shape == (20,)
    with pytest.raises(AssertionError, match="computed"):
        model_runner.forward([branch])
    long = model_runner.open([1] * 129)
    with pytest.raises(ContextError, match="context"):
        model_runner.forward([long])
    model_runner.close(long)
    with pytest.raises(SettingError, match="token id"):
        model_runner.open([20])
    branch.append(1)
    model_runner.close(branch)
    with pytest.raises(AssertionError):
        model_runner.forward([branch])


def test_a_branch_takes_over_what_another_has_computed():
    model_runner = runner()
    text = tokens(9, 0)
    other = [(text[7] + 1) % V]
    read, branch = model_runner.open(text[:7] + other), model_runner.open(text[:3])
    model_runner.forward([read, branch])
    branch.extend(text[3:])
    reuse_computed(model_runner, branch)
    assert branch.tokens == text and branch.num_computed_tokens == 7
    assert list(model_runner.branches) == [read, branch]
    assert close(model_runner.forward([branch])[0], alone(text)[-1])
    before = state(model_runner, [read, branch])
    reuse_computed(model_runner, branch)  # there is nothing more to reuse
    assert state(model_runner, [read, branch]) == before
    for each in (read, branch):
        model_runner.close(each)
    assert model_runner.cache.pool.num_free == 64 and not model_runner.branches
