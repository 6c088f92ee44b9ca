"""A round of token-level speculation in full, as a detailed trace shows it: every draft
token with its probabilities, the uniform number that decided, the token after them.

Only a run that records details needs it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lr.rng import uniform
from lr.spec.acceptance import AcceptanceRule, Decision
from lr.spec.proposal import Draws, Proposal, probs_of_tokens
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
    nodes = decision.nodes
    p = p_rows[nodes[-1] + 1 if nodes else 0, decision.token].item()
    detail = RoundDetail(
        offset=draws.offset,
        draft_tokens=(),
        uniform=None,
        uniform_key=None,
        token=decision.token,
        p=p,
        residual=False,
        key=draws.sample_key(len(nodes)),
    )
    if not proposal.tokens:
        return detail
    outcomes = rule.outcomes(p_rows, proposal)
    if rule.draws_uniform:
        number = uniform(draws.uniform_key)
        detail = replace(detail, uniform=number, uniform_key=draws.uniform_key)
        if not any(o.untouched for o in outcomes if o.nodes == nodes):
            key = draws.residual_key(len(nodes))
            detail = replace(detail, residual=True, key=key)

    stay = [0.0] * len(proposal)  # probability of the outcomes in which a token stays
    for outcome in outcomes:
        for node in outcome.nodes:
            stay[node] += outcome.probability
    # The number, counted from "everything stays".
    number_left = detail.uniform if proposal.is_chain else None
    if number_left is not None and not outcomes[0].nodes:
        number_left = 1.0 - number_left
    # For the root and every node: what is left for its next child, and whether that is
    # tried.
    left = [1.0, *stay]
    reached = [True, *(node in nodes for node in range(len(proposal)))]
    ps, qs = probs_of_tokens(p_rows, proposal)
    draft_tokens = []
    for node, parent in enumerate(proposal.parents):
        above = left[parent + 1]
        tried = reached[parent + 1]
        shares = number_left is not None and tried and above > 0
        draft_tokens.append(
            DraftToken(
                token=proposal.tokens[node],
                parent=parent,
                p=ps[node],
                q=qs[node],
                accept=min(1.0, stay[node] / above) if above > 0 else None,
                uniform=number_left / above
                if shares and number_left is not None
                else None,
                kept=reached[node + 1] if tried else None,
            )
        )
        left[parent + 1] -= stay[node]
        reached[parent + 1] = tried and not reached[node + 1]
    return replace(detail, draft_tokens=tuple(draft_tokens))
