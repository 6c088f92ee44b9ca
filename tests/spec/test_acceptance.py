"""Acceptance rules: what every rule must do, the law of what they emit and how many
drafts stay, both by enumeration to 1e-12, and sample matching token for token."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from math import prod
from typing import get_args

import pytest
import torch
from acceptance_kit import (
    CHAINS,
    EXACT,
    KINDS,
    TREES,
    draws,
    pair,
    random_proposal,
    random_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lr.errors import ProtocolError
from lr.options import AcceptanceName
from lr.rng import Stream, uniform
from lr.spec.acceptance import (
    EMPTY,
    ROOT,
    RULES,
    AcceptanceRule,
    BlockRule,
    Decision,
    Draws,
    MatchRule,
    Outcome,
    Proposal,
    RejectRule,
    accept_prob,
    acceptance_chances,
    block_weights,
    follow,
    pick,
    residual,
    residual_certain,
)
from lr.spec.sampling import sample
from lr.spec.variant import Variant
from lr.theory.exact import (
    Drafts,
    Model,
    certain_drafts,
    context_free,
    drawn_drafts,
    expected_accepted,
    independent_agreement,
    plain_distribution,
    round_distribution,
    shared_noise_agreement,
    target_rows,
    total_variation,
)
from lr.variants.kit.check import check_parts

FALSE_ALARM = 1e-6
SEED = 20240611
V = 5


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> AcceptanceRule:
    return RULES[request.param]()


# What every rule must do


def test_every_rule_keeps_the_contract(rule: AcceptanceRule) -> None:
    """The same that `lr check` asks of a rule of one's own."""
    [findings] = check_parts(lambda: Variant(rule=type(rule)))
    assert findings.broken == [] and len(findings.held) >= 6
    assert set(RULES) == set(get_args(AcceptanceName))


def test_nothing_proposed_is_plain_sampling(rule: AcceptanceRule) -> None:
    rows = random_rows(random.Random(1), 20, V)
    chances = [draws(i, offset=i) for i in range(20)]
    tokens = sample(rows, [chance.sample_key(0) for chance in chances])
    decisions = rule.verify(rows, [EMPTY] * 20, chances)
    assert decisions == [Decision((), token) for token in tokens]
    assert rule.verify(rows[:0], [], []) == []


def test_a_batch_of_any_proposals_decides_as_each_branch_alone(
    rule: AcceptanceRule,
) -> None:
    """And emits a path, then a token, that the target can write."""
    for seed in range(20):
        rng = random.Random(seed)
        proposals = [random_proposal(rng, V, trees=rule.trees) for _ in range(7)]
        rows = [random_rows(rng, len(proposal) + 1, V) for proposal in proposals]
        chances = [draws(seed, i, offset=rng.randrange(50)) for i in range(7)]
        together = rule.verify(torch.cat(rows), proposals, chances)
        parts = zip(rows, proposals, chances, strict=True)
        alone = [rule.verify(p_rows, [p], [draw])[0] for p_rows, p, draw in parts]
        assert together == alone
        for p_rows, proposal, decision in zip(rows, proposals, together, strict=True):
            last = decision.nodes[-1] if decision.nodes else ROOT
            assert proposal.path(last) == decision.nodes
            assert float(p_rows[last + 1, decision.token]) > 0
            for node in decision.nodes:
                token, parent = proposal.tokens[node], proposal.parents[node]
                assert float(p_rows[parent + 1, token]) > 0


def test_drafts_drawn_with_the_targets_own_keys_do_no_harm(
    rule: AcceptanceRule,
) -> None:
    """Coupling "shared". Chi-square of 3,000 first tokens, seed fixed."""
    n = 3000
    p, q = random_rows(random.Random(11), 2, V) * 0.8 + 0.2 / V
    chances = [draws(13, i) for i in range(n)]
    drafts = sample(q.expand(n, V), [chance.sample_key(0) for chance in chances])
    proposals = [Proposal.chain((token,), q[None]) for token in drafts]
    decisions = rule.verify(p.expand(2 * n, V), proposals, chances)
    firsts = Counter(
        draft if decision.nodes else decision.token
        for draft, decision in zip(drafts, decisions, strict=True)
    )
    counts = [firsts[token] for token in range(V)]
    assert stats.chisquare(counts, (n * p).tolist()).pvalue > FALSE_ALARM


