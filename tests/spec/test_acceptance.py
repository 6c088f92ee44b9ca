"""Acceptance rules: what every rule must do, the law of what they emit and how many
drafts stay, both by enumeration to 1e-12, and sample matching token for token."""

import itertools
import random
from collections import Counter
from math import prod
from typing import get_args

import pytest
import torch
from law_kit import (
    KINDS,
    draws,
    may_be,
    pair,
)

from lr.options import AcceptanceName
from lr.rng import Stream
from lr.spec.acceptance import (
    RULES,
    BlockRule,
    Decision,
    Outcome,
    RejectRule,
    accept_prob,
    block_weights,
    follow,
    pick,
    residual,
    residual_certain,
)
from lr.spec.checks import VariantError
from lr.spec.proposal import EMPTY, ROOT, Proposal
from lr.spec.sampling import sample
from lr.spec.variant import Variant
from lr.theory.exact import (
    certain_drafts,
    drawn_drafts,
    expected_accepted,
    plain_distribution,
    round_distribution,
    shared_noise_agreement,
)
from lr.variants.kit.check import check_parts
from lr.variants.kit.tokens import random_rows as random_law

EXACT = 1e-12
CHAINS = [tuple(range(ROOT, n - 1)) for n in (1, 2, 3)]
TREES = [
    (ROOT, ROOT),
    (ROOT, ROOT, ROOT),
    (ROOT, 0, 0),
    (ROOT, ROOT, 0, 1),
    (ROOT, 0, ROOT, 2),
    (ROOT, ROOT, 1, 1, 2),
]

SEED = 20240611
V = 5


def random_rows(rng, n, v):
    """n random laws [n, v] in fp64, a third of the entries zero."""
    model = random_law(rng.getrandbits(60), v, 1 / 3)
    return torch.stack([model((i,)) for i in range(n)])


