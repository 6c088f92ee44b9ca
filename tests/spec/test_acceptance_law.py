"""Every rule marked lossless emits exactly the target's law: all drafts and all
outcomes added up, to 1e-12.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from acceptance_kit import CHAINS, EXACT, KINDS, TREES, pair

from lr.spec.acceptance import RULES, Proposal, follow
from lr.theory.exact import (
    Drafts,
    Model,
    certain_drafts,
    drawn_drafts,
    plain_distribution,
    round_distribution,
    target_rows,
)

LOSSLESS = [name for name in RULES if RULES[name]().lossless]
FOR_TREES = [name for name in LOSSLESS if RULES[name]().trees]


def depth(parents: tuple[int, ...]) -> int:
    return max(Proposal((0,) * len(parents), parents).depths())


def drafts_of(how: str, draft: Model, parents: tuple[int, ...]) -> Drafts:
    if how == "certain":
        return certain_drafts(draft, parents)
    return drawn_drafts(draft, parents, replace=how == "drawn")


def largest_error(rule: str, target: Model, drafts: Drafts, length: int) -> float:
    drafts = list(drafts)
    assert sum(weight for weight, _ in drafts) == pytest.approx(1, abs=EXACT)
    return float(
        (
            round_distribution(RULES[rule](), target, drafts, length)
            - plain_distribution(target, length)
        )
        .abs()
        .max()
    )


@pytest.mark.parametrize("how", ["drawn", "certain"])
@pytest.mark.parametrize("parents", CHAINS, ids=len)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", LOSSLESS)
def test_chains(rule: str, kind: str, parents: tuple[int, ...], how: str) -> None:
    for seed, v in enumerate([2, 3, 4] if len(parents) < 3 else [4]):
        target, draft = pair(kind, seed, v)
        assert (
            largest_error(
                rule, target, drafts_of(how, draft, parents), len(parents) + 1
            )
            < EXACT
        )


@pytest.mark.parametrize("how", ["drawn", "without replacement", "certain"])
@pytest.mark.parametrize("parents", TREES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", FOR_TREES)
def test_trees(rule: str, kind: str, parents: tuple[int, ...], how: str) -> None:
    target, draft = pair(kind, 7, 3)
    assert (
        largest_error(rule, target, drafts_of(how, draft, parents), depth(parents) + 1)
        < EXACT
    )


@pytest.mark.parametrize("parents", [CHAINS[2], TREES[2]], ids=str)
def test_fewer_tokens_than_a_proposal_has(parents: tuple[int, ...]) -> None:
    """The first tokens are those of a longer law, also where the law is not the
    target's: here the drafter proposes always the same and says that it drew.
    """
    target, draft = pair("random", 3, 3)
    [(_, drawn), *_] = drawn_drafts(draft, parents)
    whole = round_distribution(RULES["reject"](), target, [(1.0, drawn)], 4)
    assert float((whole - plain_distribution(target, 4)).abs().max()) > 0.01
    for length in (3, 2, 1, 0):
        whole = whole.sum(-1)
        found = round_distribution(RULES["reject"](), target, [(1.0, drawn)], length)
        assert found.shape == whole.shape and float((found - whole).abs().max()) < EXACT
    assert float(plain_distribution(target, 0)) == pytest.approx(1, abs=EXACT)


@pytest.mark.parametrize("rule", LOSSLESS)
def test_many_random_chains(rule: str) -> None:
    for seed in range(100, 125):
        target, draft = pair("random", seed, 3)
        assert largest_error(rule, target, drawn_drafts(draft, CHAINS[1]), 3) < EXACT


@pytest.mark.parametrize("parents", [*CHAINS[:2], *TREES[:3]], ids=str)
@pytest.mark.parametrize("kind", ["random", "zeros", "disjoint"])
def test_sample_matching_by_its_own_walk(kind: str, parents: tuple[int, ...]) -> None:
    """`match` decides by `follow` on the target's draws; here over all draws, with
    their probabilities, instead of its closed law.
    """
    v, target, draft = 3, *pair(kind, 5, 3)
    length = depth(parents) + 1
    law = torch.zeros([v] * length, dtype=torch.float64)
    for weight, proposal in drawn_drafts(draft, parents):
        rows = target_rows(target, proposal)
        for drawn in itertools.product(range(v), repeat=len(rows)):
            chance = weight * float(rows[range(len(rows)), drawn].prod())
            decision = follow(proposal, drawn)
            text = (*(proposal.tokens[node] for node in decision.nodes), decision.token)
            after = torch.tensor(chance, dtype=torch.float64)
            for extra in range(
                length - len(text)
            ):  # go on with the target, as `round_distribution` does
                options = itertools.product(range(v), repeat=extra)
                ends = torch.stack([target((*text, *more)) for more in options])
                after = (after.reshape(-1, 1) * ends).flatten()
            law[text] += after.reshape([v] * (length - len(text)))
    assert float((law - plain_distribution(target, length)).abs().max()) < EXACT


def test_worked_example() -> None:
    """The one in the docstring of `lab/exact.py`."""
    target: Model = lambda text: torch.tensor([0.5, 0.5], dtype=torch.float64)  # noqa: E731
    draft: Model = lambda text: torch.tensor([0.8, 0.2], dtype=torch.float64)  # noqa: E731
    [(first, a), (second, b)] = drawn_drafts(draft, (-1,))
    assert (first, a.tokens, second, b.tokens) == (0.8, (0,), 0.2, (1,))
    rejected, kept = RULES["reject"]().outcomes(target_rows(target, a), a)
    assert (
        kept.probability == pytest.approx(0.625)
        and kept.nodes == (0,)
        and kept.untouched
    )
    assert (
        rejected.probability == pytest.approx(0.375)
        and rejected.next_probs().tolist() == [0, 1]
        and not rejected.untouched
    )
    assert [
        outcome.probability
        for outcome in RULES["reject"]().outcomes(target_rows(target, b), b)
    ] == [0, 1]
