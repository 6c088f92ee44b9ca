"""The grader of block_verification.py: the exact law, and as many guesses kept as by the package's
rule.
"""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from exercise_kit import CHAINS, EXACT, KINDS, models
from torch import Tensor

from lr.lab.exact import (
    drawn_drafts,
    expected_accepted,
    plain_distribution,
    round_distribution,
    target_rows,
)
from lr.spec.acceptance import AcceptanceRule, Outcome, Proposal
from lr.spec.rules import BlockRule


class Taught(AcceptanceRule):
    """The rule that your function describes."""

    name, lossless, trees, needs_fresh_noise = "taught", True, False, True

    def __init__(self, answer: ModuleType) -> None:
        self.answer = answer

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """One outcome per ending."""
        assert proposal.q is not None
        found = self.answer.endings(p_rows, proposal.q, proposal.tokens)
        return [
            Outcome(float(chance), tuple(range(i)), law.clone, untouched=False)
            for i, (chance, law) in enumerate(found)
        ]


def test_credit_goes_back(answer: ModuleType) -> None:
    """First p/q = 1/2, then 2: token by token both stay in half of the cases; as a block they stay
    for sure.
    """
    p_rows = torch.tensor([[0.4, 0.6], [0.8, 0.2], [0.5, 0.5]]).double()
    q_rows = torch.tensor([[0.8, 0.2], [0.4, 0.6]]).double()
    chances = [chance for chance, _ in answer.endings(p_rows, q_rows, (0, 0))]
    assert chances == pytest.approx([0, 0, 1])


@pytest.mark.parametrize("chain", CHAINS, ids=len)
@pytest.mark.parametrize("kind", KINDS)
def test_the_endings_are_a_law(answer: ModuleType, kind: str, chain: tuple[int, ...]) -> None:
    """n + 1 endings, their probabilities sum to 1, and what follows a possible one is a law."""
    target, draft = models(kind, seed=3)
    for _, proposal in drawn_drafts(draft, chain):
        assert proposal.q is not None
        found = answer.endings(target_rows(target, proposal), proposal.q, proposal.tokens)
        assert len(found) == len(chain) + 1
        assert sum(float(chance) for chance, _ in found) == pytest.approx(1)
        for chance, law in found:
            assert chance > -EXACT and bool(law.isfinite().all())
            assert chance < EXACT or (
                float(law.min()) >= 0 and float(law.sum()) == pytest.approx(1)
            )


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


@pytest.mark.parametrize("chain", CHAINS, ids=len)
def test_as_many_guesses_stay_as_can(answer: ModuleType, chain: tuple[int, ...]) -> None:
    """No rule that sees the guesses' own rows keeps more; yours is to keep that many."""
    target, draft = models("random", seed=2)
    mine = expected_accepted(Taught(answer), target, drawn_drafts(draft, chain))
    assert mine == pytest.approx(
        expected_accepted(BlockRule(), target, drawn_drafts(draft, chain)), abs=EXACT
    )
