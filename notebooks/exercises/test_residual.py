"""The grader of residual.py: the exact law of what comes out, by enumeration."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest
import torch
from exercise_kit import CHAINS, EXACT, KINDS, laws, models
from torch import Tensor

from lr.lab.exact import (
    context_free,
    drawn_drafts,
    expected_accepted,
    plain_distribution,
    round_distribution,
    total_variation,
)
from lr.spec.acceptance import AcceptanceRule, Outcome, Proposal


class Taught(AcceptanceRule):
    """Rejection sampling of a chain, made of your two functions."""

    name, lossless, trees = "taught", True, False

    def __init__(self, answer: ModuleType) -> None:
        self.answer = answer

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """A chain ends at its first rejected token, or after its last."""
        q, found, left = proposal.q, [], 1.0
        assert q is not None
        for i, token in enumerate(proposal.tokens):
            stays = float(self.answer.accept_prob(float(p_rows[i, token]), float(q[i, token])))
            law = partial(self.answer.residual, p_rows[i], q[i])
            found.append(Outcome(left * (1.0 - stays), tuple(range(i)), law, untouched=False))
            left *= stays
        return [
            *found,
            Outcome(left, tuple(range(len(proposal))), lambda: p_rows[-1], untouched=True),
        ]


def test_the_example_of_the_notebook(answer: ModuleType) -> None:
    """p = (0.5, 0.5), q = (0.8, 0.2): heads stays with 0.625, tails always, and tails replaces what
    was rejected.
    """
    p, q = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.8, 0.2]).double()
    assert answer.accept_prob(0.5, 0.8) == pytest.approx(0.625)
    assert answer.accept_prob(0.5, 0.2) == 1
    assert torch.allclose(answer.residual(p, q), torch.tensor([0.0, 1.0]).double())


@pytest.mark.parametrize("kind", KINDS)
def test_the_residual_is_a_law(answer: ModuleType, kind: str) -> None:
    """Nothing is negative, everything sums to 1, and p and q are as they were."""
    for seed in range(20):
        p, q = laws(kind, seed)
        before = p.clone(), q.clone()
        law = answer.residual(p, q)
        assert float(law.min()) >= 0 and float(law.sum()) == pytest.approx(1)
        assert torch.equal(p, before[0]) and torch.equal(q, before[1])


@pytest.mark.parametrize("chain", CHAINS, ids=len)
@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_out_is_the_targets(
    answer: ModuleType, kind: str, chain: tuple[int, ...]
) -> None:
    """All guesses, all endings, every text: the law of the target."""
    target, draft = models(kind, seed=1)
    length = len(chain) + 1
    law = round_distribution(Taught(answer), target, drawn_drafts(draft, chain), length)
    assert float((law - plain_distribution(target, length)).abs().max()) < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_guesses_stay_as_can(answer: ModuleType, kind: str) -> None:
    """No rule can keep more than 1 - total variation; yours is to keep that many."""
    p, q = laws(kind, seed=2)
    kept = expected_accepted(Taught(answer), context_free(p), drawn_drafts(context_free(q), (-1,)))
    assert kept == pytest.approx(1 - total_variation(p, q))
