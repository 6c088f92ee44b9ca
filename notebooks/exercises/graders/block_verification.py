"""The grader of block_verification.py: the exact distribution, and as many draft tokens
kept as by the package's rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import ModuleType

import torch
from exercise_kit import (
    CHAINS,
    EXACT,
    KINDS,
    Examples,
    Outcomes,
    Rule,
    check,
    check_output,
    expect,
    models,
    outcome_of,
)
from torch import Tensor

from lr.spec.acceptance import BlockRule
from lr.spec.proposal import Proposal
from lr.theory.exact import drawn_drafts, expected_accepted, target_rows

PRAISE = (
    "Exact, and it keeps as many draft tokens as any rule that sees these rows can."
)
NEXT = "copy_on_write"
P = torch.tensor([[0.4, 0.6], [0.8, 0.2], [0.5, 0.5]]).double()
Q = torch.tensor([[0.8, 0.2], [0.4, 0.6]]).double()


def rule_of(answer: ModuleType) -> Rule:
    """The rule that your function describes."""

    def outcomes(p_rows: Tensor, proposal: Proposal) -> Outcomes:
        endings = answer.endings(p_rows, proposal.q, proposal.tokens)
        for kept, (chance, after) in enumerate(endings):
            yield chance, kept, after.clone

    return Rule(outcomes)


def proposals(kind: str) -> Iterator[tuple[Tensor, Tensor, tuple[int, ...]]]:
    """The arguments of `endings` for every proposal of one to three tokens."""
    target, draft = models(kind, seed=3)
    for chain in CHAINS:
        for _, proposal in drawn_drafts(draft, chain):
            assert proposal.q is not None
            yield target_rows(target, proposal), proposal.q, tuple(proposal.tokens)


@check(
    "two draft tokens, the first too likely under q, the second too unlikely",
    "w_1 = 1/2 and w_2 = min(1, 1/2 · 2) = 1, and all stay with probability w_2.",
)
def credit_goes_back(answer: ModuleType) -> None:
    endings = answer.endings(P.clone(), Q.clone(), (0, 0))
    chances = [round(float(chance), 9) for chance, _ in endings]
    listed = ", ".join(f"{chance:.3g}" for chance in chances)
    says = (
        "First p/q = 1/2, then 2: as a block both draft tokens stay for sure, so the "
        f"endings have the probabilities 0, 0, 1; yours are {listed}."
    )
    expect(chances == [0, 0, 1], says)


@check(
    "whether the endings are distributions",
    "Going down, keep the probability that nothing longer was cut, `left`; the last cut, "
    "before the first draft token, takes all of it. Where a sum is zero, return p.",
)
def endings_are_distributions(answer: ModuleType) -> None:
    for kind in KINDS:
        for rows, q, tokens in proposals(kind):
            check_endings(answer.endings(rows, q, tokens), len(tokens))


def check_endings(endings: list[tuple[float, Tensor]], drafts: int) -> None:
    """`Wrong` if the endings, or what follows one of them, are no distribution."""
    says = (
        f"{drafts} draft tokens have {drafts + 1} endings, from none to all of them; you "
        f"return {len(endings)}."
    )
    expect(len(endings) == drafts + 1, says)
    chances = [float(chance) for chance, _ in endings]
    says = f"The probabilities of the endings sum to {sum(chances):.4g}, not 1."
    expect(abs(sum(chances) - 1) < 1e-9 and min(chances) >= -EXACT, says)
    for i, (chance, after) in enumerate(endings):
        says = f"After {i} draft tokens something was divided by zero."
        expect(bool(after.isfinite().all()), says)
        total = float(after.sum())
        says = (
            f"What follows {i} kept draft tokens is not a distribution: it sums to "
            f"{total:.4g}."
        )
        right = float(after.min()) >= 0 and abs(total - 1) < 1e-9
        expect(right or chance <= EXACT, says)


@check(
    "the distribution over every text, by adding up every case",
    "Cap w at 1 in each step of the recursion; and the token after a cut comes from "
    "(w_i p - q)+, with the weight.",
)
def the_targets(answer: ModuleType) -> None:
    check_output(rule_of(answer))


@check(
    "how many draft tokens stay",
    "The chance to cut after x_i is S_i / (S_i + 1 - w_i) of what is left.",
)
def as_many_as_can(answer: ModuleType) -> None:
    target, draft = models("random", seed=2)
    for chain in CHAINS:
        kept, best = (
            expected_accepted(rule, target, drawn_drafts(draft, chain))
            for rule in (rule_of(answer), BlockRule())
        )
        says = (
            f"Of {len(chain)} draft tokens {kept:.4g} stay on average; {best:.4g} can."
        )
        expect(abs(kept - best) <= EXACT, says)


def examples(answer: ModuleType) -> Examples:
    """Its endings on some proposals."""

    def flat(p: Tensor, q: Tensor, tokens: tuple[int, ...]) -> object:
        rows = answer.endings(p.clone(), q.clone(), tokens)
        return torch.stack([torch.cat([p.new_tensor([c]), law]) for c, law in rows])

    for number, arguments in enumerate([(P, Q, (0, 0)), *proposals("random")]):
        yield str(number), outcome_of(partial(flat, *arguments))
