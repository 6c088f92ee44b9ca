"""Drafters: they propose a few tokens after each branch. Whether these stay is decided elsewhere.

Two facts about a drafter matter to others. Does its proposal depend on the branch's own tokens
alone? (Then the output does not depend on what else is in the batch, whatever the rule.) And from
which distribution were the tokens drawn (`Proposal.q`; None where they were certain)? A wrong q
makes the output biased; `lr/lab/counterexamples.py` shows how.

Here are the drafters without a model: n-gram lookup, the longest repeated suffix, and the draft's
version of the same step. Those with a draft model are in `draft_model.py`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lr.kvcache.branch import Branch
from lr.spec.acceptance import EMPTY, Draws, Proposal
from lr.types import Coupling, require


@dataclass(frozen=True)
class Context:
    """A branch that wants a proposal of at most `limit` tokens in depth. `draws` is the target's
    randomness of this round.
    """

    branch: Branch
    limit: int
    draws: Draws

    @property
    def tokens(self) -> list[int]:
        """All tokens of the branch, pending ones included. Not to be changed."""
        return self.branch.tokens


class Drafter(Protocol):
    """Proposes tokens for branches of the model it serves.

    `trees`: it may propose more than chains. `coupling`: whether its noise is the target's
    (`Coupling.INDEPENDENT` where there is none).
    """

    name: str
    trees: bool
    coupling: Coupling

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        """One proposal per context, in order, each at most min(k, limit) tokens deep; `EMPTY` for
        none.
        """
        ...

    def forget(self, branches: Iterable[Branch]) -> None:
        """These branches are closed: free what is kept for them."""
        ...


class LookupDrafter:
    """Prompt lookup: if the last few tokens occurred earlier in the branch, prompt included, it
    proposes what followed them there.

    The paper's token-level method (n-gram speculation; Saxena's prompt lookup decoding, and vLLM's
    `ngram`). The longest n-gram wins, n from `prompt_lookup_max` down to `prompt_lookup_min`, and
    of its occurrences the most recent. Example: tokens 5 8 9 1 5 8, n = 2: the pair "5 8" stood at
    the beginning, so 9 1 5 8 is proposed, cut to k.
    """

    name = "ngram"
    trees = False
    coupling = Coupling.INDEPENDENT

    def __init__(self, prompt_lookup_max: int = 2, prompt_lookup_min: int = 1) -> None:
        low, high = prompt_lookup_min, prompt_lookup_max
        require(low >= 1, "prompt_lookup_min", low, "a whole number >= 1")
        expected = f"a whole number >= prompt_lookup_min, which is {low}"
        require(high >= low, "prompt_lookup_max", high, expected)
        self.longest, self.shortest = high, low

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [self._look_up(context.tokens, min(k, context.limit)) for context in contexts]

    def forget(self, branches: Iterable[Branch]) -> None:
        """Nothing is kept."""

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


class SuffixDrafter(LookupDrafter):
    """Lookup of the longest suffix that occurred before, of any length from `min_match` tokens on
    (the idea: SuffixDecoding, arXiv 2411.04975).

    Example: 1 2 3 9 1 2 3: the longest earlier suffix is "1 2 3", so 9 1 2 3 is proposed.
    """

    name = "suffix"

    def __init__(self, min_match: int = 1) -> None:
        require(min_match >= 1, "min_match", min_match, "a whole number >= 1")
        super().__init__(sys.maxsize, min_match)


def earlier_end(text: bytes, n: int) -> int | None:
    """Where the last n tokens of `text` (8 bytes each; bytes are searched fast) ended the last time
    before, counted in tokens; None if they are new.
    """
    pattern, stop = text[-8 * n :], len(text) - 1
    while (place := text.rfind(pattern, 0, stop)) >= 0:
        if place % 8 == 0:  # else it is not the beginning of a token
            return place // 8 + n
        stop = place + len(pattern) - 1
    return None


class StepDrafter:
    """The draft step as token draft: what the draft wrote for this very step is proposed to the
    target that writes its own version of it, as far as the two agree word for word. From the first
    difference on, `otherwise`, if there is one, drafts.

    Lookahead Reasoning has the draft's version at hand anyway, and its tokens must pass through the
    target for the next node. They do not depend on the target's draws, so the proposal is certain
    and a lossless rule keeps the target's distribution. With rule "match" and coupling "shared" the
    two versions agree for long stretches.
    """

    name = "step"
    trees = False
    coupling = Coupling.INDEPENDENT

    def __init__(self, otherwise: Drafter | None = None) -> None:
        self.otherwise = otherwise
        self._offers: dict[Branch, tuple[int, tuple[int, ...]]] = {}

    def offer(self, branch: Branch, start: int, tokens: Sequence[int]) -> None:
        """The draft's version of the step that begins at position `start` of `branch`. It may come
        while the step is being written.
        """
        self._offers[branch] = (start, tuple(tokens))

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        made = [self._rest(context, min(k, context.limit)) for context in contexts]
        if self.otherwise is not None:
            empty = [i for i, proposal in enumerate(made) if not proposal.tokens]
            others = self.otherwise.propose([contexts[i] for i in empty], k)
            for i, proposal in zip(empty, others, strict=True):
                made[i] = proposal
        return made

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            self._offers.pop(branch, None)
            if self.otherwise is not None:
                self.otherwise.forget([branch])

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
