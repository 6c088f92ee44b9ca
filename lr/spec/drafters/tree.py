"""A token tree from a draft model: at every place the likeliest few tokens, each with its own few
successors.

`branching` (3, 2, 1) means: three candidates for the next token, two successors of each, one
successor of each of those: 3 + 6 + 6 nodes, 6 paths. The candidates are certain (top-k, nothing is
drawn), so `Proposal.q` is None. With coupling "shared" the ranking is by log q plus the target's
own noise at that place: the first candidate is then what the draft would draw with the target's
keys, the others its next guesses at the same draw (Gumbel top-k). The draft's cache is forked like
the tree; each level is one forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lr.kvcache.branch import Branch
from lr.spec.acceptance import EMPTY, ROOT, Proposal
from lr.spec.drafters.base import Context
from lr.spec.drafters.mirror import Mirror
from lr.spec.drafters.model import draft_key
from lr.spec.runner import Runner
from lr.spec.sampling import distribution, perturbed
from lr.types import Coupling, SamplingParams, require


@dataclass
class _Tree:
    """A tree in the making; `leaves` are (node, its branch in the draft's cache) of the deepest
    level.
    """

    context: Context
    depth: int
    leaves: list[tuple[int, Branch]]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


class TreeDrafter:
    """Trees of likely tokens from a draft model on a runner of its own, at most `len(branching)`
    deep.
    """

    name = "tree"
    trees = True

    def __init__(
        self,
        runner: Runner,
        sampling: SamplingParams,
        *,
        branching: Sequence[int] = (3, 2, 1, 1),
        coupling: Coupling = Coupling.INDEPENDENT,
        eos_ids: frozenset[int] = frozenset(),
    ) -> None:
        proper = len(branching) > 0 and all(
            isinstance(width, int) and width >= 1 for width in branching
        )
        require(
            proper,
            "branching",
            tuple(branching),
            "one whole number >= 1 per level, such as (3, 2, 1)",
        )
        # The ranking needs the law before top-k and top-p cut it, or there may be fewer candidates
        # than branches.
        self.runner, self.sampling = runner, SamplingParams(sampling.temperature or 1.0)
        self.branching, self.coupling, self.eos_ids = tuple(branching), coupling, eos_ids
        self._mirror = Mirror(runner)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        trees = [
            self._plant(context, min(k, context.limit, len(self.branching))) for context in contexts
        ]
        for level, width in enumerate(self.branching):
            growing = [
                (tree, node, branch)
                for tree in trees
                if level < tree.depth
                for node, branch in tree.leaves
            ]
            if not growing:
                break
            rows = self.runner.feed([branch for _, _, branch in growing])
            probs = distribution(torch.stack(rows), self.sampling)
            ranked = self._rank(
                probs,
                [draft_key(tree.context, level, self.coupling) for tree, _, _ in growing],
                width,
            )
            for tree in trees:
                if level < tree.depth:
                    tree.leaves = []
            for (tree, node, branch), candidates in zip(growing, ranked, strict=True):
                self._grow(tree, node, branch, candidates, deeper=level + 1 < tree.depth)
        for tree in trees:
            for _, branch in tree.leaves:
                self.runner.close(branch)
        return [Proposal(tuple(t.tokens), tuple(t.parents)) if t.tokens else EMPTY for t in trees]

    def forget(self, branches: Iterable[Branch]) -> None:
        self._mirror.forget(branches)

    def _plant(self, context: Context, depth: int) -> _Tree:
        """A tree without nodes. Its trunk is caught up first, so that all paths share the cache of
        the text.
        """
        tree = _Tree(context, max(depth, 0), [])
        if tree.depth:
            own = self._mirror.follow(context.branch)
            if len(own.pending) > 1:
                last = own.tokens.pop()
                self.runner.feed([own])
                own.append(last)
            tree.leaves = [(ROOT, self.runner.fork(own))]
        return tree

    def _rank(self, probs: Tensor, keys: Sequence[int], width: int) -> list[list[int]]:
        scores = perturbed(probs, keys) if self.coupling is Coupling.SHARED else probs
        return scores.topk(min(width, scores.shape[-1]), dim=-1).indices.tolist()

    def _grow(
        self, tree: _Tree, node: int, branch: Branch, candidates: Sequence[int], *, deeper: bool
    ) -> None:
        """Give a leaf its children and each of them that can go on a fork of its branch. Nothing
        follows the end of the text.
        """
        for token in candidates:
            tree.tokens.append(token)
            tree.parents.append(node)
            if deeper and token not in self.eos_ids:
                child = self.runner.fork(branch)
                child.append(token)
                tree.leaves.append((len(tree.tokens) - 1, child))
        self.runner.close(branch)
