"""The parts: proposals that fit together, the two formulas at their edges, the keys."""

from __future__ import annotations

import pytest
import torch
from acceptance_kit import draws

from lr.errors import ProtocolError
from lr.rng import uniform
from lr.spec.acceptance import (
    EMPTY,
    ROOT,
    Outcome,
    Proposal,
    RejectRule,
    accept_prob,
    acceptance_chances,
    pick,
    residual,
    residual_certain,
)
from lr.spec.block_rule import BlockRule, block_weights


def law(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_proposal() -> None:
    tree = Proposal((7, 4, 9, 2), (ROOT, ROOT, 0, 2))
    assert not tree.is_chain and len(tree) == 4
    assert tree.families() == [[0, 1], [2], [], [3], []]
    assert tree.path(3) == (0, 2, 3) and tree.path(1) == (1,) and tree.path(ROOT) == ()
    assert tree.depths() == [0, 1, 1, 2, 3]
    assert (
        Proposal.chain([5, 6]).parents == (ROOT, 0) and Proposal.chain([5, 6]).is_chain
    )
    assert Proposal.chain(()).is_chain and len(EMPTY) == 0 and EMPTY.families() == [[]]


@pytest.mark.parametrize(
    ("tokens", "parents", "q", "message"),
    [
        ((1, 2), (ROOT,), None, r"2 tokens has parents \(-1,\)"),
        ((1, 2), (ROOT, 1), None, r"2 tokens has parents \(-1, 1\)"),
        ((1, 2), (ROOT, -2), None, r"2 tokens has parents \(-1, -2\)"),
        ((1, 2), (ROOT, 0), torch.ones(1, 3), r"shape \(1, 3\); expected \[2, v\]"),
        ((1,), (ROOT,), torch.ones(3), r"shape \(3,\); expected \[1, v\]"),
    ],
)
def test_a_proposal_that_does_not_fit_is_refused(
    tokens: tuple[int, ...],
    parents: tuple[int, ...],
    q: torch.Tensor | None,
    message: str,
) -> None:
    with pytest.raises(ProtocolError, match=message):
        Proposal(tokens, parents, q)


def test_accept_prob() -> None:
    assert accept_prob(0.2, 0.4) == 0.5
    assert accept_prob(0.4, 0.2) == 1
    assert accept_prob(0.0, 0.3) == 0
    assert accept_prob(0.3, 0.0) == 1  # cannot have been drawn
    assert accept_prob(0.0, 0.0) == 0


def test_residual() -> None:
    assert residual(law(0.5, 0.3, 0.2), law(0.2, 0.6, 0.2)).tolist() == [1, 0, 0]
    assert residual(law(0.5, 0.4, 0.1), law(0.2, 0.2, 0.6)).tolist() == pytest.approx(
        [0.6, 0.4, 0]
    )
    p = law(0.5, 0.5)
    assert residual(p, p).tolist() == [0.5, 0.5]  # 0 / 0: p <= q everywhere
    assert residual(law(1, 0), law(0, 1)).tolist() == [1, 0]  # disjoint
    assert residual_certain(law(0.5, 0.3, 0.2), [0]).tolist() == pytest.approx(
        [0, 0.6, 0.4]
    )
    assert residual_certain(law(0.5, 0.3, 0.2), [0, 0, 2]).tolist() == [0, 1, 0]
    assert residual_certain(law(1, 0), [0]).tolist() == [1, 0]


def test_the_keys_of_one_step_are_all_different() -> None:
    """Samples, replacements and uniform numbers of all places, wherever the rounds
    begin."""
    places = range(50)
    keys = {
        draws(offset=start).sample_key(depth) for start in places for depth in range(10)
    }
    assert (
        keys == {draws().sample_key(place) for place in range(59)} and len(keys) == 59
    )
    keys |= {draws(offset=place).residual_key(0) for place in places}
    assert len(keys) == 59 + 50
    assert draws(offset=3).residual_key(2) == draws(offset=5).residual_key(0)
    assert len({uniform(draws(offset=place).uniform_key) for place in places}) == 50


def test_pick() -> None:
    a, b, c, d = (
        Outcome(p, (i,), lambda: law(1), False)
        for i, p in enumerate((0.5, 0.0, 0.4999, 0.0))
    )
    assert pick([a, b, c, d], 0.0) is a
    assert pick([a, b, c, d], 0.4999) is a
    assert pick([a, b, c, d], 0.5) is c
    assert (
        pick([a, b, c, d], 0.99999) is c
    )  # beyond what rounding left: the last that is possible
    assert pick([b, a], 0.0) is a


def test_chances_of_siblings() -> None:
    """p (0.5, 0.3, 0.2); tokens 0 then 1, certain: 0.5, then 0.3 of the 0.5 left. Token
    0 again: no chance.
    """
    p = law(0.5, 0.3, 0.2).repeat(4, 1)
    siblings = Proposal((0, 1, 0), (ROOT,) * 3)
    assert acceptance_chances(p, siblings, siblings.families()) == pytest.approx(
        [0.5, 0.6, 0]
    )
    everything = Proposal((0, 1, 2), (ROOT,) * 3)
    assert acceptance_chances(p, everything, everything.families()) == pytest.approx(
        [0.5, 0.6, 1]
    )
    drawn = Proposal((1, 2, 1), (ROOT,) * 3, law(0.2, 0.6, 0.2).repeat(3, 1))
    # token 1: 0.3/0.6; what is left is (1, 0, 0): tokens 2 and 1 have no chance any
    # more
    assert acceptance_chances(p, drawn, drawn.families()) == pytest.approx([0.5, 0, 0])


def test_block_weights() -> None:
    assert block_weights([0.4, 0.1], [0.2, 0.2]) == [1, 1, 0.5]
    assert block_weights([0.1, 0.4], [0.2, 0.2]) == [1, 0.5, 1]
    assert block_weights([0.0, 0.4], [0.2, 0.2]) == [1, 0, 0]
    assert block_weights([0.2, 0.0], [0.0, 0.0]) == [1, 1, 0]  # cannot have been drawn


@pytest.mark.parametrize(
    "rule", [RejectRule(), BlockRule()], ids=lambda rule: rule.name
)
def test_a_draft_that_could_not_be_drawn(rule: RejectRule | BlockRule) -> None:
    """q(x) = 0: stays if the target can write it, else it goes, and nothing divides by
    zero."""
    p, q = law(0.5, 0.5, 0.0).repeat(3, 1), law(0.0, 1.0, 0.0).repeat(2, 1)
    for tokens, kept in (((0, 0), 2), ((2, 0), 0), ((0, 2), 1)):
        outcomes = rule.outcomes(p, Proposal.chain(tokens, q))
        assert {
            len(outcome.nodes) for outcome in outcomes if outcome.probability > 0
        } == {kept}
