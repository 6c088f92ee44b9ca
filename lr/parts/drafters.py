"""Other drafters: lookup in the text so far, the draft's version of the same step, and trees of the
draft model's likeliest tokens. And draft steps without a model, those of a `StepProposer`.

`lr/spec/token_sd.py` says what a drafter is; this file is loaded when one of these is asked for.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lr.kvcache.branch import Branch
from lr.spec.acceptance import EMPTY, ROOT, Proposal
from lr.spec.runner import Runner, read_up_to
from lr.spec.sampling import distribution, perturbed
from lr.spec.token_sd import Context, Drafter, OwnBranches, draft_key
from lr.spec.variant import StepProposer
from lr.spec.write import Segmenter
from lr.types import Coupling, Finish, SamplingParams, Step, require, require_whole


class LookupDrafter(Drafter):
    """Prompt lookup: if the last few tokens occurred earlier in the branch, prompt included, it
    proposes what followed them there.

    The paper's token-level method (n-gram speculation; Saxena's prompt lookup decoding, and vLLM's
    `ngram`). The longest n-gram wins, n from `prompt_lookup_max` down to `prompt_lookup_min`, and
    of its occurrences the most recent. Example: tokens 5 8 9 1 5 8, n = 2: the pair "5 8" stood at
    the beginning, so 9 1 5 8 is proposed, cut to k.
    """

    name = "ngram"

    def __init__(self, prompt_lookup_max: int = 2, prompt_lookup_min: int = 1) -> None:
        low, high = prompt_lookup_min, prompt_lookup_max
        require_whole("prompt_lookup_min", low, 1)
        require(high >= low, "prompt_lookup_max", high, f"at least {low}, prompt_lookup_min")
        self.longest, self.shortest = high, low

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [self._look_up(context.tokens, min(k, context.limit)) for context in contexts]

    def _look_up(self, tokens: Sequence[int], k: int) -> Proposal:
        text = array("q", tokens).tobytes()
        # The last `low` tokens occurred before, the last `high + 1` did not (or are too many).
        low, high = 0, min(self.longest, len(tokens) - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if earlier_end(text, middle) is None:
                high = middle - 1
            else:
                low = middle
        end = earlier_end(text, low) if low >= self.shortest else None
        return EMPTY if end is None or k < 1 else Proposal.chain(tokens[end : end + k])


def earlier_end(text: bytes, n: int) -> int | None:
    """After how many tokens of `text` (8 bytes each) its last n ended before; None: nowhere."""
    pattern, stop = text[-8 * n :], len(text) - 1
    while (place := text.rfind(pattern, 0, stop)) >= 0:
        if place % 8 == 0:  # else it is not the beginning of a token
            return place // 8 + n
        stop = place + len(pattern) - 1
    return None


class SuffixDrafter(LookupDrafter):
    """Lookup of the longest suffix that occurred before, of any length from `min_match` tokens on
    (the idea: SuffixDecoding, arXiv 2411.04975).

    Example: 1 2 3 9 1 2 3: the longest earlier suffix is "1 2 3", so 9 1 2 3 is proposed.
    """

    name = "suffix"

    def __init__(self, min_match: int = 1) -> None:
        require(min_match >= 1, "min_match", min_match, "a whole number >= 1")
        super().__init__(sys.maxsize, min_match)


class StepDrafter(Drafter):
    """The draft step as token draft: what the draft wrote for this very step is proposed to the
    target that writes its own version of it, as far as the two agree word for word.

    Lookahead Reasoning has the draft's version at hand anyway, and its tokens must pass through the
    target for the next node. They do not depend on the target's draws, so the proposal is certain
    and a lossless rule keeps the target's distribution. With rule "match" and coupling "shared" the
    two versions agree for long stretches.
    """

    name = "step"

    def __init__(self) -> None:
        self._offers: dict[Branch, tuple[int, tuple[int, ...]]] = {}

    def offer(self, branch: Branch, start: int, tokens: Sequence[int]) -> None:
        """The draft's version, so far, of the step that begins at position `start` of `branch`."""
        self._offers[branch] = (start, tuple(tokens))

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [self._rest(context, min(k, context.limit)) for context in contexts]

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            self._offers.pop(branch, None)

    def _rest(self, context: Context, k: int) -> Proposal:
        """What the draft wrote after the tokens on which both agree.

        Example: offered (5, 6, 7, 8) from position 10 on; the branch has 12 tokens and ends in 5 6:
        (7, 8). If it ends in 5 9: nothing.
        """
        start, tokens = self._offers.get(context.branch, (0, ()))
        written = context.tokens[start:]
        if k < 1 or not tokens or tuple(written) != tokens[: len(written)]:
            return EMPTY
        return Proposal.chain(tokens[len(written) : len(written) + k])


