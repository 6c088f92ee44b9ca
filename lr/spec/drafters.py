"""The drafters: chains and trees of a draft model, and lookup in the text.

`lr/spec/token_sd.py` defines drafters. Read next: `sampling.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lr.kvcache.branch import Branch, common_length
from lr.spec.proposal import EMPTY, ROOT, Proposal
from lr.spec.runner import Runner, fork_longest, read_up_to, reuse_computed
from lr.spec.sampling import distribution, perturbed, sample
from lr.spec.token_sd import Context, Drafter, DrafterSetup
from lr.types import Coupling, SamplingParams


def make_drafter(setup: DrafterSetup) -> Drafter:
    """The drafter that the options name. Add new drafters here."""
    options = setup.options
    if options.drafter == "ngram":
        return LookupDrafter(options.prompt_lookup_max, options.prompt_lookup_min)
    assert setup.runner is not None, "a mode that drafts tokens has a draft model"
    coupling = Coupling(options.coupling)
    if options.drafter == "tree":
        return TreeDrafter(
            setup.runner,
            setup.sampling,
            coupling,
            setup.eos_ids,
            branching=options.branching,
        )
    return ModelDrafter(
        setup.runner, setup.sampling, coupling, setup.eos_ids, options.draft_confidence
    )


class LookupDrafter(Drafter):
    """Prompt lookup: proposes what followed the last tokens where they occurred before.

    This is the paper's token-level method (n-gram speculation; Saxena's prompt lookup
    decoding, and vLLM's `ngram`). The text includes the prompt. The longest n-gram
    wins, with n from `prompt_lookup_max` down to `prompt_lookup_min`, and of its
    occurrences the most recent. Example, n = 2: in 5 8 9 1 5 8 the pair "5 8" occurs
    earlier, so 9 1 5 8 is proposed, cut to k.
    """

    name = "ngram"

    def __init__(self, prompt_lookup_max: int = 2, prompt_lookup_min: int = 1) -> None:
        self.longest = prompt_lookup_max
        self.shortest = prompt_lookup_min

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [
            self._look_up(context.tokens, min(k, context.limit)) for context in contexts
        ]

    def _look_up(self, tokens: Sequence[int], k: int) -> Proposal:
        # 8 bytes per token: bytes are searched fast
        text = array("q", tokens).tobytes()
        if k < 1:
            return EMPTY
        for n in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            end = earlier_end(text, n)
            if end is not None:
                return Proposal.chain(tokens[end : end + k])  # certain: no q
        return EMPTY


def earlier_end(text: bytes, n: int) -> int | None:
    """The latest earlier end of the last n tokens of `text` (8 bytes each), in tokens,
    or None."""
    pattern = text[-8 * n :]
    stop = len(text) - 1  # not the last n tokens themselves
    while (position := text.rfind(pattern, 0, stop)) >= 0:
        if position % 8 == 0:  # a match must begin where a token begins
            return position // 8 + n
        stop = position + len(pattern) - 1
    return None


@dataclass(eq=False)
class ModelDrafter(Drafter):
    """Chains of tokens, with the distributions that they are drawn from (`Proposal.q`).

    Sampling parameters are the target's. Nothing is drafted after a token of `eos_ids`,
    nor after a place where the draft is unsure: its likeliest token has less than the
    probability `confidence`. That is known before the token there is drawn, so the
    proposal's length says nothing about a token that a rule has yet to try, and
    lossless rules stay lossless.

    The draft model has a branch of its own for each branch of the target (`follow`)."""

    name = "draft"

    runner: Runner
    sampling: SamplingParams
    coupling: Coupling = Coupling.INDEPENDENT
    eos_ids: frozenset[int] = frozenset()
    confidence: float = 0.0
    branching: Sequence[int] = ()  # of a tree
    _twins: dict[Branch, Branch] = field(default_factory=dict, init=False)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        """Level by level, one forward for each. A chain is a tree of width 1."""
        window = self.runner.context  # it may end before the target's
        k = min(k, len(self.branching)) if self.trees else k
        depths = [min(k, c.limit, window - c.length) for c in contexts]
        tokens: list[list[int]] = [[] for _ in contexts]
        parents: list[list[int]] = [[] for _ in contexts]
        # What each token was drawn from, [v] each.
        rows: list[list[Tensor]] = [[] for _ in contexts]
        # 1. Where the next tokens are due: (proposal, node, branch that ends there).
        leaves: list[tuple[int, int, Branch]] = []
        for i, context in enumerate(contexts):
            if depths[i] > 0:
                branch = self.follow(context.branch)
                if self.trees:
                    read_up_to(self.runner, branch, len(branch) - 1)
                    branch = self.runner.fork(branch)
                leaves.append((i, ROOT, branch))
        level = 0
        while leaves:
            # 2. Run the draft on all of them.
            logits = torch.stack(self.runner.forward([branch for *_, branch in leaves]))
            probs = distribution(logits, self.sampling)  # [b, v]
            keys = [draft_key(contexts[i], level, self.coupling) for i, *_ in leaves]
            chosen = self.choose(probs, keys, level)
            sure = [True] * len(leaves)
            if self.confidence > 0:
                # [b]: the probability of the likeliest token
                likeliest = (logits.amax(-1) - logits.logsumexp(-1)).exp()
                sure = (likeliest >= self.confidence).tolist()
            # 3. Add the tokens, and go on after them where more may follow.
            level += 1
            grown = []
            for (i, node, branch), row, candidates, goes_on in zip(
                leaves, probs, chosen, sure, strict=True
            ):
                for token in candidates:
                    tokens[i].append(token)
                    parents[i].append(node)
                    rows[i].append(row)
                    if goes_on and level < depths[i] and token not in self.eos_ids:
                        child = self.runner.fork(branch) if self.trees else branch
                        child.append(token)
                        grown.append((i, len(tokens[i]) - 1, child))
                if self.trees:
                    self.runner.close(branch)  # its children hold its blocks
            leaves = grown
        certain = self.trees or self.sampling.greedy  # nothing was drawn
        return [
            Proposal(tuple(t), tuple(p), None if certain or not q else torch.stack(q))
            for t, p, q in zip(tokens, parents, rows, strict=True)
        ]

    def choose(self, probs: Tensor, keys: list[int], level: int) -> list[list[int]]:
        """The tokens proposed at each place, from the draft's distributions [b, v]."""
        return [[token] for token in sample(probs, keys)]

    def follow(self, branch: Branch) -> Branch:
        """The draft's branch for `branch`, with exactly its tokens and at least one
        uncomputed.

        After a round the target's branch has a token that the draft did not write (a
        correction) or has not read (the token after a fully accepted proposal). Tokens
        after the common beginning are removed, and the missing tokens are appended. A
        new branch is forked from the longest one of the runner: where the draft model
        also writes steps, on one runner, it has read the text already."""
        tokens = branch.tokens
        twin = self._twins.get(branch)
        if twin is None:
            twin = fork_longest(self.runner, self.runner.branches, tokens)
            self._twins[branch] = twin
            return twin
        common = common_length(twin.tokens, tokens)
        self.runner.rewind(twin, min(common, len(tokens) - 1))  # one stays uncomputed
        twin.extend(tokens[len(twin) :])
        reuse_computed(self.runner, twin)
        return twin

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            if branch in self._twins:
                self.runner.close(self._twins.pop(branch))


