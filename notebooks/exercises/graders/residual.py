"""The grader of residual.py: the exact distribution of what comes out, by
enumeration."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import torch
from exercise_kit import (
    KINDS,
    Check,
    Examples,
    Outcomes,
    Rule,
    Wrong,
    check_output,
    numbers,
    outcome_of,
    pair_of,
)
from torch import Tensor

from lr.spec.acceptance import Proposal
from lr.theory.exact import (
    context_free,
    drawn_drafts,
    expected_accepted,
    total_variation,
)

PRAISE = "What comes out is the target's distribution, to twelve digits, and no rule keeps more."
NEXT = "block_verification"


def taught(answer: ModuleType) -> Rule:
    """Rejection sampling of a chain, made of your two functions."""

    def outcomes(p_rows: Tensor, proposal: Proposal) -> Outcomes:
        """A chain ends at its first rejected token, or after its last."""
        q, left = proposal.q, 1.0
        assert q is not None
        for i, token in enumerate(proposal.tokens):
            pq = float(p_rows[i, token]), float(q[i, token])
            stays = float(answer.accept_prob(*pq))
            yield left * (1.0 - stays), i, partial(answer.residual, p_rows[i], q[i])
            left *= stays
        yield left, len(proposal), lambda: p_rows[-1]

    return Rule(outcomes)


P, Q = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.8, 0.2]).double()


def bias_of(answer: ModuleType, p: Tensor, q: Tensor) -> float:
    """The largest error of a word's probability, when one token is drawn from q."""
    stay = torch.tensor(
        [
            float(answer.accept_prob(float(a), float(b)))
            for a, b in zip(p, q, strict=True)
        ]
    ).double()
    out = q * stay + (1 - (q * stay).sum()) * answer.residual(p, q)
    return float((out - p).abs().max())


def the_coin(answer: ModuleType) -> None:
    for p, q, right in ((0.5, 0.8, 0.625), (0.5, 0.2, 1.0)):
        said = float(answer.accept_prob(p, q))
        if abs(said - right) > 1e-9:
            raise Wrong(
                f"A token with p = {p} and q = {q} has to stay with probability {right}; "
                f"accept_prob says {said:.4g}.",
                bias_of(answer, P, Q),
            )
    said = answer.residual(P.clone(), Q.clone())
    if not torch.allclose(said, torch.tensor([0.0, 1.0]).double()):
        raise Wrong(
            f"With p = (0.5, 0.5) and q = (0.8, 0.2) a rejected word has to become the second one "
            f"for sure, (0, 1); residual gives {numbers(said)}.",
            bias_of(answer, P, Q),
        )


def a_distribution(answer: ModuleType) -> None:
    for kind in KINDS:
        for seed in range(20):
            p, q = pair_of(kind, seed)
            before = p.clone(), q.clone()
            drawn = answer.residual(p, q)
            of = f"The residual of p = {numbers(p)} and q = {numbers(q)}"
            if not bool(drawn.isfinite().all()):
                raise Wrong(f"{of} is {numbers(drawn)}: something was divided by zero.")
            if float(drawn.min()) < 0 or abs(float(drawn.sum()) - 1) > 1e-9:
                raise Wrong(
                    f"{of} is {numbers(drawn)}, which sums to {float(drawn.sum()):.3g}, not 1."
                )
            if not (torch.equal(p, before[0]) and torch.equal(q, before[1])):
                raise Wrong("residual has changed p or q, which others still need.")


def the_targets(answer: ModuleType) -> None:
    check_output(taught(answer))


def as_many_as_can(answer: ModuleType) -> None:
    for kind in KINDS:
        p, q = pair_of(kind, seed=2)
        drafts = drawn_drafts(context_free(q), (-1,))
        kept = expected_accepted(taught(answer), context_free(p), drafts)
        best = 1 - total_variation(p, q)
        if abs(kept - best) > 1e-9:
            raise Wrong(
                f"The result is right, but a draft token stays with probability {kept:.3g} where "
                f"{best:.3g} is possible."
            )


CHECKS = (
    Check(
        "a two-word coin, p = (0.5, 0.5) and q = (0.8, 0.2)",
        "Accepted tokens already come out with probability q·min(1, p/q) = min(p, q). The residual "
        "has to bring only what is still missing to p.",
        the_coin,
    ),
    Check(
        "whether the residual is a distribution",
        "Divide by the sum; and where p = q the sum is zero: return p there.",
        a_distribution,
    ),
    Check(
        "the distribution over every text, by adding up every case",
        "For each word: q·accept + P(rejected)·residual has to be p. Write it out for one word "
        "that q likes too much and one that q likes too little.",
        the_targets,
    ),
    Check(
        "how many draft tokens stay",
        "The best possible is the sum of min(p, q). A token with p > q need never be rejected.",
        as_many_as_can,
    ),
)


def examples(answer: ModuleType) -> Examples:
    """Its numbers on the coin and on random worlds."""
    pairs = [(P, Q), *(pair_of(kind, seed) for kind in KINDS for seed in range(4))]
    for number, (p, q) in enumerate(pairs):
        for word in range(len(p)):
            pq = float(p[word]), float(q[word])
            if pq[1] > 0:
                yield (
                    f"accept {number} {word}",
                    outcome_of(partial(answer.accept_prob, *pq)),
                )
        yield (
            f"residual {number}",
            outcome_of(partial(answer.residual, p.clone(), q.clone())),
        )
