"""Block verification, the acceptance rule that keeps the most draft tokens."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from lr.spec.acceptance import (
    AcceptanceRule,
    Outcome,
    Proposal,
    accept_prob,
    probs_of_tokens,
    replacement,
)


class BlockRule(AcceptanceRule):
    """Judges the draft tokens of a chain together, from the last to the first.

    Sun et al., "Block verification accelerates speculative decoding", arXiv 2403.10444,
    prove that it is lossless and that no rule which sees only the drafts' own rows
    keeps more on average. Token-wise rejection is wasteful: if p(x) > q(x), the token
    is kept for sure, and the surplus p(x)/q(x) - 1 is lost. This rule keeps the surplus
    as credit for the tokens before x.

    Let w_0 = 1 and w_i = min(1, w_{i-1} p(x_i)/q(x_i)), the probability with which
    x_1..x_i may be kept. After x_i let S_i = sum over x of (w_i p(x) - q(x))+, the part
    that no draft can cover. From the end backwards, the block is cut after the last
    token with probability h_n = w_n, after x_i with probability h_i = S_i / (S_i + 1 -
    w_i), and else before the first token. The next token is drawn from p at the end,
    else from (w_i p - q)+, normalised.

    *Proof.* Claim: P(at least x_1..x_i are kept, given them) = w_i. It is true at the end. If it is
    true for i + 1, then, averaged over x_{i+1} ~ q, a longer block is kept with probability
    sum min(w_i p, q) = w_i - S_i, and else the block is cut here with h_i:
    w_i - S_i + (1 - w_i + S_i) h_i = w_i. So x_1..x_i x is emitted with x as a draft with
    probability min(w_i p(x), q(x)), and with x as a replacement with probability
    S_i * (w_i p(x) - q(x))+ / S_i. The sum is w_i p(x), the target's distribution given that
    x_1..x_i are kept.

    *A trap.* The decision depends on drafts after the cut, so their noise is no longer fresh. If
    the next round drew its drafts at those places with the same keys, they would be correlated with
    the cut, and the output would be biased. Hence `needs_fresh_noise`."""

    name = "block"
    lossless = True
    trees = False
    needs_fresh_noise = True
    narrow = True

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """One outcome per place where the block can be cut. The end is first."""
        n, q = len(proposal), proposal.q
        ps, qs = probs_of_tokens(p_rows, proposal)
        weights = block_weights(ps, qs)
        if q is None:  # certain drafts cover only p(x)
            uncovered = [w * (1.0 - p) for w, p in zip(weights[:-1], ps, strict=True)]
        else:
            scale = p_rows.new_tensor(weights[:-1])[:, None]  # [n, 1]
            uncovered = (
                (p_rows[:-1] * scale).sub_(q).clamp_min_(0.0).sum(-1).tolist()
            )  # S_i
        outcomes = [
            Outcome(weights[n], tuple(range(n)), lambda: p_rows[n], untouched=True)
        ]
        left = 1.0 - weights[n]
        for i in reversed(range(n)):
            whole = (
                uncovered[i] + 1.0 - weights[i]
            )  # 0 if p = q from here on: all is kept
            cut = (uncovered[i] / whole if whole > 0 else 0.0) if i else 1.0
            probs = partial(replacement, p_rows[i], proposal, [i], weights[i])
            outcomes.append(
                Outcome(left * cut, tuple(range(i)), probs, untouched=False)
            )
            left *= 1.0 - cut
        return outcomes


def block_weights(ps: list[float], qs: list[float]) -> list[float]:
    """w_0 .. w_n from the draft tokens' own p and q.

    Example: for p/q = 2, then 1/2, token-wise rejection keeps both drafts with
    probability 1/2, and so does w = 1, 1, 1/2. For p/q = 1/2, then 2, token-wise
    rejection again keeps both with 1/2, but w = 1, 1/2, 1 keeps them for sure."""
    weights = [1.0]
    for p, q in zip(ps, qs, strict=True):
        weights.append(accept_prob(weights[-1] * p, q))
    return weights
