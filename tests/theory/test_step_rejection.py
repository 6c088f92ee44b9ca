"""Rejection sampling on whole steps keeps the target's distribution over steps, by
enumeration of all steps of a small world."""

from itertools import product

import pytest
import torch
from law_kit import pair as models_of

from lr.theory.exact import step_rejection

V, LONGEST = 3, 3
ENDED = [
    (*tokens, 0) for n in range(LONGEST) for tokens in product(range(1, V), repeat=n)
]
CUT = list(product(range(1, V), repeat=LONGEST))
"""All steps: they end with token 0, or are cut at `LONGEST` tokens."""


def step_law(model):
    """The probability of each step under a model."""
    chances = []
    for step in (*ENDED, *CUT):
        rows = [model(step[:i])[token] for i, token in enumerate(step)]
        chances.append(torch.stack(rows).prod())
    return torch.stack(chances)


@pytest.mark.parametrize("kind", ["random", "zeros", "equal"])
@pytest.mark.parametrize("seed", range(3))
def test_the_emitted_step_has_the_targets_distribution(seed, kind):
    """All draft steps and all attempts added up; a cut draft is always rejected."""
    p, q = map(step_law, models_of(kind, seed, V))
    q[len(ENDED) :] = 0.0
    emitted, attempts = step_rejection(p, q)
    assert float((emitted - p).abs().max()) < 1e-12
    # Redrawing until a step stays costs 1 / P(stays): one per position on average.
    assert attempts == pytest.approx(1)
    if kind == "random":  # a plain step of the target as correction would be biased
        accepted = torch.minimum(p, q)
        plain = accepted + (1 - accepted.sum()) * p
        assert float((plain - p).abs().max()) > 1e-3


def test_equal_steps_are_always_accepted():
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    emitted, attempts = step_rejection(p, p)
    assert torch.equal(emitted, p) and attempts == 0
