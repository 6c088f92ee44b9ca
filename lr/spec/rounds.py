"""A round of token-level speculation in full, as a detailed trace shows it: every draft
token with its probabilities, the uniform number that decided, the token after them.

The core loads this only for a run that records details (`lr/registry.py`)."""

from __future__ import annotations

from torch import Tensor

from lr.rng import uniform
from lr.spec.acceptance import (
    AcceptanceRule,
    Decision,
    Draws,
    Proposal,
    probs_of_tokens,
)
from lr.trace import DraftToken, RoundDetail


def round_detail(
    rule: AcceptanceRule,
    p_rows: Tensor,
    proposal: Proposal,
    draws: Draws,
    decision: Decision,
) -> RoundDetail:
    """One branch's round as the trace shows it. `p_rows` [n + 1, v]: the target's rows.

    All of it follows from the rule's list of outcomes. Let S be the probability of the
    outcomes in which a token stays. Once the token is tried (its parent stayed, its
    earlier siblings did not), it stays with probability S / (S of the parent - S of
    those siblings).

    Example: rule reject, a chain of two tokens whose min(1, p/q) are 0.8 and 0.5. The
    outcomes "none", "the first" and "both" have probabilities 0.2, 0.4 and 0.4. The
    first token stays with probability 0.8, the second with 0.4 / 0.8 = 0.5. The number
    0.5 selects "the first". Counted from the other end it is 1 - 0.5 = 0.5: the first
    token stays because 0.5 < 0.8. Given that, the number is uniform on [0, 0.8]; its
    share is 0.5 / 0.8 = 0.625, and the second token goes because 0.625 > 0.5."""
    kept, token, offset = decision.nodes, decision.token, draws.offset
    p = p_rows[kept[-1] + 1 if kept else 0, token].item()
    if not proposal.tokens:
        return RoundDetail(offset, (), None, None, token, p, False, draws.sample_key(0))
    outcomes = rule.outcomes(p_rows, proposal)
    stay = [0.0] * len(
        proposal
    )  # the probability of the outcomes in which a token stays
    for outcome in outcomes:
        for node in outcome.nodes:
            stay[node] += outcome.probability

    number = uniform(draws.uniform_key) if rule.draws_uniform else None
    seen = number if proposal.is_chain else None
    if (
        seen is not None and not outcomes[0].nodes
    ):  # the outcomes begin with "nothing stays"
        seen = 1.0 - seen
    # For the root and every node: the probability left for its next child, and whether
    # it is tried.
    left = [1.0, *stay]
    reached = [True, *(node in kept for node in range(len(proposal)))]
    draft_tokens = []
    ps, qs = probs_of_tokens(p_rows, proposal)
    for node, parent in enumerate(proposal.parents):
        room, tried, stays = left[parent + 1], reached[parent + 1], reached[node + 1]
        accept = min(1.0, stay[node] / room) if room > 0 else None
        share = seen / room if seen is not None and tried and room > 0 else None
        what = (proposal.tokens[node], parent, ps[node], qs[node], accept, share)
        draft_tokens.append(DraftToken(*what, stays if tried else None))
        left[parent + 1] -= stay[node]
        reached[parent + 1] = tried and not stays

    residual = number is not None and not any(
        outcome.untouched for outcome in outcomes if outcome.nodes == kept
    )
    key = draws.residual_key(len(kept)) if residual else draws.sample_key(len(kept))
    uniform_key = None if number is None else draws.uniform_key
    return RoundDetail(
        offset, tuple(draft_tokens), number, uniform_key, token, p, residual, key
    )
