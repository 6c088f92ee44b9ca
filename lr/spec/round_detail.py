"""What a trace says of a round of token-level speculation: every guess with its probabilities, the coin, the token behind.

All of it follows from what decided the round: the rule's own list of outcomes. If the outcomes in which a guess stays have probability S,
then once it is tried (its parent stayed, its earlier siblings did not) it stays with probability S / (S of the parent - S of those
siblings). So a rule of one's own appears in the trace without a line written for it.

Example, rule reject, a chain of two guesses with min(1, p/q) 0.8 and 0.5: outcomes "none", "the first", "both" have 0.2, 0.4, 0.4. The
guesses stay with 0.8, and with 0.4 / 0.8 = 0.5. With the coin 0.5 "the first" is taken. Seen from the end, 1 - 0.5 = 0.5: the first stays
because 0.5 < 0.8; given that, the coin is uniform on [0, 0.8], as a share of that 0.625, and the second goes because 0.625 > 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lr.spec.acceptance import ROOT, AcceptanceRule, Decision, Draws, Outcome, Proposal, rows_of
from lr.spec.rules.base import LawRule
from lr.spec.rules.reject import probabilities_of_tokens
from lr.tracing.events import Guess, RoundDetail


def details_of(
    rule: AcceptanceRule,
    probs: Tensor,
    proposals: Sequence[Proposal],
    draws: Sequence[Draws],
    decisions: Sequence[Decision],
) -> list[RoundDetail]:
    """The details of each branch's round, from flat `probs` [sum of (n + 1), v] as in `AcceptanceRule.verify`."""
    parts = zip(rows_of(probs, proposals), proposals, draws, decisions, strict=True)
    return [_detail(rule, *part) for part in parts]


def _detail(rule: AcceptanceRule, p_rows: Tensor, proposal: Proposal, draws: Draws, decision: Decision) -> RoundDetail:
    last = decision.nodes[-1] + 1 if decision.nodes else 0
    p = float(p_rows[last, decision.token])
    depth = len(decision.nodes)
    if not proposal.tokens:
        return RoundDetail(draws.offset, (), None, None, decision.token, p, False, draws.sample_key(0))
    outcomes = rule.outcomes(p_rows, proposal)
    coin = draws.coin() if isinstance(rule, LawRule) else None
    residual = coin is not None and not any(one.untouched for one in outcomes if one.nodes == decision.nodes)
    return RoundDetail(
        offset=draws.offset,
        guesses=_guesses(p_rows, proposal, outcomes, coin, decision),
        coin=coin,
        coin_key=None if coin is None else draws.coin_key,
        token=decision.token,
        p=p,
        residual=residual,
        key=draws.residual_key(depth) if residual else draws.sample_key(depth),
    )


def _guesses(
    p_rows: Tensor, proposal: Proposal, outcomes: Sequence[Outcome], coin: float | None, decision: Decision
) -> tuple[Guess, ...]:
    ps, qs = probabilities_of_tokens(p_rows, proposal)
    stay = [0.0] * len(proposal)
    for outcome in outcomes:
        for node in outcome.nodes:
            stay[node] += outcome.probability
    if coin is not None and not outcomes[0].nodes:  # the list begins with the outcome in which nothing stays
        coin = 1.0 - coin
    kept = set(decision.nodes)
    guesses = []
    for row, family in enumerate(proposal.families()):
        parent = row + ROOT
        reached = parent == ROOT or parent in kept
        left = 1.0 if parent == ROOT else stay[parent]
        for node in family:
            uniform = coin / left if coin is not None and reached and proposal.is_chain and left > 0 else None
            accept = min(1.0, stay[node] / left) if left > 0 else None
            fate = (node in kept) if reached else None
            guesses.append((node, Guess(proposal.tokens[node], parent, ps[node], qs[node], accept, uniform, fate)))
            reached = reached and node not in kept
            left -= stay[node]
    return tuple(guess for _, guess in sorted(guesses, key=lambda pair: pair[0]))
