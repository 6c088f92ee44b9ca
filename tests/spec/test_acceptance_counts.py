"""How many drafts stay: the enumerated mean equals theory's, and block verification
never keeps less than token-wise rejection.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from acceptance_kit import CHAINS, EXACT, KINDS, pair

from lr.spec.acceptance import ROOT, MatchRule, RejectRule
from lr.spec.block_rule import BlockRule, block_weights
from lr.theory.exact import (
    Model,
    certain_drafts,
    context_free,
    drawn_drafts,
    expected_accepted,
)


def prefixes(v: int, longest: int) -> list[tuple[int, ...]]:
    return [
        text
        for n in range(1, longest + 1)
        for text in itertools.product(range(v), repeat=n)
    ]


def along(model: Model, text: tuple[int, ...]) -> list[float]:
    """The probability of each token of a text given those before it."""
    return [float(model(text[:i])[token]) for i, token in enumerate(text)]


def product(numbers: list[float]) -> float:
    result = 1.0
    for number in numbers:
        result *= number
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_rejection(kind: str) -> None:
    """E accepted = sum over all prefixes of the product of min(p, q) along them."""
    v, n = 3, 3
    target, draft = pair(kind, 11, v)
    theory = sum(
        product(
            [
                min(p, q)
                for p, q in zip(along(target, text), along(draft, text), strict=True)
            ]
        )
        for text in prefixes(v, n)
    )
    assert expected_accepted(
        RejectRule(), target, drawn_drafts(draft, CHAINS[n - 1])
    ) == pytest.approx(theory, abs=EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_block(kind: str) -> None:
    """E accepted = sum over all prefixes of q along them times their weight w."""
    v, n = 3, 3
    target, draft = pair(kind, 11, v)
    theory = 0.0
    for text in prefixes(v, n):
        qs = along(draft, text)
        theory += product(qs) * block_weights(along(target, text), qs)[-1]
    assert expected_accepted(
        BlockRule(), target, drawn_drafts(draft, CHAINS[n - 1])
    ) == pytest.approx(theory, abs=EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_match_with_noise_of_its_own(kind: str) -> None:
    """E accepted = sum over all prefixes of the product of p q along them."""
    target, draft = pair(kind, 11, 3)
    theory = sum(
        product(along(target, text)) * product(along(draft, text))
        for text in prefixes(3, 3)
    )
    assert expected_accepted(
        MatchRule(), target, drawn_drafts(draft, CHAINS[2])
    ) == pytest.approx(theory, abs=EXACT)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_leviathan_closed_form(n: int) -> None:
    """With p and q the same everywhere: 1 + E accepted = (1 - a^(n+1)) / (1 - a) with a
    = sum of min(p, q).
    """
    p = torch.tensor([0.5, 0.3, 0.1, 0.1], dtype=torch.float64)
    q = torch.tensor([0.2, 0.3, 0.4, 0.1], dtype=torch.float64)
    a = 0.7
    mean = expected_accepted(
        RejectRule(), context_free(p), drawn_drafts(context_free(q), CHAINS[n - 1])
    )
    assert 1 + mean == pytest.approx((1 - a ** (n + 1)) / (1 - a), abs=EXACT)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_candidates_for_one_place(kind: str, k: int) -> None:
    """Drawn with replacement, the residuals do not depend on what was drawn: 1 -
    product of (1 - sum min(r_j, q)), r_1 = p.
    """
    target, draft = pair(kind, 3, 4)
    left, missed = target(()).tolist(), 1.0
    for _ in range(k):
        q = draft(()).tolist()
        missed *= 1 - sum(map(min, left, q))
        rest = [max(r - x, 0.0) for r, x in zip(left, q, strict=True)]
        left = [r / sum(rest) for r in rest] if sum(rest) > 0 else left
    mean = expected_accepted(RejectRule(), target, drawn_drafts(draft, (ROOT,) * k))
    assert mean == pytest.approx(1 - missed, abs=EXACT)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_likeliest_candidates_for_one_place(k: int) -> None:
    """Certain candidates: what the target gives to them."""
    target, draft = pair("random", 4, 4)
    theory = float(target(())[draft(()).topk(k).indices].sum())
    for rule in (RejectRule(), MatchRule()):
        assert expected_accepted(
            rule, target, certain_drafts(draft, (ROOT,) * k)
        ) == pytest.approx(theory, abs=EXACT)


def test_without_replacement_beats_with_replacement_on_average() -> None:
    gains = []
    for seed in range(15):
        target, draft = pair("random", seed, 4)
        with_, without = (
            expected_accepted(
                RejectRule(), target, drawn_drafts(draft, (ROOT,) * 3, replace=replace)
            )
            for replace in (True, False)
        )
        gains.append(without - with_)
    assert sum(gains) / len(gains) > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_block_never_keeps_less(kind: str) -> None:
    gains = []
    for seed in range(30):
        target, draft = pair(kind, seed, 3)
        drafts = list(drawn_drafts(draft, CHAINS[1]))
        gains.append(
            expected_accepted(BlockRule(), target, drafts)
            - expected_accepted(RejectRule(), target, drafts)
        )
    assert min(gains) > -EXACT
    if kind in ("random", "peaked", "zeros"):
        assert sum(gain > 1e-3 for gain in gains) > 3
    else:  # all stays, nothing stays, or the draft was certain: there is no surplus to carry back
        assert max(gains) < EXACT


def test_block_on_certain_drafts_is_rejection() -> None:
    target, draft = pair("random", 1, 4)
    drafts = list(certain_drafts(draft, CHAINS[2]))
    block, reject = (
        expected_accepted(rule, target, drafts) for rule in (BlockRule(), RejectRule())
    )
    assert block == pytest.approx(reject, abs=EXACT)


def test_the_example_of_the_block_verification_paper() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), two drafts: token-wise 10/9 tokens stay on
    average, as a block 11/9.
    """
    p = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    drafts = list(drawn_drafts(context_free(p.flip(0)), CHAINS[1]))
    assert expected_accepted(RejectRule(), context_free(p), drafts) == pytest.approx(
        10 / 9, abs=EXACT
    )
    assert expected_accepted(BlockRule(), context_free(p), drafts) == pytest.approx(
        11 / 9, abs=EXACT
    )
