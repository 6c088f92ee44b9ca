"""Block verification: judge the draft tokens of a chain together, from the last to the first.
Lossless; keeps the most.

Sun et al., "Block verification accelerates speculative decoding", arXiv 2403.10444, where it is
proved lossless, and that no rule which sees only the drafts' own rows keeps more on average.
Token-wise rejection wastes: where p(x) > q(x) the token stays for sure, and the surplus p(x)/q(x) -
1 is forgotten. Here it is kept as credit for the tokens before it.

Let w_0 = 1 and w_i = min(1, w_{i-1} p(x_i)/q(x_i)): how much of the draft x_1..x_i may stay. Behind
x_i let S_i = sum over x of (w_i p(x) - q(x))+, the part of that which no draft can cover. Going
down from the end, the block is cut behind x_i with probability h_i = S_i / (S_i + 1 - w_i), behind
the last token with h_n = w_n, and before the first if nowhere else. The next token comes from p at
the end, else from (w_i p - q)+, normalised.

*Why it is right.* P(at least x_1..x_i stay, given them) = w_i. True at the end. If it is true for i
+ 1, then, averaged over x_{i+1} ~ q, a longer block stays with probability sum min(w_i p, q) = w_i
- S_i, and else we stop here with h_i: w_i - S_i + (1 - w_i + S_i) h_i = w_i. And so x_1..x_i x
comes out with x a draft in min(w_i p(x), q(x)) of the cases, with x a replacement in S_i * (w_i
p(x) - q(x))+ / S_i of them; together w_i p(x), which is the law of the target given that x_1..x_i
stay.

*A trap.* The decision looks at drafts behind the cut. Their noise is then no longer fresh: if the
next round drew its drafts at those places with the same keys, they would be correlated with the
cut, and the output biased. Hence `looks_ahead`: whoever drafts for this rule takes new noise in
every round.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from lr.spec.acceptance import Outcome, Proposal, normalised, residual_certain
from lr.spec.rules.base import LawRule
from lr.spec.rules.reject import probabilities_of_tokens


class BlockRule(LawRule):
    """Block verification of chains."""

    name = "block"
    lossless = True
    trees = False
    looks_ahead = True

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """One outcome per place where the block can be cut, the end first."""
        n = len(proposal)
        ps, qs = probabilities_of_tokens(p_rows, proposal)
        weights = block_weights(ps, qs)
        surplus = uncovered(p_rows, proposal, weights, ps)
        outcomes = [Outcome(weights[n], tuple(range(n)), lambda: p_rows[n], untouched=True)]
        left = 1.0 - weights[n]
        for i in reversed(range(n)):
            cut = cut_chance(surplus[i], weights[i]) if i else 1.0
            law = partial(law_behind, p_rows[i], proposal, i, weights[i])
            outcomes.append(Outcome(left * cut, tuple(range(i)), law, untouched=False))
            left *= 1.0 - cut
        return outcomes


def block_weights(ps: list[float], qs: list[float]) -> list[float]:
    """w_0 .. w_n from the draft tokens' own p and q.

    Example: p/q = 2, then 1/2: token-wise rejection keeps the second draft with 1/2; w = 1, 1, 1/2
    does, too. The other way round, p/q = 1/2, then 2: token-wise both stay with 1/2; w = 1, 1/2, 1
    keeps them for sure.
    """
    weights = [1.0]
    for p, q in zip(ps, qs, strict=True):
        if q > 0:
            weights.append(min(1.0, weights[-1] * p / q))
        else:  # cannot have been drawn; see `accept_prob`
            weights.append(1.0 if weights[-1] * p > 0 else 0.0)
    return weights


def uncovered(
    p_rows: Tensor, proposal: Proposal, weights: list[float], ps: list[float]
) -> list[float]:
    """S_0 .. S_{n-1}: how much of w_i p lies above q in the row behind x_i. With a certain draft x,
    that is all but p(x).
    """
    if proposal.q is None:
        return [w * (1.0 - p) for w, p in zip(weights[:-1], ps, strict=True)]
    scale = p_rows.new_tensor(weights[:-1])[:, None]
    sums: list[float] = (p_rows[:-1] * scale).sub_(proposal.q).clamp_min_(0.0).sum(-1).tolist()
    return sums


def cut_chance(surplus: float, weight: float) -> float:
    """h = S / (S + 1 - w). Where both parts are zero (p = q from here on) all that follows stays
    and the chance is never asked for.
    """
    whole = surplus + 1.0 - weight
    return surplus / whole if whole > 0 else 0.0


def law_behind(p: Tensor, proposal: Proposal, i: int, weight: float) -> Tensor:
    """The law [v] of the token in place of x_{i+1}, where the block was cut before it: (w_i p -
    q)+, normalised.
    """
    if proposal.q is None:
        return residual_certain(p, proposal.tokens[i : i + 1])
    return normalised((p * weight).sub_(proposal.q[i]).clamp_min_(0.0), otherwise=p)
