"""What every acceptance rule must do. A new rule is a class, a line in
`lr/spec/acceptance.py`, and passes this file.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import get_args

import pytest
import torch
from acceptance_kit import (
    CHAINS,
    EXACT,
    KINDS,
    draws,
    pair,
    random_proposal,
    random_rows,
)
from scipy import stats
from torch import Tensor

from lr.errors import ProtocolError, SettingError
from lr.options import AcceptanceName, make_options
from lr.spec.acceptance import (
    EMPTY,
    ROOT,
    RULES,
    AcceptanceRule,
    Decision,
    Draws,
    Proposal,
)
from lr.spec.sampling import sample
from lr.theory.exact import (
    certain_drafts,
    drawn_drafts,
    plain_distribution,
    round_distribution,
)

FALSE_ALARM = 1e-6
V = 5


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> AcceptanceRule:
    return RULES[request.param]()


Round = tuple[list[Tensor], list[Proposal], list[Draws]]


def some_round(rule: AcceptanceRule, seed: int, branches: int) -> Round:
    """Random proposals with the target's rows for each; some of them empty."""
    rng = random.Random(seed)
    proposals = [random_proposal(rng, V, trees=rule.trees) for _ in range(branches)]
    rows = [random_rows(rng, len(proposal) + 1, V) for proposal in proposals]
    return (
        rows,
        proposals,
        [draws(seed, i, offset=rng.randrange(50)) for i in range(branches)],
    )


def decide(
    rule: AcceptanceRule,
    rows: list[Tensor],
    proposals: list[Proposal],
    chances: list[Draws],
) -> list[Decision]:
    return rule.verify(torch.cat(rows), proposals, chances)


def test_has_its_papers(rule: AcceptanceRule) -> None:
    assert RULES[rule.name]().name == rule.name
    assert all(
        isinstance(flag, bool)
        for flag in (rule.lossless, rule.trees, rule.needs_fresh_noise)
    )


def test_an_unknown_rule_is_refused() -> None:
    expected = r"acceptance is 'nonesuch', expected one of reject, block, match"
    with pytest.raises(SettingError, match=expected):
        make_options(acceptance="nonesuch")  # type: ignore[arg-type]
    assert set(RULES) == set(get_args(AcceptanceName))


def test_nothing_proposed_is_plain_sampling(rule: AcceptanceRule) -> None:
    rows = random_rows(random.Random(1), 20, V)
    chances = [draws(i, offset=i) for i in range(20)]
    tokens = sample(rows, [chance.sample_key(0) for chance in chances])
    assert rule.verify(rows, [EMPTY] * 20, chances) == [
        Decision((), token) for token in tokens
    ]
    assert rule.verify(rows[:0], [], []) == []


def test_a_batch_decides_as_each_branch_alone(rule: AcceptanceRule) -> None:
    for seed in range(20):
        rows, proposals, chances = some_round(rule, seed, branches=7)
        alone = [
            decide(rule, [r], [p], [d])[0]
            for r, p, d in zip(rows, proposals, chances, strict=True)
        ]
        assert decide(rule, rows, proposals, chances) == alone
        order = list(range(7))
        random.Random(seed).shuffle(order)
        shuffled = decide(
            rule, *([part[i] for i in order] for part in (rows, proposals, chances))
        )
        assert shuffled == [alone[i] for i in order]


def test_accepts_a_path_and_emits_what_the_target_can_write(
    rule: AcceptanceRule,
) -> None:
    for seed in range(30):
        rows, proposals, chances = some_round(rule, seed, branches=5)
        for row, proposal, decision in zip(
            rows, proposals, decide(rule, rows, proposals, chances), strict=True
        ):
            last = decision.nodes[-1] if decision.nodes else ROOT
            assert proposal.path(last) == decision.nodes
            assert 0 <= decision.token < V
            if rule.lossless:
                assert float(row[last + 1, decision.token]) > 0
                for node in decision.nodes:
                    assert (
                        float(row[proposal.parents[node] + 1, proposal.tokens[node]])
                        > 0
                    )


def test_depends_on_nothing_but_its_arguments_and_changes_none(
    rule: AcceptanceRule,
) -> None:
    rows, proposals, chances = some_round(rule, 1, branches=6)
    probs = torch.cat(rows)
    before = probs.clone(), [None if p.q is None else p.q.clone() for p in proposals]
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = rule.verify(probs, proposals, chances)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert rule.verify(probs, proposals, chances) == first
    assert torch.equal(probs, before[0])
    for proposal, q in zip(proposals, before[1], strict=True):
        assert proposal.q is q is None or torch.equal(proposal.q, q)


def test_other_randomness_decides_otherwise(rule: AcceptanceRule) -> None:
    """Stream and offset both matter."""
    row = torch.full((3, V), 1 / V, dtype=torch.float64)
    proposal = Proposal.chain((1, 2), row[:2])
    by_stream = {rule.verify(row, [proposal], [draws(i)])[0] for i in range(30)}
    by_offset = {
        rule.verify(row, [proposal], [draws(0, offset=i)])[0] for i in range(30)
    }
    assert len(by_stream) > 3 and len(by_offset) > 3


def test_outcomes_are_a_law(rule: AcceptanceRule) -> None:
    for seed in range(30):
        [rows], [proposal], _ = some_round(rule, seed, branches=1)
        if not len(proposal):
            continue
        outcomes = rule.outcomes(rows, proposal)
        assert all(-EXACT < outcome.probability < 1 + EXACT for outcome in outcomes)
        assert sum(outcome.probability for outcome in outcomes) == pytest.approx(
            1, abs=EXACT
        )
        assert len({outcome.nodes for outcome in outcomes}) == len(outcomes)
        for outcome in outcomes:
            last = outcome.nodes[-1] if outcome.nodes else ROOT
            assert proposal.path(last) == outcome.nodes
            law = outcome.next_probs()
            assert (law >= 0).all() and float(law.sum()) == pytest.approx(1, abs=EXACT)
            assert outcome.untouched == (not proposal.families()[last + 1])
            if outcome.untouched:
                assert torch.equal(law, rows[last + 1])


