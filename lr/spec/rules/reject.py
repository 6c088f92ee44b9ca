"""Rejection sampling: a draft token stays with probability min(1, p/q), else the residual replaces
it. Lossless; chains and trees.

For one draft token: x comes out as an accepted draft with probability q(x) min(1, p(x)/q(x)) =
min(p(x), q(x)), and as a replacement with probability P(rejected) * (p(x) - min(p(x), q(x))) /
P(rejected), since what is missing to p, summed over x, is just P(rejected). Together p(x). The same
holds at every next place, given what stands before it (Leviathan et al., arXiv 2211.17192, appendix
A.1; Chen et al., arXiv 2302.01318).

Several candidates for one place (a tree) are tried in order. After a rejection what is still to be
hit is no longer p but the residual, so the next candidate, drawn from its own q, is tried against
*that*: the argument above with p replaced by the residual (SpecInfer, Miao et al., arXiv
2305.09781, section 4; without replacement: Sequoia, arXiv 2402.12374). A chain is a tree with one
candidate each.

The decision never looks behind the place where it stops. Read next: `block.py`, which does, and so
keeps more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from lr.spec.acceptance import ROOT, Outcome, Proposal, accept_prob, residual, residual_certain
from lr.spec.rules.base import LawRule


class RejectRule(LawRule):
    """Token-wise rejection sampling; on trees multi-round."""

    name = "reject"
    lossless = True
    trees = True

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """One outcome per node of the tree, the root included: the walk ends there, with all its
        children rejected.
        """
        families = proposal.families()
        chances = acceptance_chances(p_rows, proposal, families)
        outcomes = []
        reach = [1.0] + [0.0] * len(
            proposal
        )  # reach[row]: the walk gets there; parents come first, so it is known in time
        for row, family in enumerate(families):
            left = reach[row]
            for node in family:
                reach[node + 1] = left * chances[node]
                left *= 1.0 - chances[node]
            law = partial(law_after_rejections, p_rows[row], proposal.tokens, proposal.q, family)
            outcomes.append(Outcome(left, proposal.path(row + ROOT), law, untouched=not family))
        return outcomes


def acceptance_chances(
    p_rows: Tensor, proposal: Proposal, families: Sequence[Sequence[int]]
) -> list[float]:
    """For each node, the probability that it is accepted once it is tried: its parent accepted, its
    earlier siblings rejected.
    """
    ps, qs = probabilities_of_tokens(p_rows, proposal)
    chances = [0.0] * len(proposal)
    for row, family in enumerate(families):
        if len(family) == 1:
            chances[family[0]] = accept_prob(ps[family[0]], qs[family[0]])
        elif proposal.q is None:
            _chances_certain(family, proposal.tokens, ps, chances)
        else:
            _chances_drawn(family, proposal.tokens, p_rows[row], proposal.q, chances)
    return chances


def probabilities_of_tokens(p_rows: Tensor, proposal: Proposal) -> tuple[list[float], list[float]]:
    """p and q of every draft token, in fp64: all that a chain needs to know of the [n, v] tables,
    fetched at once.
    """
    tokens = torch.tensor(proposal.tokens, device=p_rows.device)
    before = (
        p_rows[:-1]
        if proposal.is_chain
        else p_rows[torch.tensor(proposal.parents, device=p_rows.device) + 1]
    )
    ps = before.gather(1, tokens[:, None])
    if proposal.q is None:
        return ps[:, 0].tolist(), [1.0] * len(proposal)
    both = torch.cat((ps, proposal.q.gather(1, tokens[:, None])), 1)
    columns = both.t().tolist()
    return columns[0], columns[1]


def _chances_certain(
    family: Sequence[int], tokens: Sequence[int], ps: Sequence[float], chances: list[float]
) -> None:
    """Siblings proposed with certainty: the residual is p without the earlier ones, so a token's
    share in it is p / (1 - theirs).

    Example: p (0.5, 0.3, 0.2), siblings 0 and 1: 0.5, then 0.3 / 0.5 = 0.6. A token that was tried
    before has no chance left.
    """
    left, tried = 1.0, set[int]()
    for node in family:
        if tokens[node] not in tried:
            chances[node] = accept_prob(ps[node], left)
            left -= ps[node]
            tried.add(tokens[node])


def _chances_drawn(
    family: Sequence[int], tokens: Sequence[int], p: Tensor, q: Tensor, chances: list[float]
) -> None:
    """Siblings drawn from rows of q: each is tried against what the earlier rejections left of
    p.
    """
    for node in family:
        token = tokens[node]
        chances[node] = accept_prob(float(p[token]), float(q[node, token]))
        p = residual(p, q[node])


def law_after_rejections(
    p: Tensor, tokens: Sequence[int], q: Tensor | None, family: Sequence[int]
) -> Tensor:
    """The law [v] of the token where every node of `family` was tried in order and rejected; p
    where there was none.
    """
    if not family:
        return p
    if q is None:
        return residual_certain(p, [tokens[node] for node in family])
    for node in family:
        p = residual(p, q[node])
    return p
