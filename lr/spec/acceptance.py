"""Acceptance: which of the draft's tokens may stay, and which token follows them. The words, and
the two formulas.

A drafter makes a `Proposal` per branch, a chain or a tree of tokens. The target looks at all of it
in one forward. An acceptance rule (`rules/`) then makes a `Decision`: a path of accepted nodes from
the root down, and one more token. A rule is *lossless* if what comes out is distributed as what the
target alone would have written.

`p` is the target's distribution, `q` the draft's (Leviathan et al., arXiv 2211.17192). A draft
token x stays with probability min(1, p(x) / q(x)); if it does not, the token in its place comes
from the residual (p - q)+, normalised: together exactly p.

This module knows no model, cache or branch, and does not know how the drafts came about; it
believes what the proposal says of their law. Read next: `rules/reject.py`, then `rules/law.py`,
where the claim "lossless" is put to the test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lr.errors import ProtocolError
from lr.rng import Stream, uniform

ROOT = -1
"""The parent of the first tokens of a proposal: the end of the branch."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """Draft tokens for one branch: a chain, or in general a tree, whose siblings are tried in
    order.

    `parents[i]` is the node before node i, `ROOT` for a token right after the branch's end; parents
    come before their children. `q` [n, v]: row i is the law from which token i was drawn, given its
    path and its earlier siblings. Siblings drawn independently have equal rows; without
    replacement, each row lacks the earlier siblings and sums to one all the same. `q` None: nothing
    was drawn, the tokens were certain (n-gram lookup, greedy or top-k drafts); the same as one-hot
    rows.

    Example: tokens (7, 4, 9, 2), parents (-1, -1, 0, 2) is "7 9 2", with 4 as the second choice for
    the first place. Raises `ProtocolError` if the parts do not fit together.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    q: Tensor | None = None

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if len(self.parents) != n:
            raise ProtocolError(
                f"a proposal has {n} tokens and {len(self.parents)} parents; there must be one per token."
            )
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ProtocolError(
                    f"node {node} has parent {parent}; expected {ROOT} (the root) or an earlier node."
                )
        if self.q is not None and (self.q.dim() != 2 or len(self.q) != n):
            raise ProtocolError(
                f"q has shape {tuple(self.q.shape)}; expected [{n}, v], a row for each of {n} tokens."
            )

    @classmethod
    def chain(cls, tokens: Sequence[int], q: Tensor | None = None) -> Proposal:
        """The tokens one after the other."""
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), q)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def families(self) -> list[list[int]]:
        """The children of every node, in order; those of node i stand at place i + 1, those of the
        root at place 0.

        That is also the order of the target's rows: row 0 is at the branch's end, row i + 1 behind
        node i.
        """
        families: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            families[parent + 1].append(node)
        return families

    def children(self, node: int) -> list[int]:
        """The nodes right after `node` (`ROOT` for the root's), in the order in which they are
        tried.
        """
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root down to `node` and with it; nothing for the root."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def depths(self) -> list[int]:
        """How many tokens lie between the branch's end and each of the target's rows: 0 for the
        root's, then one per node.
        """
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return depths


EMPTY = Proposal((), ())
"""Nothing proposed: the round is one step of plain decoding."""


@dataclass(frozen=True)
class Decision:
    """What becomes of a proposal: the accepted nodes from the root down, and the token that follows
    them.
    """

    nodes: tuple[int, ...]
    token: int