class TreeDrafter(OwnBranches):
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
        super().__init__(runner)
        # Ranked before top-k and top-p, or there might be fewer candidates than are wanted.
        self.sampling = SamplingParams(sampling.temperature or 1.0)
        self.branching, self.coupling, self.eos_ids = tuple(branching), coupling, eos_ids

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        depths = [min(k, len(self.branching), context.limit) for context in contexts]
        tokens: list[list[int]] = [[] for _ in contexts]
        parents: list[list[int]] = [[] for _ in contexts]
        rows: list[list[Tensor]] = [[] for _ in contexts]  # [v] each: what a token was drawn from
        leaves: list[tuple[int, int, Branch]] = []  # (tree, node, the branch that ends there)
        for i, context in enumerate(contexts):
            if depths[i] > 0:
                own = self.follow(context.branch)
                read_up_to(self.runner, own, len(own) - 1)
                leaves.append((i, ROOT, self.runner.fork(own)))
        for level, width in enumerate(self.branching):
            if not leaves:
                break
            logits = torch.stack(self.runner.forward([branch for *_, branch in leaves]))  # [b, v]
            probs = distribution(logits, self.sampling)  # [b, v]
            places = [(contexts[i], node, level) for i, node, _ in leaves]
            drawn = self.candidates(probs, places, width)
            grown = []
            for (i, node, branch), (candidates, q) in zip(leaves, drawn, strict=True):
                rows[i] += q
                for token in candidates:
                    tokens[i].append(token)
                    parents[i].append(node)
                    if level + 1 < depths[i] and token not in self.eos_ids:
                        child = self.runner.fork(branch)
                        child.append(token)
                        grown.append((i, len(tokens[i]) - 1, child))
                self.runner.close(branch)
            leaves = grown
        return [
            Proposal(tuple(t), tuple(p), torch.stack(q) if q else None)  # [n, v]
            for t, p, q in zip(tokens, parents, rows, strict=True)
        ]

    def candidates(
        self, probs: Tensor, places: Sequence[tuple[Context, int, int]], width: int
    ) -> list[tuple[list[int], list[Tensor]]]:
        """For each place (branch, node, level), with its row of `probs` [b, v]: up to `width`
        tokens, and the row of q [v] of each. Here there are none: the tokens are certain.
        """
        if self.coupling is Coupling.SHARED:
            keys = [draft_key(context, level, self.coupling) for context, _, level in places]
            probs = perturbed(probs, keys)
        ranked = probs.topk(min(width, probs.shape[-1]), dim=-1).indices.tolist()
        return [(tokens, []) for tokens in ranked]


@dataclass(frozen=True)
class Proposals:
    """What a `StepProposer` proposes, as steps. `segmenter` and `eos_ids` say where one ends."""

    proposer: StepProposer
    segmenter: Callable[[], Segmenter]
    eos_ids: frozenset[int]
    vocab_size: int

    def after(self, prefix: Sequence[int], width: int, limit: int) -> list[Step | None]:
        """Up to `width` steps after a prefix, each at most `limit` tokens long; None where what is
        proposed does not end a step. Raises `SettingError` for a token that does not exist.
        """
        return [self._step(made, limit) for made in self.proposer.propose(prefix, width)]

    def _step(self, tokens: Sequence[int] | None, limit: int) -> Step | None:
        segmenter = self.segmenter()
        for length, token in enumerate((tokens or ())[:limit], start=1):
            expected = f"a token id from 0 to {self.vocab_size - 1}"
            require(token < self.vocab_size, "a token of the variant's proposer", token, expected)
            if token in self.eos_ids or segmenter.feed(token):
                finish = Finish.EOS if token in self.eos_ids else Finish.BOUNDARY
                return Step(tuple((tokens or ())[:length]), finish)
        return None
