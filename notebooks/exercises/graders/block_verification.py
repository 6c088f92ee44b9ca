"""The grader of block_verification.py: the exact distribution, and as many draft tokens
kept as by the package's rule.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

import torch
from exercise_kit import (
    CHAINS,
    EXACT,
    KINDS,
    Check,
    Examples,
    Outcomes,
    Rule,
    Wrong,
    check_output,
    models,
    outcome_of,
)
from torch import Tensor

from lr.spec.acceptance import BlockRule, Proposal
from lr.theory.exact import (
    drawn_drafts,
    expected_accepted,
    target_rows,
)

PRAISE = (
    "Exact, and it keeps as many draft tokens as any rule that sees these rows can."
)
NEXT = "copy_on_write"
P = torch.tensor([[0.4, 0.6], [0.8, 0.2], [0.5, 0.5]]).double()
Q = torch.tensor([[0.8, 0.2], [0.4, 0.6]]).double()


def taught(answer: ModuleType) -> Rule:
    """The rule that your function describes."""

    def outcomes(p_rows: Tensor, proposal: Proposal) -> Outcomes:
        endings = answer.endings(p_rows, proposal.q, proposal.tokens)
        for kept, (chance, after) in enumerate(endings):
            yield chance, kept, after.clone

    return Rule(outcomes)


def credit_goes_back(answer: ModuleType) -> None:
    chances = [
        float(chance) for chance, _ in answer.endings(P.clone(), Q.clone(), (0, 0))
    ]
    if len(chances) != 3 or max(abs(a - b) for a, b in zip(chances, (0, 0, 1))) > 1e-9:
        told = ", ".join(f"{chance:.3g}" for chance in chances)
        raise Wrong(
            "First p/q = 1/2, then 2: as a block both draft tokens stay for sure, so the "
            f"endings have the probabilities 0, 0, 1; yours are {told}."
        )


def endings_are_distributions(answer: ModuleType) -> None:
    for kind in KINDS:
        for chain in CHAINS:
            target, draft = models(kind, seed=3)
            for _, proposal in drawn_drafts(draft, chain):
                assert proposal.q is not None
                rows = target_rows(target, proposal)
                check_endings(
                    answer.endings(rows, proposal.q, proposal.tokens), len(chain)
                )


def check_endings(endings: list[tuple[float, Tensor]], drafts: int) -> None:
    """`Wrong` if the endings, or what follows one of them, are no distribution."""
    if len(endings) != drafts + 1:
        raise Wrong(
            f"{drafts} draft tokens have {drafts + 1} endings, from none to all of them; you "
            f"return {len(endings)}."
        )
    chances = [float(chance) for chance, _ in endings]
    if abs(sum(chances) - 1) > 1e-9 or min(chances) < -EXACT:
        raise Wrong(
            f"The probabilities of the endings sum to {sum(chances):.4g}, not 1."
        )
    for i, (chance, after) in enumerate(endings):
        if not bool(after.isfinite().all()):
            raise Wrong(f"After {i} draft tokens something was divided by zero.")
        total = float(after.sum())
        if chance > EXACT and (float(after.min()) < 0 or abs(total - 1) > 1e-9):
            raise Wrong(
                f"What follows {i} kept draft tokens is not a distribution: it sums to {total:.4g}."
            )


def the_targets(answer: ModuleType) -> None:
    check_output(taught(answer))


def as_many_as_can(answer: ModuleType) -> None:
    target, draft = models("random", seed=2)
    for chain in CHAINS:
        mine = expected_accepted(taught(answer), target, drawn_drafts(draft, chain))
        best = expected_accepted(BlockRule(), target, drawn_drafts(draft, chain))
        if abs(mine - best) > EXACT:
            raise Wrong(
                f"Of {len(chain)} draft tokens {mine:.4g} stay on average; {best:.4g} can."
            )


CHECKS = (
    Check(
        "two draft tokens, the first too likely under q, the second too unlikely",
        "w_1 = 1/2 and w_2 = min(1, 1/2 · 2) = 1, and all stay with probability w_2.",
        credit_goes_back,
    ),
    Check(
        "whether the endings are distributions",
        "Going down, keep the probability that nothing longer was cut, `left`; the last cut, "
        "before the first draft token, takes all of it. Where a sum is zero, return p.",
        endings_are_distributions,
    ),
    Check(
        "the distribution over every text, by adding up every case",
        "Cap w at 1 in each step of the recursion; and the token after a cut comes from "
        "(w_i p - q)+, with the weight.",
        the_targets,
    ),
    Check(
        "how many draft tokens stay",
        "The chance to cut after x_i is S_i / (S_i + 1 - w_i) of what is left.",
        as_many_as_can,
    ),
)


def examples(answer: ModuleType) -> Examples:
    """Its endings on some proposals."""

    def flat(p: Tensor, q: Tensor, tokens: tuple[int, ...]) -> object:
        found = answer.endings(p.clone(), q.clone(), tokens)
        return torch.cat(
            [torch.cat([torch.tensor([float(c)]).double(), law]) for c, law in found]
        )

    yield "credit", outcome_of(partial(flat, P, Q, (0, 0)))
    target, draft = models("random", seed=3)
    for chain in CHAINS:
        for number, (_, proposal) in enumerate(drawn_drafts(draft, chain)):
            assert proposal.q is not None
            rows = target_rows(target, proposal)
            call = partial(flat, rows, proposal.q, tuple(proposal.tokens))
            yield f"{len(chain)} {number}", outcome_of(call)