def test_rows_in_fp32_sum_to_one_only_roughly(rule: AcceptanceRule) -> None:
    generator = torch.Generator().manual_seed(9)
    rows = (torch.randn(5, 300, generator=generator) * 30).softmax(-1)
    other = (torch.randn(4, 300, generator=generator) * 30).softmax(-1)
    for q in (None, rows[:4], other):
        tokens = (rows[:4] if q is None else q).argmax(-1).tolist()
        [decision] = rule.verify(rows, [Proposal.chain(tokens, q)], [draws(1)])
        equal = q is not None and q is not other
        assert len(decision.nodes) == 4 or rule.name == "match" or not equal


def test_a_token_outside_the_vocabulary_is_refused(rule: AcceptanceRule) -> None:
    rows = torch.full((3, V), 1 / V, dtype=torch.float64)
    with pytest.raises(ProtocolError, match="tokens"):
        rule.verify(rows, [Proposal.chain((1, V))], [draws()])


# The law


def depth(parents: tuple[int, ...]) -> int:
    return max(Proposal((0,) * len(parents), parents).depths())


def drafts_of(kind: str, draft: Model, parents: tuple[int, ...]) -> Drafts:
    if kind == "certain":
        return certain_drafts(draft, parents)
    return drawn_drafts(draft, parents, replace=kind == "drawn")


def largest_error(rule: str, target: Model, drafts: Drafts, length: int) -> float:
    drafts = list(drafts)
    assert sum(weight for weight, _ in drafts) == pytest.approx(1, abs=EXACT)
    emitted = round_distribution(RULES[rule](), target, drafts, length)
    return float((emitted - plain_distribution(target, length)).abs().max())


@pytest.mark.parametrize("how", ["drawn", "certain"])
@pytest.mark.parametrize("parents", CHAINS, ids=len)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RULES)
def test_chains_emit_the_targets_law(
    name: str, kind: str, parents: tuple[int, ...], how: str
) -> None:
    for seed, v in enumerate([2, 3, 4] if len(parents) < 3 else [4]):
        target, draft = pair(kind, seed, v)
        drafts = drafts_of(how, draft, parents)
        assert largest_error(name, target, drafts, len(parents) + 1) < EXACT


@pytest.mark.parametrize("how", ["drawn", "without replacement", "certain"])
@pytest.mark.parametrize("parents", TREES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["match", "reject"])
def test_trees_emit_the_targets_law(
    name: str, kind: str, parents: tuple[int, ...], how: str
) -> None:
    target, draft = pair(kind, 7, 3)
    drafts = drafts_of(how, draft, parents)
    assert largest_error(name, target, drafts, depth(parents) + 1) < EXACT


@pytest.mark.parametrize("parents", [CHAINS[2], TREES[2]], ids=str)
def test_fewer_tokens_than_a_proposal_has(parents: tuple[int, ...]) -> None:
    """The first tokens are those of a longer law, also where the law is not the
    target's: here the drafter proposes always the same and says that it drew."""
    target, draft = pair("random", 3, 3)
    [(_, drawn), *_] = drawn_drafts(draft, parents)
    law = round_distribution(RejectRule(), target, [(1.0, drawn)], 4)
    assert float((law - plain_distribution(target, 4)).abs().max()) > 0.01
    for length in (3, 2, 1, 0):
        law = law.sum(-1)
        shorter = round_distribution(RejectRule(), target, [(1.0, drawn)], length)
        assert float((shorter - law).abs().max()) < EXACT


@pytest.mark.parametrize("parents", [*CHAINS[:2], *TREES[:3]], ids=str)
@pytest.mark.parametrize("kind", ["random", "zeros", "disjoint"])
def test_the_walk_of_sample_matching(kind: str, parents: tuple[int, ...]) -> None:
    """`match` decides by `follow` on the target's draws; here over all draws, with
    their probabilities, instead of its list of outcomes."""
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
            for extra in range(length - len(text)):  # the target goes on
                options = itertools.product(range(v), repeat=extra)
                ends = torch.stack([target((*text, *more)) for more in options])
                after = (after.reshape(-1, 1) * ends).flatten()
            law[text] += after.reshape([v] * (length - len(text)))
    assert float((law - plain_distribution(target, length)).abs().max()) < EXACT


