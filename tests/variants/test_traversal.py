"""Traversal Verification: exact by enumeration, block verification on chains, never
fewer tokens than rejection sampling; and the tree that it judges is drawn honestly.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.rng import Stream
from lr.spec.acceptance import ROOT, Draws, Proposal, RejectRule
from lr.spec.block_rule import BlockRule
from lr.spec.token_sd import Context
from lr.theory.exact import (
    drawn_drafts,
    expected_accepted,
    plain_distribution,
    round_distribution,
    target_rows,
    total_variation,
)
from lr.types import SamplingParams
from lr.variants.kit import check
from lr.variants.kit.tokens import small_model, table
from lr.variants.loading import load_variant
from lr.variants.traversal import DrawnTree, Traversal

TREES = [
    (ROOT, ROOT, ROOT),
    (ROOT, 0, 0),
    (ROOT, ROOT, 0, 1),
    (ROOT, 0, ROOT, 2),
    (ROOT, 0, 1, 0),
]
QUESTION = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
)


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Reasoner]:
    with Reasoner() as made:
        yield made


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("parents", TREES, ids=str)
def test_it_is_exact_and_keeps_no_less_than_rejection(
    parents: tuple[int, ...], replace: bool
) -> None:
    for seed, drop in ((1, 0.0), (2, 0.3), (3, 0.0)):
        target, draft = table(seed, 3, drop), table(seed + 100, 3, 0.0)
        drafts = list(drawn_drafts(draft, parents, replace=replace))
        length = 1 + max(drafts[0][1].depths())
        law = round_distribution(Traversal(), target, drafts, length)
        assert total_variation(law, plain_distribution(target, length)) < 1e-12
        kept, usual = (
            expected_accepted(r, target, drafts) for r in (Traversal(), RejectRule())
        )
        assert kept >= usual - 1e-12


def test_rounding_between_equal_models_is_no_error() -> None:
    """The draft's probability is the target's but for the last digit."""
    p = torch.tensor([[0.1 + 0.2, 0.7]] * 2, dtype=torch.float64)
    q = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    outcomes = Traversal().outcomes(p, Proposal((1,), (ROOT,), q))
    assert sum(one.probability for one in outcomes) == pytest.approx(1)


def test_a_likely_ending_saves_an_unlikely_beginning() -> None:
    """The tree 0 -> 1, 0 -> 2: more stays than if each place is decided before the
    next."""
    target, draft = table(1, 3, 0.0), table(101, 3, 0.0)
    drafts = list(drawn_drafts(draft, (ROOT, 0, 0)))
    kept, usual = (
        expected_accepted(r, target, drafts) for r in (Traversal(), RejectRule())
    )
    assert kept > usual + 0.05


def test_on_a_chain_it_is_block_verification() -> None:
    target, draft = table(5, 3, 0.2), table(6, 3, 0.0)
    for _, proposal in drawn_drafts(draft, (ROOT, 0, 1)):
        rows = target_rows(target, proposal)
        ours, theirs = (
            Traversal().outcomes(rows, proposal),
            BlockRule().outcomes(rows, proposal),
        )
        assert [one.nodes for one in ours] == [one.nodes for one in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.probability == pytest.approx(b.probability, abs=1e-12)
            if b.probability > 0:
                assert torch.allclose(a.next_probs(), b.next_probs())


def test_the_tree_keeps_its_contract() -> None:
    """The rule is checked with the variant (`test_shipped.py`)."""
    found = check(
        lambda runner, sampling: DrawnTree(runner, sampling, branching=(2, 2))
    )
    assert "tokens are drawn from the stated q, anew in every round" in found.passed


def test_places_of_a_tree_have_noise_of_their_own() -> None:
    """Two cousins in the same context distribution must not be the same draw."""
    model = small_model(64)
    for layer in model.parameters():
        layer.zero_()  # every distribution is uniform
    drafter = DrawnTree(
        ModelRunner(model, num_blocks=60), SamplingParams(1.0), branching=(2, 1)
    )
    branch = ModelRunner(model, num_blocks=20).open([1, 2, 3])
    alike = 0
    for number in range(200):
        draws = Draws(Stream.root(3).fold_in(number), 0)
        [proposal] = drafter.propose([Context(branch, 5, draws)], 2)
        assert proposal.parents == (ROOT, ROOT, 0, 1) and proposal.q is not None
        assert proposal.tokens[0] != proposal.tokens[1]
        assert float(proposal.q[1, proposal.tokens[0]]) == 0.0
        assert torch.allclose(proposal.q.sum(-1), torch.ones(4, dtype=proposal.q.dtype))
        alike += proposal.tokens[2] == proposal.tokens[3]
    assert alike < 25  # 200 / 64 are due; more than 24 by chance: under 1e-12


def test_it_answers_as_plain_decoding_does_at_temperature_0(reasoner: Reasoner) -> None:
    variant = load_variant("traversal(branching=(2, 2, 1))", reasoner)
    plain = reasoner.generate(QUESTION, mode="ar", temperature=0.0)
    found = reasoner.generate(QUESTION, variant=variant, temperature=0.0)
    assert found.tokens == plain.tokens and found.mode == "sd"
    drawn = reasoner.generate(QUESTION, variant=variant, seed=2)
    assert drawn.stats.rounds.accepted > 0


def test_a_tree_without_a_draft_model_is_refused(reasoner: Reasoner) -> None:
    with pytest.raises(SettingError, match="use 'draft'"):
        reasoner.generate(
            QUESTION,
            variant=load_variant("traversal", reasoner),
            mode="sd",
            drafter="ngram",
        )
