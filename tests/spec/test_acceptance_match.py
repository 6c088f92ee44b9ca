"""Sample matching emits, token for token, what plain decoding emits with the same keys;
shared noise agrees as often as computed.
"""

from __future__ import annotations

import random

import pytest
import torch
from acceptance_kit import draws, pair, random_proposal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lr.rng import Stream
from lr.spec.acceptance import EMPTY, Draws, MatchRule, Proposal, follow
from lr.spec.sampling import sample
from lr.theory.exact import (
    Model,
    independent_agreement,
    shared_noise_agreement,
    target_rows,
    total_variation,
)

FALSE_ALARM = 1e-6
SEED = 20240611


def plain_decoding(target: Model, draw: Draws, length: int) -> tuple[int, ...]:
    """One token after the other, each with its key."""
    text: tuple[int, ...] = ()
    while len(text) < length:
        text += (sample(target(text)[None], [draw.sample_key(len(text))])[0],)
    return text


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["random", "zeros", "one-hot"]),
    st.integers(1, 3),
)
def test_is_plain_decoding_token_for_token(seed: int, kind: str, branches: int) -> None:
    """Whatever is proposed, in whatever batch: the tokens are those of plain decoding,
    and it stops only where it must.
    """
    rng = random.Random(seed)
    target, _ = pair(kind, seed % 50, 4)
    proposals = [
        random_proposal(rng, 4, trees=True, longest=6) for _ in range(branches)
    ]
    chances = [draws(seed, i, offset=rng.randrange(100)) for i in range(branches)]
    probs = torch.cat([target_rows(target, proposal) for proposal in proposals])
    for proposal, draw, decision in zip(
        proposals, chances, MatchRule().verify(probs, proposals, chances), strict=True
    ):
        emitted = (*(proposal.tokens[node] for node in decision.nodes), decision.token)
        assert emitted == plain_decoding(target, draw, len(emitted))
        last = decision.nodes[-1] if decision.nodes else -1
        assert decision.token not in [
            proposal.tokens[child] for child in proposal.families()[last + 1]
        ]


def test_rounds_in_a_row_are_plain_decoding() -> None:
    """With drafts of changing length, the keys go on where the last round stopped."""
    rng = random.Random(3)
    target, _ = pair("random", 3, 3)
    stream = Stream.root(5)
    text: tuple[int, ...] = ()
    while len(text) < 40:
        proposal = random_proposal(rng, 3, trees=True)
        rows = target_rows(lambda more, before=text: target(before + more), proposal)
        [decision] = MatchRule().verify(rows, [proposal], [Draws(stream, len(text))])
        text += (*(proposal.tokens[node] for node in decision.nodes), decision.token)
    assert text == plain_decoding(target, Draws(stream, 0), len(text))


def test_follow() -> None:
    """The tree 7-9-2 with 4 beside 7; of equal siblings the first is taken."""
    tree = Proposal((7, 4, 9, 2), (-1, -1, 0, 2))
    assert follow(tree, [7, 9, 0, 2, 5]).nodes == (0, 2, 3)
    assert follow(tree, [7, 9, 0, 2, 5]).token == 5
    assert follow(tree, [4, 9, 1, 2, 5]).nodes == (1,)
    assert follow(tree, [4, 9, 1, 2, 5]).token == 1
    assert follow(tree, [3, 9, 1, 2, 5]).nodes == ()
    assert follow(Proposal((7, 7), (-1, -1)), [7, 1, 2]).nodes == (0,)
    assert follow(EMPTY, [6]).token == 6


def promised(p: torch.Tensor, q: torch.Tensor) -> float:
    """(1 - TV) / (1 + TV): each side draws without knowing the other's distribution,
    and then no coupling can promise more (Daliri, Musco and Suresh, arXiv
    2408.07978)."""
    distance = total_variation(p, q)
    return (1 - distance) / (1 + distance)


@pytest.mark.parametrize(
    "kind", ["random", "peaked", "zeros", "disjoint", "equal", "one-hot draft"]
)
def test_shared_noise_agrees_as_the_closed_form_says(kind: str) -> None:
    """20,000 pairs of samples from the sampler itself; the cells "both are x" and "they
    differ". False alarm 1e-6 per kind, seed fixed.
    """
    n, v = 20_000, 6
    target, draft = pair(kind, SEED, v)
    p, q = target(()), draft(())
    stream = Stream.root(SEED)
    keys = [stream.key(i) for i in range(n)]
    ours, theirs = sample(p.expand(n, v), keys), sample(q.expand(n, v), keys)
    agreed = [a for a, b in zip(ours, theirs, strict=True) if a == b]
    counts = [agreed.count(token) for token in range(v)]
    expected = [n * x for x in shared_noise_agreement(p, q).tolist()]
    if kind == "disjoint":
        assert not agreed and sum(expected) == 0
    elif kind == "equal":
        assert len(agreed) == n and sum(expected) == pytest.approx(n)
    else:
        assert_fits([*counts, n - len(agreed)], [*expected, n - sum(expected)])


def assert_fits(counts: list[int], expected: list[float]) -> None:
    """Chi-square, rare cells taken together; cells that cannot happen must be empty."""
    assert all(count == 0 for count, e in zip(counts, expected, strict=True) if e == 0)
    cells = [(count, e) for count, e in zip(counts, expected, strict=True) if e > 0]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if rare:
        cells.append((sum(count for count, _ in rare), sum(e for _, e in rare)))
    assert (
        stats.chisquare([c for c, _ in cells], [e for _, e in cells]).pvalue
        > FALSE_ALARM
    )


@pytest.mark.parametrize(
    "kind",
    ["random", "peaked", "zeros", "disjoint", "equal", "one-hot", "one-hot draft"],
)
def test_agreement_lies_between_its_bounds(kind: str) -> None:
    for seed in range(50):
        target, draft = pair(kind, seed, 5)
        p, q = target(()), draft(())
        agreement = float(shared_noise_agreement(p, q).sum())
        assert promised(p, q) - 1e-12 <= agreement <= 1 - total_variation(p, q) + 1e-12
        assert (shared_noise_agreement(p, q) <= torch.minimum(p, q) + 1e-12).all()


def test_two_tokens() -> None:
    """With two tokens shared noise reaches the best there is, 1 - TV. By hand: 0.5 +
    0.2."""
    p, q = torch.tensor([[0.8, 0.2], [0.5, 0.5]], dtype=torch.float64)
    assert shared_noise_agreement(p, q).tolist() == pytest.approx(
        [1 / (1 + 1), 1 / (1 + 4)]
    )
    assert total_variation(p, q) == pytest.approx(0.3)
    assert independent_agreement(p, q) == pytest.approx(0.5)


def test_shared_noise_is_worth_it() -> None:
    """Fifty tokens, a draft near the target: noise of its own hardly ever agrees,
    shared noise nearly as often as is possible.
    """
    generator = torch.Generator().manual_seed(SEED)
    rows = []
    for _ in range(50):
        scores = torch.randn(50, dtype=torch.float64, generator=generator)
        p = (scores * 1.5).softmax(-1)
        q = (
            scores * 1.5
            + torch.randn(50, dtype=torch.float64, generator=generator) * 0.8
        ).softmax(-1)
        shared = float(shared_noise_agreement(p, q).sum())
        rows.append(
            (
                independent_agreement(p, q),
                promised(p, q),
                shared,
                1 - total_variation(p, q),
            )
        )
    own, bound, shared, best = (
        sum(column) / len(rows) for column in zip(*rows, strict=True)
    )
    assert own < 0.15 < bound < shared < best < 0.8
    assert best - shared < 0.1