# How many drafts stay


def texts(v: int, longest: int) -> list[tuple[int, ...]]:
    lengths = range(1, longest + 1)
    return [t for n in lengths for t in itertools.product(range(v), repeat=n)]


def along(model: Model, text: tuple[int, ...]) -> list[float]:
    """The probability of each token of a text given those before it."""
    return [float(model(text[:i])[token]) for i, token in enumerate(text)]


@pytest.mark.parametrize("kind", KINDS)
def test_expected_accepted_of_a_chain(kind: str) -> None:
    """Sums over all texts: of the product of min(p, q); of q times the block's weight;
    of p q."""
    target, draft = pair(kind, 11, 3)
    drafts = list(drawn_drafts(draft, CHAINS[2]))
    reject = block = match = 0.0
    for text in texts(3, 3):
        ps, qs = along(target, text), along(draft, text)
        reject += prod(map(min, ps, qs))
        block += prod(qs) * block_weights(ps, qs)[-1]
        match += prod(ps) * prod(qs)
    for rule, mean in (
        (RejectRule(), reject),
        (BlockRule(), block),
        (MatchRule(), match),
    ):
        assert expected_accepted(rule, target, drafts) == pytest.approx(mean, abs=EXACT)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_leviathans_closed_form(n: int) -> None:
    """1 + E accepted = (1 - a^(n+1)) / (1 - a) with a = sum of min(p, q)."""
    p, q, a = row(0.5, 0.3, 0.1, 0.1), row(0.2, 0.3, 0.4, 0.1), 0.7
    drafts = drawn_drafts(context_free(q), CHAINS[n - 1])
    mean = expected_accepted(RejectRule(), context_free(p), drafts)
    assert 1 + mean == pytest.approx((1 - a ** (n + 1)) / (1 - a), abs=EXACT)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_candidates_for_one_place(kind: str, k: int) -> None:
    """Drawn with replacement: 1 - product of (1 - sum min(r_j, q)), r_1 = p. Certain:
    what the target gives to them."""
    target, draft = pair(kind, 3, 4)
    left, missed = target(()).tolist(), 1.0
    for _ in range(k):
        q = draft(()).tolist()
        missed *= 1 - sum(map(min, left, q))
        over = [max(r - x, 0.0) for r, x in zip(left, q, strict=True)]
        left = [r / sum(over) for r in over] if sum(over) > 0 else left
    drafts = drawn_drafts(draft, (ROOT,) * k)
    mean = expected_accepted(RejectRule(), target, drafts)
    assert mean == pytest.approx(1 - missed, abs=EXACT)
    certain = list(certain_drafts(draft, (ROOT,) * k))
    [(_, proposal)] = certain
    likely = float(target(())[list(proposal.tokens)].sum())
    for rule in (RejectRule(), MatchRule()):
        assert expected_accepted(rule, target, certain) == pytest.approx(
            likely, abs=EXACT
        )


@pytest.mark.parametrize("kind", KINDS)
def test_block_never_keeps_less_than_rejection(kind: str) -> None:
    gains = []
    for seed in range(30):
        target, draft = pair(kind, seed, 3)
        drafts = list(drawn_drafts(draft, CHAINS[1]))
        rejection = expected_accepted(RejectRule(), target, drafts)
        gains.append(expected_accepted(BlockRule(), target, drafts) - rejection)
    assert min(gains) > -EXACT
    if kind in ("random", "peaked", "zeros"):
        assert sum(gain > 1e-3 for gain in gains) > 3
    else:  # all stays, nothing stays, or the draft was certain: no surplus
        assert max(gains) < EXACT


