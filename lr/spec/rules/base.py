"""From a law to a decision: what all rules share that say how a round can end, and how likely each
end is.

Such a rule writes down its law (`outcomes`), and the law is the code that runs: a round throws one
coin, takes the outcome on which it falls, and draws the last token. So `rules/law.py`, which adds
up outcomes, checks the program and not a copy of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from lr.errors import ProtocolError
from lr.spec.acceptance import Decision, Draws, Outcome, Proposal, rows_of
from lr.spec.sampling import sample


class LawRule(ABC):
    """An acceptance rule given by its outcomes. A subclass names itself and writes `outcomes`."""

    name: str
    lossless: bool
    trees: bool
    looks_ahead: bool = False

    @abstractmethod
    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """Every way the round can end, given the drafts; `p_rows` [n + 1, v]: the target at the
        branch's end, then behind each node.
        """

    @torch.inference_mode()
    def verify(
        self, probs: Tensor, proposals: Sequence[Proposal], draws: Sequence[Draws]
    ) -> list[Decision]:
        """One decision per branch from flat `probs` [sum of (n + 1), v]; see
        `AcceptanceRule.verify`.
        """
        if len(draws) != len(proposals):
            raise ProtocolError(
                f"{len(proposals)} proposals came with {len(draws)} sets of draws; expected one each."
            )
        chosen, keys = [], []
        for p_rows, proposal, draw in zip(
            rows_of(probs, proposals, trees=self.trees), proposals, draws, strict=True
        ):
            outcome = (
                pick(self.outcomes(p_rows, proposal), draw.coin())
                if proposal.tokens
                else untried(p_rows)
            )
            depth = len(outcome.nodes)
            chosen.append(outcome)
            keys.append(draw.sample_key(depth) if outcome.untouched else draw.residual_key(depth))
        tokens = sample(torch.stack([outcome.law() for outcome in chosen]), keys) if chosen else []
        return [
            Decision(outcome.nodes, token) for outcome, token in zip(chosen, tokens, strict=True)
        ]


def untried(p_rows: Tensor) -> Outcome:
    """The only outcome where nothing was proposed."""
    return Outcome(1.0, (), lambda: p_rows[0], untouched=True)


def pick(outcomes: Sequence[Outcome], coin: float) -> Outcome:
    """The outcome on which the coin in [0, 1) falls, where each takes as much room as it is likely.

    Example: probabilities (0.5, 0, 0.5) and coin 0.5: the third. What rounding leaves of the room
    belongs to the last possible one.
    """
    room = 0.0
    for outcome in outcomes:
        room += outcome.probability
        if coin < room:
            return outcome
    return next(outcome for outcome in reversed(outcomes) if outcome.probability > 0)
