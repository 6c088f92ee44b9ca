"""The drafters: chains of the draft model, trees of its likeliest tokens, lookup in the text so
far, the draft's version of the same step. And steps without a model, those of a `StepProposer`.

`lr/spec/token_sd.py` says what a drafter is; this file is loaded when one of these is asked for.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.branch import Branch, common_length
from lr.options import GenerateOptions
from lr.spec.acceptance import EMPTY, ROOT, Proposal
from lr.spec.runner import Runner, fork_longest, read_up_to
from lr.spec.sampling import distribution, perturbed, sample
from lr.spec.token_sd import Context, Drafter
from lr.spec.variant import StepProposer
from lr.spec.write import Segmenter
from lr.types import Coupling, Finish, SamplingParams, Step, require, require_whole


def make_drafter(
    options: GenerateOptions,
    runner: Runner | None,
    sampling: SamplingParams,
    eos_ids: frozenset[int],
) -> Drafter:
    """The drafter that the options name; `runner` runs the draft model. New ones are added here."""
    name, coupling = options.drafter, Coupling(options.coupling)
    if name == "ngram":
        return LookupDrafter(options.prompt_lookup_max, options.prompt_lookup_min)
    if name == "suffix":
        return SuffixDrafter()
    if name == "step":
        return StepDrafter()
    if runner is None:
        raise SettingError(f"drafter {name!r} needs a draft model in this process.")
    if name == "tree":
        return TreeDrafter(
            runner, sampling, branching=options.branching, coupling=coupling, eos_ids=eos_ids
        )
    return ModelDrafter(runner, sampling, coupling, options.min_confidence, eos_ids)


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


@dataclass(eq=False)
class OwnBranches(Drafter):
    """The draft model's own branches, one for each branch of the target, kept in step with it.

    After a round the target's branch holds tokens that the draft did not write (a correction), or
    that it has not read (the token after a fully accepted proposal).
    """

    runner: Runner
    _own: dict[Branch, Branch] = field(default_factory=dict, init=False)

    def follow(self, branch: Branch) -> Branch:
        """The draft's branch for `branch`, made to hold exactly its tokens: what it has beyond the
        common beginning goes, the rest is appended; at least one token is uncomputed.
        """
        own, tokens = self._own.get(branch), branch.tokens
        if own is None:
            own = self._own[branch] = fork_longest(self.runner, self._own.values(), tokens)
        else:
            self.runner.rewind(own, min(common_length(own.tokens, tokens), len(tokens) - 1))
            own.extend(tokens[len(own) :])
        return own

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            if branch in self._own:
                self.runner.close(self._own.pop(branch))


def draft_key(context: Context, depth: int, coupling: Coupling, tokens: Sequence[int] = ()) -> int:
    """The key of the draft's token `depth` places on, after `tokens` (if it is a chain). With
    coupling "shared" it is the target's own there: the distributions stay and the two agree far
    more often (`lr/lab/exact.py`), which pays with sample matching. Else it is new in every round.
    """
    if coupling is Coupling.SHARED:
        return context.along(tokens).sample_key(depth)
    return context.draws.stream.fold_in("token draft", context.draws.offset).key(depth)


@dataclass(eq=False)
class ModelDrafter(OwnBranches):
    """Chains of tokens, each with its distribution (`Proposal.q`), made as the target's is made.

    Nothing is drafted after a token of `eos_ids`. `min_confidence` ends a proposal *after* a token
    drawn from a distribution whose likeliest token has less; what was drawn is kept and judged,
    since to drop it unseen would bias the output.
    """

    name = "draft"

    sampling: SamplingParams
    coupling: Coupling = Coupling.INDEPENDENT
    min_confidence: float = 0.0
    eos_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        likely, expected = self.min_confidence, "a probability in [0, 1] (0 never stops early)"
        require(0 <= likely <= 1, "min_confidence", likely, expected)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        depths = [min(k, context.limit) for context in contexts]
        tokens: list[list[int]] = [[] for _ in contexts]
        rows: list[list[Tensor]] = [[] for _ in contexts]  # [v] each: what a token was drawn from
        live = [i for i, depth in enumerate(depths) if depth > 0]
        own = {i: self.follow(contexts[i].branch) for i in live}
        while live:
            logits = torch.stack(self.runner.forward([own[i] for i in live]))  # [b, v]
            probs = distribution(logits, self.sampling)  # [b, v]
            keys = [draft_key(contexts[i], len(tokens[i]), self.coupling, tokens[i]) for i in live]
            for i, row, token in zip(live, probs, sample(probs, keys), strict=True):
                tokens[i].append(token)
                rows[i].append(row)
            sure = probs.amax(-1).tolist() if self.min_confidence else [1.0] * len(live)
            live = [
                i
                for i, confidence in zip(live, sure, strict=True)
                if len(tokens[i]) < depths[i]
                and tokens[i][-1] not in self.eos_ids
                and confidence >= self.min_confidence
            ]
            for i in live:
                own[i].append(tokens[i][-1])
        certain = self.sampling.greedy
        return [
            Proposal.chain(chain, torch.stack(qs) if qs and not certain else None)  # [n, v]
            for chain, qs in zip(tokens, rows, strict=True)
        ]


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