def test_the_example_of_the_block_verification_paper() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), two drafts: 10/9 stay by tokens, 11/9 as a
    block."""
    p = row(1 / 3, 2 / 3)
    drafts = list(drawn_drafts(context_free(p.flip(0)), CHAINS[1]))
    for rule, mean in ((RejectRule(), 10 / 9), (BlockRule(), 11 / 9)):
        accepted = expected_accepted(rule, context_free(p), drafts)
        assert accepted == pytest.approx(mean, abs=EXACT)


# Sample matching, and shared noise


def plain_decoding(target: Model, own: Draws, length: int) -> tuple[int, ...]:
    """One token after the other, each with its key."""
    text: tuple[int, ...] = ()
    while len(text) < length:
        text += (sample(target(text)[None], [own.sample_key(len(text))])[0],)
    return text


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(["random", "zeros", "one-hot"]))
def test_matching_emits_plain_decoding_token_for_token(seed: int, kind: str) -> None:
    """Round after round, whatever is proposed, and it stops only where it must."""
    rng = random.Random(seed)
    target, _ = pair(kind, seed % 50, 4)
    stream = Stream.root(seed)
    text: tuple[int, ...] = ()
    while len(text) < 15:
        proposal = random_proposal(rng, 4, trees=True, longest=6)
        rows = target_rows(lambda more, before=text: target(before + more), proposal)
        [decision] = MatchRule().verify(rows, [proposal], [Draws(stream, len(text))])
        last = decision.nodes[-1] if decision.nodes else ROOT
        children = proposal.families()[last + 1]
        assert decision.token not in [proposal.tokens[child] for child in children]
        text += (*(proposal.tokens[node] for node in decision.nodes), decision.token)
    assert text == plain_decoding(target, Draws(stream, 0), len(text))


def test_follow_takes_the_first_of_equal_siblings() -> None:
    """The tree 7-9-2 with 4 beside 7."""
    tree = Proposal((7, 4, 9, 2), (-1, -1, 0, 2))
    assert follow(tree, [7, 9, 0, 2, 5]) == Decision((0, 2, 3), 5)
    assert follow(tree, [4, 9, 1, 2, 5]) == Decision((1,), 1)
    assert follow(tree, [3, 9, 1, 2, 5]) == Decision((), 3)
    assert follow(Proposal((7, 7), (-1, -1)), [7, 1, 2]).nodes == (0,)


def promised(p: torch.Tensor, q: torch.Tensor) -> float:
    """(1 - TV) / (1 + TV), the least that shared noise agrees (Daliri, Musco and
    Suresh, arXiv 2408.07978)."""
    distance = total_variation(p, q)
    return (1 - distance) / (1 + distance)


@pytest.mark.parametrize("kind", ["random", "peaked", "zeros", "disjoint", "equal"])
def test_shared_noise_agrees_as_the_closed_form_says(kind: str) -> None:
    """20,000 pairs of samples from the sampler itself. Chi-square of the cells "both
    are x" and "they differ", seed fixed."""
    n, v = 20_000, 6
    target, draft = pair(kind, SEED, v)
    p, q = target(()), draft(())
    keys = [Stream.root(SEED).key(i) for i in range(n)]
    both = zip(sample(p.expand(n, v), keys), sample(q.expand(n, v), keys), strict=True)
    agreed = Counter(a for a, b in both if a == b)
    closed = shared_noise_agreement(p, q).tolist()
    cells = [(agreed[token], n * x) for token, x in enumerate(closed)]
    cells.append((n - agreed.total(), n * (1 - sum(closed))))
    assert all(count == 0 for count, mean in cells if mean < 1e-6)
    common = [(count, mean) for count, mean in cells if mean >= 5]
    if len(common) > 1:
        counts, means = zip(*common, strict=True)
        scale = sum(counts) / sum(means)
        p_value = stats.chisquare(counts, [scale * m for m in means]).pvalue
        assert p_value > FALSE_ALARM


@pytest.mark.parametrize("kind", KINDS)
def test_agreement_lies_between_its_bounds(kind: str) -> None:
    for seed in range(30):
        target, draft = pair(kind, seed, 5)
        p, q = target(()), draft(())
        agreement = shared_noise_agreement(p, q)
        best = 1 - total_variation(p, q)
        assert promised(p, q) - EXACT <= float(agreement.sum()) <= best + EXACT
        assert (agreement <= torch.minimum(p, q) + EXACT).all()


def test_agreement_of_two_tokens_by_hand() -> None:
    p, q = row(0.8, 0.2), row(0.5, 0.5)
    assert shared_noise_agreement(p, q).tolist() == pytest.approx([1 / 2, 1 / 5])
    assert independent_agreement(p, q) == pytest.approx(0.5)


# The parts