def draft_key(context: Context, depth: int, coupling: Coupling) -> int:
    """The key of the draft's token `depth` places ahead.

    With coupling "shared" it is the target's own key for that place. The distributions
    do not change, but the two models agree far more often (`lr/theory/exact.py`), which
    pays with sample matching. Else the key is new in every round."""
    if coupling is Coupling.SHARED:
        return context.draws.sample_key(depth)
    return context.draws.stream.fold_in("token draft", context.draws.offset).key(depth)


@dataclass(eq=False)
class TreeDrafter(ModelDrafter):
    """Trees: the likeliest tokens at every place, each with its own likeliest
    successors.

    `branching` (3, 2, 1) means three candidates for the next token, two successors of
    each, one successor of each of those: 3 + 6 + 6 nodes, 6 paths. The candidates are
    certain (top-k, nothing is drawn), so `Proposal.q` is None. With coupling "shared"
    the ranking is by log q plus the target's noise at that place (Gumbel top-k), so the
    first candidate is the token that the draft would draw with the target's keys. The
    draft's cache is forked like the tree."""

    name = "tree"
    trees = True

    branching: Sequence[int] = (3, 2, 1, 1)

    def __post_init__(self) -> None:
        # Without top-k and top-p, which could leave too few candidates.
        self.sampling = SamplingParams(self.sampling.temperature or 1.0)

    def choose(self, probs: Tensor, keys: list[int], level: int) -> list[list[int]]:
        scores = probs
        if self.coupling is Coupling.SHARED:
            scores = perturbed(probs, keys)  # only their order counts
        width = min(self.branching[level], probs.shape[-1])
        ranked: list[list[int]] = scores.topk(width, dim=-1).indices.tolist()
        return ranked
