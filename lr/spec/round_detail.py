"""What a trace says of a round of token-level speculation: every guess with its probabilities, the
coin, the token behind.

All of it follows from what decided the round: the rule's own list of outcomes. If the outcomes in
which a guess stays have probability S, then once it is tried (its parent stayed, its earlier
siblings did not) it stays with probability S / (S of the parent - S of those siblings). So a rule
of one's own appears in the trace without a line written for it.

Example, rule reject, a chain of two guesses with min(1, p/q) 0.8 and 0.5: outcomes "none", "the
first", "both" have 0.2, 0.4, 0.4. The guesses stay with 0.8, and with 0.4 / 0.8 = 0.5. With the
coin 0.5 "the first" is taken. Seen from the end, 1 - 0.5 = 0.5: the first stays because 0.5 < 0.8;
given that, the coin is uniform on [0, 0.8], as a share of that 0.625, and the second goes because
0.625 > 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lr.rng import uniform
from lr.spec.acceptance import AcceptanceRule, Decision, Draws, Outcome, Proposal
from lr.spec.rules.base import LawRule
from lr.spec.rules.reject import probabilities_of_tokens
from lr.trace import Guess, RoundDetail


class _Overheard:
    """A rule that is listened to: the outcomes that it works out while it decides are kept, so that
    they need not be worked out again.
    """

    def __init__(self, rule: AcceptanceRule) -> None:
        self.rule = rule
        self.heard: dict[int, list[Outcome]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """See `AcceptanceRule`."""
        if id(proposal) not in self.heard:
            self.heard[id(proposal)] = self.rule.outcomes(p_rows, proposal)
        return self.heard[id(proposal)]


def verify_in_detail(
    rule: AcceptanceRule, probs: Tensor, proposals: Sequence[Proposal], draws: Sequence[Draws]
) -> tuple[list[Decision], list[RoundDetail]]:
    """What the rule decides (see `AcceptanceRule.verify`), and the details of each branch's
    round.
    """
    overheard = _Overheard(rule)
    decisions = type(rule).verify(overheard, probs, proposals, draws)
    rows = (
        [probs]
        if len(proposals) == 1
        else probs.split([len(proposal) + 1 for proposal in proposals])
    )
    parts = zip(rows, proposals, draws, decisions, strict=True)
    return decisions, [_detail(overheard, *part) for part in parts]


def _detail(
    overheard: _Overheard, p_rows: Tensor, proposal: Proposal, draws: Draws, decision: Decision
) -> RoundDetail:
    last = decision.nodes[-1] + 1 if decision.nodes else 0
    p = p_rows[last, decision.token].item()
    depth = len(decision.nodes)
    if not proposal.tokens:
        return RoundDetail(
            draws.offset, (), None, None, decision.token, p, False, draws.sample_key(0)
        )
    outcomes = overheard.outcomes(p_rows, proposal)
    coin_key = draws.coin_key if isinstance(overheard.rule, LawRule) else None
    coin = None if coin_key is None else uniform(coin_key)
    residual = coin is not None and not any(
        one.untouched for one in outcomes if one.nodes == decision.nodes
    )
    return RoundDetail(
        offset=draws.offset,
        guesses=_guesses(p_rows, proposal, outcomes, coin, decision),
        coin=coin,
        coin_key=coin_key,
        token=decision.token,
        p=p,
        residual=residual,
        key=draws.residual_key(depth) if residual else draws.sample_key(depth),
    )


def _guesses(
    p_rows: Tensor,
    proposal: Proposal,
    outcomes: Sequence[Outcome],
    coin: float | None,
    decision: Decision,
) -> tuple[Guess, ...]:
    ps, qs = probabilities_of_tokens(p_rows, proposal)
    tokens, parents, kept = proposal.tokens, proposal.parents, decision.nodes
    stay = [0.0] * len(tokens)
    for outcome in outcomes:
        for node in outcome.nodes:
            stay[node] += outcome.probability
    if not proposal.is_chain:
        coin = None
    elif (
        coin is not None and not outcomes[0].nodes
    ):  # the list begins with the outcome in which nothing stays
        coin = 1.0 - coin
    left = [1.0, *stay]  # of the root and of every node: what its children can still get
    reached = [
        True,
        *(node in kept for node in range(len(tokens))),
    ]  # and whether the next of them is tried
    guesses = []
    for node, parent in enumerate(parents):
        room, tried = left[parent + 1], reached[parent + 1]
        accept = min(1.0, stay[node] / room) if room > 0 else None
        share = coin / room if coin is not None and tried and room > 0 else None
        stays = reached[node + 1]
        guesses.append(
            Guess(tokens[node], parent, ps[node], qs[node], accept, share, stays if tried else None)
        )
        left[parent + 1] -= stay[node]
        reached[parent + 1] = tried and not stays
    return tuple(guesses)
