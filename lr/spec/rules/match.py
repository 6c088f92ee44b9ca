"""Sample matching: the target draws its own token at every place; a draft stays iff it is that
token. Lossless on any tree.

What comes out is what the target draws, with the very keys of plain decoding: not only the law but
every token is that of plain decoding, whatever was drafted and in whatever batch (fp64). The draft
decides about speed alone.

How often does it agree? If draft and target draw with noise of their own, with probability sum of p
q: hardly ever at high temperature. If the draft draws with the target's keys (coupling "shared"),
the same noise mostly picks the same token: see `coupling.py`. The rule is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lr.errors import ProtocolError
from lr.spec.acceptance import ROOT, Decision, Draws, Outcome, Proposal, rows_of
from lr.spec.rules.reject import RejectRule
from lr.spec.sampling import sample


class MatchRule:
    """Keep the drafts that the target would have written itself."""

    name = "match"
    lossless = True
    trees = True
    looks_ahead = False

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """The law where the drafts' noise is independent of the target's: a child stays with p(x),
        else p without the children follows.

        Given the drafts, that is rejection against drafts that were certain, however they were
        drawn.
        """
        return RejectRule().outcomes(p_rows, replace(proposal, q=None))

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
        rows_of(probs, proposals)  # refuses what does not fit
        keys = [
            draw.sample_key(depth)
            for proposal, draw in zip(proposals, draws, strict=True)
            for depth in proposal.depths()
        ]
        tokens = iter(sample(probs, keys) if keys else [])
        return [
            follow(proposal, [next(tokens) for _ in range(len(proposal) + 1)])
            for proposal in proposals
        ]


def follow(proposal: Proposal, drawn: Sequence[int]) -> Decision:
    """Go from the root to the child that has the token drawn there, as long as there is one.

    `drawn` [n + 1]: the target's own token at the branch's end, then behind each node. Of equal
    siblings the first is taken.
    """
    nodes: list[int] = []
    families = proposal.families()
    row = 0
    while True:
        token = drawn[row]
        node = next((child for child in families[row] if proposal.tokens[child] == token), ROOT)
        if node == ROOT:
            return Decision(tuple(nodes), token)
        nodes.append(node)
        row = node + 1
