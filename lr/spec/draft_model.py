"""A draft model as drafter, with a cache of its own: chains (`ModelDrafter`) or trees of tokens
(`TreeDrafter`) after every branch, all branches in one batch, one forward per place.

With coupling "independent" the draft draws with noise of its own, new in every round; with "shared"
with the very keys with which the target would draw at those places. Neither distribution changes,
but the two agree far more often (`lr/lab/exact.py`); use it with sample matching.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lr.kvcache.branch import Branch
from lr.spec.acceptance import EMPTY, ROOT, Proposal
from lr.spec.drafters import Context
from lr.spec.runner import Runner
from lr.spec.sampling import distribution, perturbed, sample
from lr.types import Coupling, SamplingParams, require


class Mirror:
    """A draft model's own branches, one for each branch of the target, kept in step with it.

    After a round the target's branch holds tokens that the draft did not write (a correction), or
    that it has not read (the token after a fully accepted proposal).
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._own: dict[Branch, Branch] = {}

    def follow(self, branch: Branch) -> Branch:
        """The draft's branch for `branch`, made to hold exactly its tokens: what it has beyond the
        common beginning goes, the rest becomes pending, at least one token. The branch for a new
        `branch` is forked from the one that shares the longest beginning.
        """
        own, tokens = self._own.get(branch), branch.tokens
        if own is None:
            best = max(self._own.values(), key=lambda one: common(one.tokens, tokens), default=None)
            shared = best is not None and common(best.tokens, tokens) > 0
            own = self.runner.fork(best) if best and shared else self.runner.open(tokens)
            self._own[branch] = own
        self.runner.rewind(own, min(common(own.tokens, tokens), len(tokens) - 1))
        own.extend(tokens[len(own) :])
        return own

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            if branch in self._own:
                self.runner.close(self._own.pop(branch))


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common beginning of two token lists, by bisection over slices (their
    comparison is fast).
    """
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:  # a[:low] == b[:low] and a[:high + 1] != b[:high + 1]
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def draft_key(context: Context, depth: int, coupling: Coupling) -> int:
    """The key of the draft's token `depth` places after the branch's end: the target's own, or one
    that belongs to this round.
    """
    draws = context.draws
    if coupling is Coupling.SHARED:
        return draws.sample_key(depth)
    return draws.stream.fold_in("token draft", draws.offset).key(depth)


@dataclass
class _Chain:
    """A chain in the making, at most `depth` tokens long, with the distributions [v] they were
    drawn from.
    """

    context: Context
    branch: Branch
    depth: int
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)


class ModelDrafter:
    """Chains of tokens, with the distribution of each (`Proposal.q`), made by the same function and
    sampling parameters as the target's.

    Nothing is drafted after a token of `eos_ids`. `min_confidence` ends a proposal *after* a token
    drawn from a distribution whose likeliest token has less; what was drawn is kept and judged,
    since to drop it unseen would bias the output.
    """

    name = "draft"
    trees = False

    def __init__(
        self,
        runner: Runner,
        sampling: SamplingParams,
        *,
        coupling: Coupling = Coupling.INDEPENDENT,
        min_confidence: float = 0.0,
        eos_ids: frozenset[int] = frozenset(),
    ) -> None:
        expected = "a probability in [0, 1] (0 never stops early)"
        require(0 <= min_confidence <= 1, "min_confidence", min_confidence, expected)
        self.runner, self.sampling, self.coupling = runner, sampling, coupling
        self.min_confidence, self.eos_ids = min_confidence, eos_ids
        self._mirror = Mirror(runner)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        chains = {
            context.branch: _Chain(context, self._mirror.follow(context.branch), depth)
            for context in contexts
            if (depth := min(k, context.limit)) > 0
        }
        live = [*chains.values()]
        while live:
            logits = torch.stack(self.runner.forward([chain.branch for chain in live]))  # [b, v]
            probs = distribution(logits, self.sampling)  # [b, v]
            keys = [draft_key(one.context, len(one.tokens), self.coupling) for one in live]
            tokens = sample(probs, keys)
            sure = probs.amax(-1).tolist() if self.min_confidence else [1.0] * len(live)
            go_on = []
            for chain, row, token, confidence in zip(live, probs, tokens, sure, strict=True):
                chain.tokens.append(token)
                chain.rows.append(row)
                ends = token in self.eos_ids or confidence < self.min_confidence
                if len(chain.tokens) < chain.depth and not ends:
                    chain.branch.append(token)
                    go_on.append(chain)
            live = go_on
        return [self._proposal(chains.get(context.branch)) for context in contexts]

    def forget(self, branches: Iterable[Branch]) -> None:
        self._mirror.forget(branches)

    def _proposal(self, chain: _Chain | None) -> Proposal:
        if chain is None:
            return EMPTY
        q = None if self.sampling.greedy else torch.stack(chain.rows)  # [n, v]
        return Proposal.chain(chain.tokens, q)


@dataclass
class _Tree:
    """A tree in the making. `leaves`: the deepest nodes, each with its branch of the draft."""

    context: Context
    depth: int
    leaves: list[tuple[int, Branch]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


class TreeDrafter:
    """Trees: at every place the likeliest few tokens, each with its own few successors.

    `branching` (3, 2, 1) means three candidates for the next token, two successors of each, one
    successor of each of those: 3 + 6 + 6 nodes, 6 paths. The candidates are certain (top-k, nothing
    is drawn), so `Proposal.q` is None. With coupling "shared" the ranking is by log q plus the
    target's own noise at that place: the first candidate is then what the draft would draw with the
    target's keys, the others follow in that order (Gumbel top-k). The draft's cache is forked like
    the tree; each level is one forward.
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
        whole = len(branching) > 0 and all(isinstance(w, int) and w >= 1 for w in branching)
        expected = "one whole number >= 1 per level, such as (3, 2, 1)"
        require(whole, "branching", tuple(branching), expected)
        # Ranked before top-k and top-p, or there might be fewer candidates than are wanted.
        self.runner, self.sampling = runner, SamplingParams(sampling.temperature or 1.0)
        self.branching, self.coupling, self.eos_ids = tuple(branching), coupling, eos_ids
        self._mirror = Mirror(runner)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        deepest = min(k, len(self.branching))
        trees = [_Tree(context, min(deepest, context.limit)) for context in contexts]
        for tree in [tree for tree in trees if tree.depth > 0]:
            own = self._mirror.follow(tree.context.branch)
            if len(own.pending) > 1:  # read all but the last token, so that the paths share them
                last = own.tokens.pop()
                self.runner.forward([own])
                own.append(last)
            tree.leaves.append((ROOT, self.runner.fork(own)))
        for level, width in enumerate(self.branching[:deepest]):
            growing = [
                (tree, node, branch)
                for tree in trees
                if level < tree.depth
                for node, branch in tree.leaves
            ]
            if not growing:
                break
            logits = torch.stack(
                self.runner.forward([branch for _, _, branch in growing])
            )  # [b, v]
            scores = distribution(logits, self.sampling)  # [b, v]
            if self.coupling is Coupling.SHARED:
                keys = [draft_key(tree.context, level, self.coupling) for tree, _, _ in growing]
                scores = perturbed(scores, keys)
            ranked = scores.topk(min(width, scores.shape[-1]), dim=-1).indices.tolist()
            for tree, _, _ in growing:
                tree.leaves = []
            for (tree, node, branch), candidates in zip(growing, ranked, strict=True):
                for token in candidates:
                    tree.tokens.append(token)
                    tree.parents.append(node)
                    if level + 1 < tree.depth and token not in self.eos_ids:
                        child = self.runner.fork(branch)
                        child.append(token)
                        tree.leaves.append((len(tree.tokens) - 1, child))
                self.runner.close(branch)
        for tree in trees:
            for _, branch in tree.leaves:
                self.runner.close(branch)
        return [Proposal(tuple(t.tokens), tuple(t.parents)) if t.tokens else EMPTY for t in trees]

    def forget(self, branches: Iterable[Branch]) -> None:
        self._mirror.forget(branches)