@dataclass(frozen=True)
class Draws:
    """The randomness of one branch in one round: the target's `stream` of this step, and the place
    in the step of the first draft.

    Rounds of one step begin at different places, so every key is used once. Three purposes are kept
    apart: the draft may have drawn with the target's own keys (coupling "shared"), so neither a
    coin nor a residual may use them.
    """

    stream: Stream
    offset: int

    def sample_key(self, depth: int) -> int:
        """The key with which plain decoding draws the token `depth` places on."""
        return self.stream.key(self.offset + depth)

    @property
    def coin_key(self) -> int:
        """The key of the round's coin."""
        return self.stream.child("accept").key(self.offset)

    def coin(self) -> float:
        """The round's coin, in [0, 1)."""
        return uniform(self.coin_key)

    def residual_key(self, depth: int) -> int:
        """The key of a token that replaces rejected drafts `depth` places on."""
        return self.stream.child("residual").key(self.offset + depth)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One way a round can end: how likely it is given the drafts, the accepted nodes, and the `law`
    [v] of the token after them.

    `untouched`: no draft was tried in that token's place, so its law is the target's own row and
    plain decoding's key is its key.
    """

    probability: float
    nodes: tuple[int, ...]
    law: Callable[[], Tensor]
    untouched: bool


class AcceptanceRule(Protocol):
    """Decides about proposals.

    `lossless`: the emitted tokens have the target's law if the drafts have theirs, proved where the
    rule's module says. `trees`: it can verify trees, not only chains. `looks_ahead`: its decision
    depends on draft tokens *behind* the place where it stops, so the next round must not draw its
    drafts with the same noise again (`rules/block.py` says why).
    """

    name: str
    lossless: bool
    trees: bool
    looks_ahead: bool

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """Every way the round can end, given the drafts; `p_rows` [n + 1, v] as in `verify`.
        Probabilities sum to one.
        """
        ...

    def verify(
        self, probs: Tensor, proposals: Sequence[Proposal], draws: Sequence[Draws]
    ) -> list[Decision]:
        """Decide for each branch, whatever the others are.

        `probs` is flat, [sum of (n + 1), v]: of each branch the target's row at its end, then one
        row behind each node, in order.
        """
        ...


def accept_prob(p: float, q: float) -> float:
    """min(1, p / q): the probability that a token with target probability p and draft probability q
    stays.

    q = 0 cannot have been drawn; should it come all the same, the token stays iff the target can
    write it.
    """
    if q <= 0:
        return 1.0 if p > 0 else 0.0
    return min(1.0, p / q)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The law (p - q)+ / sum of a token in place of a rejected one, [v] from [v]; p itself where p
    <= q everywhere.
    """
    return normalised((p - q).clamp_min_(0.0), otherwise=p)


def residual_certain(p: Tensor, tokens: Sequence[int]) -> Tensor:
    """The residual where all `tokens` were proposed with certainty and rejected: p without them,
    renormalised.
    """
    left = p.clone()
    left[list(tokens)] = 0.0
    return normalised(left, otherwise=p)


def normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """`weights` [v] divided by their sum, in place; `otherwise` if they are all zero."""
    total = float(weights.sum())
    return weights.div_(total) if total > 0 else otherwise


def rows_of(probs: Tensor, proposals: Sequence[Proposal], *, trees: bool = True) -> list[Tensor]:
    """The part [n + 1, v] of flat `probs` that belongs to each proposal. Raises `ProtocolError` if
    the sizes do not fit.
    """
    expected = sum(len(proposal) + 1 for proposal in proposals)
    if probs.dim() != 2 or len(probs) != expected:
        raise ProtocolError(
            f"probs have shape {tuple(probs.shape)}; expected [{expected}, v]: one row more than draft tokens."
        )
    vocabulary = probs.shape[1]
    for proposal in proposals:
        if proposal.q is not None and proposal.q.shape[1] != vocabulary:
            raise ProtocolError(
                f"q speaks of {proposal.q.shape[1]} tokens, the target of {vocabulary}; make them equal."
            )
        if proposal.tokens and not 0 <= min(proposal.tokens) <= max(proposal.tokens) < vocabulary:
            raise ProtocolError(
                f"draft tokens {proposal.tokens} are not all within the target's {vocabulary}."
            )
        if not trees and not proposal.is_chain:
            raise ProtocolError(
                f"a tree with parents {proposal.parents} came to a rule that verifies chains only."
            )
    if len(proposals) == 1:
        return [probs]
    return list(torch.split(probs, [len(proposal) + 1 for proposal in proposals]))