def row(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.fixture(params=RULES)
def rule(request):
    return RULES[request.param]()


# What every rule must do


def test_every_rule_keeps_the_contract(rule):
    """The same that `lr check` asks of a rule of one's own."""
    [findings] = check_parts(lambda: Variant(rule=type(rule)))
    assert findings.broken == [] and len(findings.held) >= 6
    assert set(RULES) == set(get_args(AcceptanceName))


def test_nothing_proposed_is_plain_sampling(rule):
    rows = random_rows(random.Random(1), 20, V)
    chances = [draws(i, offset=i) for i in range(20)]
    tokens = sample(rows, [chance.sample_key(0) for chance in chances])
    decisions = rule.verify(rows, [EMPTY] * 20, chances)
    assert decisions == [Decision((), token) for token in tokens]


def test_drafts_drawn_with_the_targets_own_keys_do_no_harm(rule):
    """Coupling "shared". Chi-square of 3,000 first tokens, seed fixed. A rejected draft
    says of the others that they lost to it: the likelier one, by the draft, by more."""
    n = 3000
    p, q = row(0.1, 0.45, 0.45), row(0.8, 0.19, 0.01)
    chances = [draws(13, i) for i in range(n)]
    drafts = sample(q.expand(n, 3), [chance.sample_key(0) for chance in chances])
    proposals = [Proposal.chain((token,), q[None]) for token in drafts]
    decisions = rule.verify(p.expand(2 * n, 3), proposals, chances)
    firsts = Counter(
        draft if decision.nodes else decision.token
        for draft, decision in zip(drafts, decisions, strict=True)
    )
    assert may_be([firsts[token] for token in range(3)], p.tolist())


# The law


SHAPES = [
    (name, parents)
    for name, make in RULES.items()
    for parents in [*CHAINS, *(TREES if make.trees else [])]
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name, parents", SHAPES)
def test_every_rule_emits_the_targets_law(name, parents, kind):
    """Whether the drafts are drawn, with or without replacement, or certain."""
    chain = parents in CHAINS
    for v in (2, 3, 4) if len(parents) < 3 else (4,) if chain else (3,):
        target, draft = pair(kind, v, v)
        laws = [
            list(drawn_drafts(draft, parents)),
            list(certain_drafts(draft, parents)),
        ]
        if not chain:
            laws.append(list(drawn_drafts(draft, parents, replace=False)))
        for drafts in laws:
            assert sum(weight for weight, _ in drafts) == pytest.approx(1, abs=EXACT)
            length = 1 + max(drafts[0][1].depths())
            emitted = round_distribution(RULES[name](), target, drafts, length)
            error = emitted - plain_distribution(target, length)
            assert float(error.abs().max()) < EXACT


# How many drafts stay


def along(model, text):
    """The probability of each token of a text given those before it."""
    return [float(model(text[:i])[token]) for i, token in enumerate(text)]


@pytest.mark.parametrize("kind", KINDS)
def test_expected_accepted_of_a_chain(kind):
    """Sums over all texts: of the product of min(p, q); of q times the block's weight;
    of p q."""
    target, draft = pair(kind, 11, 3)
    drafts = list(drawn_drafts(draft, CHAINS[2]))
    means = {"reject": 0.0, "block": 0.0, "match": 0.0}
    for n in (1, 2, 3):
        for text in itertools.product(range(3), repeat=n):
            ps, qs = along(target, text), along(draft, text)
            means["reject"] += prod(map(min, ps, qs))
            means["block"] += prod(qs) * block_weights(ps, qs)[-1]
            means["match"] += prod(ps) * prod(qs)
    for name, mean in means.items():
        accepted = expected_accepted(RULES[name](), target, drafts)
        assert accepted == pytest.approx(mean, abs=EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_block_never_keeps_less_than_rejection(kind):
    gains = []
    for seed in range(30):
        target, draft = pair(kind, seed, 3)
        drafts = list(drawn_drafts(draft, CHAINS[1]))
        rejection = expected_accepted(RejectRule(), target, drafts)
        gains.append(expected_accepted(BlockRule(), target, drafts) - rejection)
    assert min(gains) > -EXACT
    if kind in ("random", "zeros"):
        assert sum(gain > 1e-3 for gain in gains) > 3
    else:  # all stays, nothing stays, or the draft was certain: no surplus
        assert max(gains) < EXACT


# Sample matching, and shared noise


def test_follow_takes_the_first_of_equal_siblings():
    """The tree 7-9-2 with 4 beside 7."""
    tree = Proposal((7, 4, 9, 2), (-1, -1, 0, 2))
    assert follow(tree, [7, 9, 0, 2, 5]) == Decision((0, 2, 3), 5)
    assert follow(tree, [4, 9, 1, 2, 5]) == Decision((1,), 1)
    assert follow(tree, [3, 9, 1, 2, 5]) == Decision((), 3)
    assert follow(Proposal((7, 7), (-1, -1)), [7, 1, 2]).nodes == (0,)


@pytest.mark.parametrize("kind", ["random", "zeros", "disjoint", "equal"])
def test_shared_noise_agrees_as_the_closed_form_says(kind):
    """20,000 pairs of samples from the sampler itself. Chi-square of the cells "both
    are x" and "they differ", seed fixed."""
    n, v = 20_000, 6
    target, draft = pair(kind, SEED, v)
    p, q = target(()), draft(())
    keys = [Stream.root(SEED).key(i) for i in range(n)]
    targets, drafts = sample(p.expand(n, v), keys), sample(q.expand(n, v), keys)
    agreed = Counter(a for a, b in zip(targets, drafts, strict=True) if a == b)
    counts = [*(agreed[token] for token in range(v)), n - agreed.total()]
    closed = shared_noise_agreement(p, q).tolist()
    assert may_be(counts, [*closed, 1 - sum(closed)])


# The parts


@pytest.mark.parametrize(
    "tokens, parents, q",
    [
        ((1, 2), (ROOT,), None),
        ((1, 2), (ROOT, 1), None),
        ((1, 2), (ROOT, 0), torch.ones(1, 3)),
    ],
)
def test_a_proposal_that_does_not_fit_is_refused(tokens, parents, q):
    with pytest.raises(VariantError, match="expected"):
        Proposal(tokens, parents, q)


def test_accept_prob_and_residual_at_their_edges():
    assert [accept_prob(0.2, 0.4), accept_prob(0.4, 0.2)] == [0.5, 1]
    assert accept_prob(0.3, 0.0) == 1, "it cannot have been drawn"
    assert accept_prob(0.0, 0.0) == 0
    assert residual(row(0.5, 0.3, 0.2), row(0.2, 0.6, 0.2)).tolist() == [1, 0, 0]
    assert residual(row(0.5, 0.5), row(0.5, 0.5)).tolist() == [0.5, 0.5], "0 / 0"
    left = residual_certain(row(0.5, 0.3, 0.2), [0]).tolist()
    assert left == pytest.approx([0, 0.6, 0.4])
    assert residual_certain(row(1, 0), [0]).tolist() == [1, 0]


def test_a_proposal_is_a_tree():
    tree = Proposal((7, 4, 9, 2), (ROOT, ROOT, 0, 2))
    assert not tree.is_chain and Proposal.chain([5, 6]).parents == (ROOT, 0)
    assert tree.families() == [[0, 1], [2], [], [3], []]
    assert tree.path(3) == (0, 2, 3) and tree.path(ROOT) == ()
    assert tree.depths() == [0, 1, 1, 2, 3]


def test_pick_takes_no_impossible_outcome():
    chances = (0.5, 0.0, 0.4999, 0.0)
    outcomes = [Outcome(p, (i,), lambda: row(1)) for i, p in enumerate(chances)]
    picked = [pick(outcomes, number).nodes for number in (0.0, 0.4999, 0.5, 0.99999)]
    assert picked == [(0,), (0,), (2,), (2,)]


@pytest.mark.parametrize("name", ["reject", "block"])
def test_a_draft_that_could_not_be_drawn(name):
    """q(x) = 0: it stays if the target can write it, and nothing divides by zero."""
    p, q = row(0.5, 0.5, 0.0).repeat(3, 1), row(0.0, 1.0, 0.0).repeat(2, 1)
    for tokens, accepted in (((0, 0), 2), ((2, 0), 0), ((0, 2), 1)):
        outcomes = RULES[name]().outcomes(p, Proposal.chain(tokens, q))
        lengths = {len(o.nodes) for o in outcomes if o.probability > 0}
        assert lengths == {accepted}