def test_a_proposal_is_a_tree() -> None:
    tree = Proposal((7, 4, 9, 2), (ROOT, ROOT, 0, 2))
    assert not tree.is_chain and Proposal.chain([5, 6]).parents == (ROOT, 0)
    assert tree.families() == [[0, 1], [2], [], [3], []]
    assert tree.path(3) == (0, 2, 3) and tree.path(ROOT) == ()
    assert tree.depths() == [0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("tokens", "parents", "q"),
    [
        ((1, 2), (ROOT,), None),
        ((1, 2), (ROOT, 1), None),
        ((1, 2), (ROOT, -2), None),
        ((1, 2), (ROOT, 0), torch.ones(1, 3)),
        ((1,), (ROOT,), torch.ones(3)),
    ],
)
def test_a_proposal_that_does_not_fit_is_refused(
    tokens: tuple[int, ...], parents: tuple[int, ...], q: torch.Tensor | None
) -> None:
    with pytest.raises(ProtocolError, match="expected"):
        Proposal(tokens, parents, q)


def test_accept_prob_and_residual_at_their_edges() -> None:
    assert [accept_prob(0.2, 0.4), accept_prob(0.4, 0.2)] == [0.5, 1]
    assert accept_prob(0.3, 0.0) == 1, "it cannot have been drawn"
    assert accept_prob(0.0, 0.0) == 0
    assert residual(row(0.5, 0.3, 0.2), row(0.2, 0.6, 0.2)).tolist() == [1, 0, 0]
    assert residual(row(0.5, 0.5), row(0.5, 0.5)).tolist() == [0.5, 0.5], "0 / 0"
    left = residual_certain(row(0.5, 0.3, 0.2), [0]).tolist()
    assert left == pytest.approx([0, 0.6, 0.4])
    assert residual_certain(row(1, 0), [0]).tolist() == [1, 0]


def test_the_keys_of_one_step_are_all_different() -> None:
    starts = range(50)
    sampled = {draws(offset=s).sample_key(depth) for s in starts for depth in range(10)}
    assert sampled == {draws().sample_key(place) for place in range(59)}
    replaced = {draws(offset=start).residual_key(0) for start in starts}
    assert len(sampled | replaced) == 59 + 50
    assert draws(offset=3).residual_key(2) == draws(offset=5).residual_key(0)
    assert len({uniform(draws(offset=start).uniform_key) for start in starts}) == 50


def test_pick() -> None:
    chances = (0.5, 0.0, 0.4999, 0.0)
    outcomes = [Outcome(p, (i,), lambda: row(1), False) for i, p in enumerate(chances)]
    picked = [pick(outcomes, number).nodes for number in (0.0, 0.4999, 0.5, 0.99999)]
    assert picked == [(0,), (0,), (2,), (2,)]


def test_chances_of_siblings() -> None:
    """p (0.5, 0.3, 0.2); tokens 0 then 1, certain: 0.5, then 0.3 of the 0.5 left. Token
    0 again: no chance."""
    p = row(0.5, 0.3, 0.2).repeat(4, 1)
    certain = Proposal((0, 1, 0), (ROOT,) * 3)
    chances = acceptance_chances(p, certain, certain.families())
    assert chances == pytest.approx([0.5, 0.6, 0])
    drawn = Proposal((1, 2, 1), (ROOT,) * 3, row(0.2, 0.6, 0.2).repeat(3, 1))
    chances = acceptance_chances(p, drawn, drawn.families())
    assert chances == pytest.approx([0.5, 0, 0])


def test_block_weights() -> None:
    assert block_weights([0.4, 0.1], [0.2, 0.2]) == [1, 1, 0.5]
    assert block_weights([0.1, 0.4], [0.2, 0.2]) == [1, 0.5, 1]
    assert block_weights([0.2, 0.0], [0.0, 0.0]) == [1, 1, 0]


@pytest.mark.parametrize("name", ["reject", "block"])
def test_a_draft_that_could_not_be_drawn(name: str) -> None:
    """q(x) = 0: it stays if the target can write it, and nothing divides by zero."""
    p, q = row(0.5, 0.5, 0.0).repeat(3, 1), row(0.0, 1.0, 0.0).repeat(2, 1)
    for tokens, kept in (((0, 0), 2), ((2, 0), 0), ((0, 2), 1)):
        outcomes = RULES[name]().outcomes(p, Proposal.chain(tokens, q))
        lengths = {len(o.nodes) for o in outcomes if o.probability > 0}
        assert lengths == {kept}
