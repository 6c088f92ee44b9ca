"""The grader of residual.py: the exact distribution of what comes out, by
enumeration."""

from __future__ import annotations

from functools import partial
from itertools import product
from types import ModuleType

import torch
from exercise_kit import (
    KINDS,
    Examples,
    Outcomes,
    Rule,
    check,
    check_output,
    expect,
    numbers,
    outcome_of,
    pair_of,
)
from torch import Tensor

from lr.spec.proposal import Proposal
from lr.theory.exact import (
    context_free,
    drawn_drafts,
    expected_accepted,
    total_variation,
)

PRAISE = "What comes out is the target's distribution, to twelve digits, and no rule keeps more."
NEXT = "block_verification"
P, Q = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.8, 0.2]).double()


def rule_of(answer: ModuleType) -> Rule:
    """Rejection sampling of a chain, made of your two functions."""

    def outcomes(p_rows: Tensor, proposal: Proposal) -> Outcomes:
        """A chain ends at its first rejected token, or after its last."""
        q, left = proposal.q, 1.0
        assert q is not None
        for i, token in enumerate(proposal.tokens):
            pair = float(p_rows[i, token]), float(q[i, token])
            stays = float(answer.accept_prob(*pair))
            yield left * (1.0 - stays), i, partial(answer.residual, p_rows[i], q[i])
            left *= stays
        yield left, len(proposal), lambda: p_rows[-1]

    return Rule(outcomes)


def bias_on_the_coin(answer: ModuleType) -> float:
    """The largest error of a word's probability, when one token is drawn from Q."""
    pairs = zip(P.tolist(), Q.tolist(), strict=True)
    stay = torch.tensor([float(answer.accept_prob(p, q)) for p, q in pairs]).double()
    out = Q * stay + (1 - (Q * stay).sum()) * answer.residual(P.clone(), Q.clone())
    return float((out - P).abs().max())


@check(
    "a two-word coin, p = (0.5, 0.5) and q = (0.8, 0.2)",
    "Accepted tokens already come out with probability q·min(1, p/q) = min(p, q). The "
    "residual has to bring only what is still missing to p.",
)
def the_coin(answer: ModuleType) -> None:
    bias = bias_on_the_coin(answer)
    for p, q, right in ((0.5, 0.8, 0.625), (0.5, 0.2, 1.0)):
        chance = float(answer.accept_prob(p, q))
        says = (
            f"A token with p = {p} and q = {q} has to stay with probability {right}; "
            f"accept_prob says {chance:.4g}."
        )
        expect(abs(chance - right) < 1e-9, says, bias)
    law = answer.residual(P.clone(), Q.clone())
    says = (
        "With p = (0.5, 0.5) and q = (0.8, 0.2) a rejected word has to become the second "
        f"one for sure, (0, 1); residual gives {numbers(law)}."
    )
    expect(torch.allclose(law, torch.tensor([0.0, 1.0]).double()), says, bias)


@check(
    "whether the residual is a distribution",
    "Divide by the sum; and where p = q the sum is zero: return p there.",
)
def a_distribution(answer: ModuleType) -> None:
    for kind, seed in product(KINDS, range(20)):
        p, q = pair_of(kind, seed)
        law = answer.residual(p, q)
        start = (
            f"The residual of p = {numbers(p)} and q = {numbers(q)} is {numbers(law)}"
        )
        finite = bool(law.isfinite().all())
        expect(finite, f"{start}: something was divided by zero.")
        total = float(law.sum())
        right = float(law.min()) >= 0 and abs(total - 1) < 1e-9
        expect(right, f"{start}, which sums to {total:.3g}, not 1.")
        same = all(map(torch.equal, (p, q), pair_of(kind, seed)))
        expect(same, "residual has changed p or q, which others still need.")


@check(
    "the distribution over every text, by adding up every case",
    "For each word: q·accept + P(rejected)·residual has to be p. Write it out for one "
    "word that q likes too much and one that q likes too little.",
)
def the_targets(answer: ModuleType) -> None:
    check_output(rule_of(answer))


@check(
    "how many draft tokens stay",
    "The best possible is the sum of min(p, q). A token with p > q need never be "
    "rejected.",
)
def as_many_as_can(answer: ModuleType) -> None:
    for kind in KINDS:
        p, q = pair_of(kind, seed=2)
        drafts = drawn_drafts(context_free(q), (-1,))
        kept = expected_accepted(rule_of(answer), context_free(p), drafts)
        best = 1 - total_variation(p, q)
        says = (
            f"The result is right, but a draft token stays with probability {kept:.3g} "
            f"where {best:.3g} is possible."
        )
        expect(abs(kept - best) < 1e-9, says)


def examples(answer: ModuleType) -> Examples:
    """Its numbers on the coin and on random worlds."""
    pairs = [(P, Q), *(pair_of(*world) for world in product(KINDS, range(4)))]
    for number, (p, q) in enumerate(pairs):
        for word in q.nonzero().flatten().tolist():
            pair = float(p[word]), float(q[word])
            accepts = partial(answer.accept_prob, *pair)
            yield f"accept {number} {word}", outcome_of(accepts)
        residual = partial(answer.residual, p.clone(), q.clone())
        yield f"residual {number}", outcome_of(residual)
