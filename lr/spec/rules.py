"""The acceptance rules, both lossless: rejection sampling and sample matching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.registry import find
from lr.spec.acceptance import (
    ROOT,
    AcceptanceRule,
    Decision,
    Draws,
    Outcome,
    Proposal,
    accept_prob,
    residual,
    residual_certain,
    rows_of,
)
from lr.spec.sampling import sample


class RejectRule(AcceptanceRule):
    """Rejection sampling: a draft token stays with probability min(1, p/q), else the residual
    replaces it. Chains and trees.

    *Why it is right.* x comes out as an accepted draft with probability q(x) min(1, p(x)/q(x)) =
    min(p(x), q(x)), and as a replacement with P(rejected) * (p(x) - min(p(x), q(x))) / P(rejected),
    since what is missing to p, summed over x, is just P(rejected). Together p(x). The same holds at
    every next place, given what stands before it (Leviathan et al., arXiv 2211.17192, appendix A.1;
    Chen et al., arXiv 2302.01318).

    Several candidates for one place (a tree) are tried in order. After a rejection the target
    distribution is no longer p but the residual, so the next candidate, drawn from its own q, is
    tried against *that*: the argument above with the residual in place of p (SpecInfer, Miao et
    al., arXiv 2305.09781, section 4; without replacement: Sequoia, arXiv 2402.12374). A chain is a
    tree with one candidate each. The decision never depends on drafts after the place where it
    stops.
    """

    name = "reject"
    lossless = True
    trees = True

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """One per node, the root included: the walk ends there, with all its children rejected."""
        families = proposal.families()
        chances = acceptance_chances(p_rows, proposal, families)
        outcomes = []
        # reach[row]: the probability that the walk gets there. Parents come before their children.
        reach = [1.0] + [0.0] * len(proposal)
        for row, family in enumerate(families):
            left = reach[row]
            for node in family:
                reach[node + 1] = left * chances[node]
                left *= 1.0 - chances[node]
            probs = partial(replacement, p_rows[row], proposal, family)
            outcomes.append(Outcome(left, proposal.path(row + ROOT), probs, untouched=not family))
        return outcomes


def acceptance_chances(
    p_rows: Tensor, proposal: Proposal, families: Sequence[Sequence[int]]
) -> list[float]:
    """For each node, the probability that it is accepted once it is tried: its parent accepted, its
    earlier siblings rejected.

    Example: p (0.5, 0.3, 0.2), siblings 0 and 1, both certain: 0.5, then 0.3 / 0.5 = 0.6.
    """
    ps, qs = probs_of_tokens(p_rows, proposal)
    tokens, chances = proposal.tokens, [0.0] * len(proposal)
    for row, family in enumerate(families):
        p, left, tried = p_rows[row], 1.0, set[int]()
        for node in family:
            if len(family) == 1:
                chances[node] = accept_prob(ps[node], qs[node])
            elif proposal.q is not None:  # against what the earlier rejections left of p
                chances[node] = accept_prob(float(p[tokens[node]]), qs[node])
                p = residual(p, proposal.q[node])
            elif tokens[node] not in tried:  # p without the earlier ones: p / (1 - theirs)
                chances[node] = accept_prob(ps[node], left)
                left -= ps[node]
                tried.add(tokens[node])
    return chances


def probs_of_tokens(p_rows: Tensor, proposal: Proposal) -> tuple[list[float], list[float]]:
    """p and q of every draft token: all that a chain needs of the [n, v] tables, at once."""
    tokens = torch.tensor(proposal.tokens, device=p_rows.device)[:, None]  # [n, 1]
    parents = torch.tensor(proposal.parents, device=p_rows.device)  # [n]
    before = p_rows[:-1] if proposal.is_chain else p_rows[parents + 1]  # [n, v]
    ps = before.gather(1, tokens)  # [n, 1]
    if proposal.q is None:
        return ps[:, 0].tolist(), [1.0] * len(proposal)
    columns = torch.cat((ps, proposal.q.gather(1, tokens)), 1).t().tolist()  # [2, n]
    return columns[0], columns[1]


def replacement(p: Tensor, proposal: Proposal, tried: Sequence[int], weight: float = 1.0) -> Tensor:
    """The distribution [v] of the token where all of `tried` were rejected, in this order."""
    if proposal.q is None:
        return residual_certain(p, [proposal.tokens[node] for node in tried]) if tried else p
    for node in tried:
        p = residual(p, proposal.q[node], weight)
    return p


class MatchRule(AcceptanceRule):
    """Sample matching: the target draws its own token at every place, and a draft stays iff it is
    that token. Any tree.

    The output is what the target draws with the keys of plain decoding: not only the distribution
    but every token is that of plain decoding, whatever was drafted and in whatever batch (fp64).
    The draft decides about speed alone. If draft and target draw with noise of their own they agree
    with probability sum of p q: hardly ever at high temperature. If the draft draws with the
    target's keys (coupling "shared"), the same noise mostly picks the same token; how often is
    derived in `lr/lab/exact.py`.
    """

    name = "match"
    lossless = True
    trees = True
    draws_uniform = False

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """Where the drafts' noise is independent of the target's: a child stays with p(x), else p
        without the children follows. Given the drafts, that is rejection of certain drafts.
        """
        return RejectRule().outcomes(p_rows, replace(proposal, q=None))

    @torch.inference_mode()
    def verify(
        self, probs: Tensor, proposals: Sequence[Proposal], draws: Sequence[Draws]
    ) -> list[Decision]:
        """See `AcceptanceRule.verify`."""
        rows_of(probs, proposals, draws)  # raises if anything does not fit
        pairs = zip(proposals, draws, strict=True)
        keys = [draw.sample_key(depth) for proposal, draw in pairs for depth in proposal.depths()]
        tokens = iter(sample(probs, keys) if keys else [])
        return [follow(one, [next(tokens) for _ in range(len(one) + 1)]) for one in proposals]


def follow(proposal: Proposal, drawn: Sequence[int]) -> Decision:
    """Go from the root to the child that has the token drawn there, as long as there is one.

    `drawn` [n + 1]: the target's own token at the branch's end, then after each node. Of equal
    siblings the first is taken.
    """
    nodes, families, node = list[int](), proposal.families(), ROOT
    while True:
        token = drawn[node + 1]
        stays = (one for one in families[node + 1] if proposal.tokens[one] == token)
        node = next(stays, ROOT)
        if node == ROOT:
            return Decision(tuple(nodes), token)
        nodes.append(node)


RULES: dict[str, Callable[[], AcceptanceRule]] = {
    "match": MatchRule,
    "reject": RejectRule,
    "block": lambda: find("lr.parts.block_rule:BlockRule")(),
}
"""The rules by name. `tests/spec/test_acceptance_contract.py` checks all of them."""


def choose_rule(name: str) -> AcceptanceRule:
    """The rule called `name`. Raises `SettingError`, with the choices, if there is none."""
    if name not in RULES:
        raise SettingError(
            f"there is no acceptance rule {name!r}; choose one of: {', '.join(RULES)}."
        )
    return RULES[name]()
