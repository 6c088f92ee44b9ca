"""The draft tokens of a round, and the randomness with which a rule decides.

A drafter makes a `Proposal` per branch, a chain or a tree of tokens. The target runs
over all of it in one forward and gives one row more than there are tokens: row 0 is at
the branch's end, row i + 1 after node i. Read next: `acceptance.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from lr.kvcache.cache import integers
from lr.rng import Stream
from lr.spec.checks import TOLERANCE, is_int, refuse
from lr.spec.sampling import not_finite

ROOT = -1
"""The parent of the first tokens of a proposal: the end of the branch."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """Draft tokens for one branch: a tree whose siblings are tried in order, often just
    a chain.

    `parents[i]` is the node before node i, or `ROOT` for a token right after the
    branch's end; parents come before their children. `q` [n, v]: row i is the
    distribution from which token i was drawn, given its path and its earlier siblings.
    (For siblings drawn without replacement, each row lacks the earlier ones and still
    sums to one.) `q` None: nothing was drawn and the tokens were certain (n-gram
    lookup, greedy or top-k drafts), which is equivalent to one-hot rows. `probs`: p and
    q of the tokens, once `with_probs` has read them; a changed copy has none. `logits`
    [n + 1, v] and `hidden` [n + 1, e]: what the target's rows are made from, once it
    has read the tokens, for a rule or a drafter that requires them.

    Example: tokens (7, 4, 9, 2), parents (-1, -1, 0, 2) is "7 9 2" with 4 as the second
    choice for the first position.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    q: Tensor | None = None
    logits: Tensor | None = None
    hidden: Tensor | None = None
    probs: tuple[list[float], list[float]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        earlier = all(ROOT <= parent < node for node, parent in enumerate(self.parents))
        if not earlier or len(self.parents) != len(self.tokens):
            expected = f"{len(self)} parents, each ROOT or an earlier node"
            refuse("drafter", Proposal, self.parents, expected)
        if self.q is not None and (self.q.dim() != 2 or len(self.q) != len(self)):
            expected = f"a q of shape [{len(self)}, v], a row per token"
            refuse("drafter", Proposal, tuple(self.q.shape), expected)

    @classmethod
    def chain(cls, tokens: Sequence[int], q: Tensor | None = None) -> Proposal:
        """A proposal of these tokens, one after the other."""
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), q)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def families(self) -> list[list[int]]:
        """The children of every node, in the order in which they are tried. Entries are
        numbered as the target's rows: 0 is the root (the branch's end), i + 1 is node
        i.
        """
        families: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            families[parent + 1].append(node)  # ROOT + 1 is row 0
        return families

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root down to `node`, inclusive; empty for the root."""
        return () if node == ROOT else (*self.path(self.parents[node]), node)

    def depths(self) -> list[int]:
        """The number of draft tokens before each of the target's rows: 0, then one per
        node."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)  # parents come first
        return depths


EMPTY = Proposal((), ())
"""Nothing proposed: the round is one step of plain decoding."""


@dataclass(frozen=True)
class Draws:
    """The randomness of one branch in one round: the target's `stream` for this step,
    and `offset`, the step's tokens before the round, so every key is used once. The
    three purposes have separate keys, since the draft may have drawn with the target's
    own (coupling "shared").
    """

    stream: Stream
    offset: int

    def sample_key(self, depth: int) -> int:
        """The key with which plain decoding draws the token after `depth` more
        tokens."""
        return self.stream.key(self.offset + depth)

    @property
    def uniform_key(self) -> int:
        """The key of the round's uniform number in [0, 1), which selects the
        outcome."""
        return self.stream.fold_in("accept").key(self.offset)

    def residual_key(self, depth: int) -> int:
        """The key of the token that replaces rejected drafts after `depth` more
        tokens."""
        return self.stream.fold_in("residual").key(self.offset + depth)


def check_proposal(drafter: Any, proposal: Proposal, max_depth: int) -> None:
    """Of ints, no deeper than `max_depth`; a chain unless `trees`; rows of q are
    distributions."""
    method = drafter.propose
    for ids in (proposal.tokens, proposal.parents):
        if not (isinstance(ids, (tuple, list)) and all(map(is_int, ids))):
            expected = "tokens and parents that are ints, not tensors"
            refuse("drafter", method, ids, expected)
    depth = max(proposal.depths())
    if depth > max_depth:
        expected = f"at most min(k, limit) = {max_depth} deep; this one is {depth} deep"
        refuse("drafter", method, proposal.tokens, expected)
    if not drafter.trees and not proposal.is_chain:
        refuse("drafter", method, proposal.parents, "a chain, since `trees` is False")
    if proposal.q is not None:
        sums = proposal.q.double().sum(-1)
        # False for NaN, too
        if not bool((proposal.q >= 0).all() & ((sums - 1).abs() < TOLERANCE).all()):
            expected = "a q whose rows are distributions: not negative, each with sum 1"
            refuse("drafter", method, sums, expected)


def check_widths(drafter: Any, proposals: Sequence[Proposal], width: int) -> None:
    """Rows of q have a column per token of the target."""
    for proposal in proposals:
        if proposal.q is not None and proposal.q.shape[1] != width:
            expected = f"a q with {width} columns, one per token"
            refuse("drafter", drafter.propose, tuple(proposal.q.shape), expected)


def probs_of_tokens(
    p_rows: Tensor, proposal: Proposal
) -> tuple[list[float], list[float]]:
    """p and q of every draft token, which is all that a chain needs of the [n, v]
    tables. Raises `NumericalError` if one is not a finite number.
    """
    if proposal.probs is None:
        [proposal] = with_probs([p_rows], [proposal])
    assert proposal.probs is not None
    return proposal.probs


def with_probs(
    tables: Sequence[Tensor], proposals: Sequence[Proposal]
) -> list[Proposal]:
    """The proposals with p and q of their tokens, read by a single transfer from the
    device. `tables`: the target's rows [n + 1, v] of each proposal."""
    values = []
    for p_rows, proposal in zip(tables, proposals, strict=True):
        # Row i + 1 follows node i, so a token's own row is that of its parent plus 1.
        rows_before = [parent + 1 for parent in proposal.parents]
        rows, tokens = integers((rows_before, proposal.tokens), p_rows.device)
        p = p_rows[rows, tokens]  # [n]
        q = torch.ones_like(p)  # a certain draft
        if proposal.q is not None:
            q = proposal.q.gather(1, tokens[:, None])[:, 0]
        values.append(torch.stack((p, q)))
    ps, qs = torch.cat(values, dim=1).tolist()  # the single transfer
    if not all(map(isfinite, (*ps, *qs))):
        raise not_finite()
    read = []
    start = 0
    for proposal in proposals:
        end = start + len(proposal)
        copy = replace(proposal)
        object.__setattr__(copy, "probs", (ps[start:end], qs[start:end]))
        read.append(copy)
        start = end
    return read