@pytest.mark.parametrize("certain", [True, False], ids=["certain", "drawn"])
def test_verify_follows_its_outcomes(rule: AcceptanceRule, certain: bool) -> None:
    """2,000 rounds with keys of their own against the law, drafts given. Chi-square,
    false alarm 1e-6, seed fixed.
    """
    rng = random.Random(5)
    n, length = 2000, 3
    rows = (
        torch.rand(
            length + 1,
            V,
            dtype=torch.float64,
            generator=torch.Generator().manual_seed(5),
        )
        + 0.2
    ).log()
    rows = rows.softmax(-1)
    q = None if certain else random_rows(rng, length, V) * 0.5 + 0.5 / V
    parents = (ROOT, ROOT, 0) if rule.trees else (ROOT, 0, 1)
    proposal = Proposal((1, 2, 3), parents, q)
    decisions = rule.verify(
        rows.repeat(n, 1), [proposal] * n, [draws(7, i) for i in range(n)]
    )
    counts = Counter((decision.nodes, decision.token) for decision in decisions)
    cells = {
        (outcome.nodes, token): n * outcome.probability * chance
        for outcome in rule.outcomes(rows, proposal)
        for token, chance in enumerate(outcome.next_probs().tolist())
    }
    assert all(cells[seen] > 0 for seen in counts)
    common = [cell for cell, mean in cells.items() if mean >= 5]
    rare = [cell for cell, mean in cells.items() if mean < 5]
    seen, means = [counts[cell] for cell in common], [cells[cell] for cell in common]
    if sum(cells[cell] for cell in rare) > 0:
        seen, means = (
            [*seen, sum(counts[cell] for cell in rare)],
            [*means, sum(cells[cell] for cell in rare)],
        )
    assert stats.chisquare(seen, means).pvalue > FALSE_ALARM


def test_drafts_drawn_with_the_targets_own_keys_do_no_harm(
    rule: AcceptanceRule,
) -> None:
    """Coupling "shared": what decides is independent of the drafts' noise. False alarm
    1e-6."""
    n = 3000
    p, q = random_rows(random.Random(11), 2, V) * 0.8 + 0.2 / V
    chances = [draws(13, i) for i in range(n)]
    drafts = sample(q.expand(n, V), [chance.sample_key(0) for chance in chances])
    proposals = [Proposal.chain((token,), q[None]) for token in drafts]
    decisions = rule.verify(p.expand(2 * n, V), proposals, chances)
    first = Counter(
        d if decision.nodes else decision.token
        for d, decision in zip(drafts, decisions, strict=True)
    )
    if rule.lossless:
        assert (
            stats.chisquare(
                [first[token] for token in range(V)], (n * p).tolist()
            ).pvalue
            > FALSE_ALARM
        )


@pytest.mark.parametrize("kind", KINDS)
def test_lossless_means_exactly_the_law_of_the_target(
    rule: AcceptanceRule, kind: str
) -> None:
    """In brief; at length in `test_acceptance_law.py`."""
    target, draft = pair(kind, 21, 3)
    for drafts in (drawn_drafts(draft, CHAINS[1]), certain_drafts(draft, CHAINS[1])):
        error = float(
            (
                round_distribution(rule, target, drafts, 3)
                - plain_distribution(target, 3)
            )
            .abs()
            .max()
        )
        assert error < EXACT or not rule.lossless


def test_rows_as_a_model_gives_them(rule: AcceptanceRule) -> None:
    """fp32 rows, which sum to one only roughly, and drafts that the target can hardly
    write."""
    generator = torch.Generator().manual_seed(9)
    rows = (torch.randn(5, 300, generator=generator) * 30).softmax(-1)
    for q in (
        None,
        rows[:4],
        (torch.randn(4, 300, generator=generator) * 30).softmax(-1),
    ):
        tokens = (rows if q is None else q)[:4].argmax(-1).tolist()
        [decision] = rule.verify(rows, [Proposal.chain(tokens, q)], [draws(1)])
        assert 0 <= len(decision.nodes) <= 4
    [decision] = rule.verify(
        rows, [Proposal.chain(rows[:4].argmax(-1).tolist(), rows[:4])], [draws(1)]
    )
    assert rule.name == "match" or len(decision.nodes) == 4, "p = q: everything stays"


def test_refuses_what_does_not_fit(rule: AcceptanceRule) -> None:
    rows = torch.full((3, V), 1 / V, dtype=torch.float64)
    two = Proposal.chain((1, 2))
    with pytest.raises(
        ProtocolError, match=r"probs of shape \(2, 5\); expected .* \[3, v\]"
    ):
        rule.verify(rows[:2], [two], [draws()])
    with pytest.raises(ProtocolError, match="1 proposals came with 2 sets of draws"):
        rule.verify(rows, [two], [draws(), draws()])
    with pytest.raises(ProtocolError, match="q speaks of 4 tokens, the target of 5"):
        rule.verify(rows, [Proposal.chain((1, 2), torch.full((2, 4), 0.25))], [draws()])
    with pytest.raises(ProtocolError, match="not all within the target's 5"):
        rule.verify(rows, [Proposal.chain((1, 5))], [draws()])
    if not rule.trees:
        with pytest.raises(ProtocolError, match="chains only"):
            rule.verify(rows, [Proposal((1, 2), (ROOT, ROOT))], [draws()])
