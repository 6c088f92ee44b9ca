"""Drafters: they propose a few tokens after each branch. Whether these stay is decided elsewhere.

Two facts about a drafter matter to others. Does its proposal depend on the branch's own tokens
alone? (Then the output does not depend on what else is in the batch, whatever the rule.) And from
which distribution were the tokens drawn (`Proposal.q`; None where they were certain)? A wrong q
makes the output biased; `lr/lab/counterexamples.py` shows how.

Here are the drafters without a model: n-gram lookup, the longest repeated suffix, and the draft's
version of the same step. Those with a draft model are in `draft_model.py`.
"""

from __future__ import annotations

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

    @property
    def name(self) -> str: ...

    @property
    def trees(self) -> bool: ...

    @property
    def coupling(self) -> Coupling: ...

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
        if k < 1:
            return EMPTY
        text = array("q", tokens).tobytes()  # 8 bytes per token: searching bytes is fast
        for n in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            pattern = text[-8 * n :]
            place = text.rfind(pattern, 0, len(text) - 1)  # not the pattern itself, at the end
            while place >= 0 and place % 8:  # not at the beginning of a token
                place = text.rfind(pattern, 0, place + len(pattern) - 1)
            if place >= 0:
                end = place // 8 + n
                return Proposal.chain(tokens[end : end + k])
        return EMPTY


class SuffixDrafter:
    """Finds the longest suffix of the branch, of at least `min_match` tokens, that occurred before,
    and proposes what followed it the last time (the idea: SuffixDecoding, arXiv 2411.04975).

    Example: 1 2 3 9 1 2 3: the longest earlier suffix is "1 2 3", so 9 1 2 3 is proposed.
    """

    name = "suffix"
    trees = False
    coupling = Coupling.INDEPENDENT

    def __init__(self, min_match: int = 1) -> None:
        require(min_match >= 1, "min_match", min_match, "a whole number >= 1")
        self.min_match = min_match
        self._automata: dict[Branch, SuffixAutomaton] = {}

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [self._look_up(context, min(k, context.limit)) for context in contexts]

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            self._automata.pop(branch, None)

    def _look_up(self, context: Context, k: int) -> Proposal:
        tokens = context.tokens
        automaton = self._automata.get(context.branch)
        if automaton is None or automaton.tokens != tokens[: len(automaton.tokens)]:
            automaton = self._automata[context.branch] = SuffixAutomaton()  # new, or it was rewound
        automaton.extend(tokens[len(automaton.tokens) :])
        matched, end = automaton.repeat
        if k < 1 or matched < self.min_match:
            return EMPTY
        return Proposal.chain(tokens[end : end + k])


class SuffixAutomaton:
    """The suffix automaton of `tokens` (Blumer et al., 1985), built token by token in constant
    amortised time. `repeat`: the length and the last earlier end of the longest repeated suffix.

    A state is a class of substrings with the same set of end positions; `length` is that of its
    longest, `ended` the number of tokens up to the end of its last occurrence. The suffix link of
    the state of the whole text stands for the longest suffix that also ends somewhere earlier.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.edges: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.ended = [0]
        self.last = 0
        self.repeat = (0, 0)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._add(token)

    def _add(self, token: int) -> None:
        """Blumer's construction: a new state for the whole text, and a clone where a class of
        substrings splits.
        """
        self.tokens.append(token)
        new, state = self._state({}, self.length[self.last] + 1, 0), self.last
        while state >= 0 and token not in self.edges[state]:
            self.edges[state][token] = new
            state = self.link[state]
        if state >= 0:
            following = self.edges[state][token]
            if self.length[state] + 1 < self.length[following]:
                following = self._split(state, token, following)
            self.link[new] = following
        self.last = new
        known = self.link[new]
        self.repeat = (self.length[known], self.ended[known])
        while new > 0:
            self.ended[new] = len(self.tokens)
            new = self.link[new]

    def _split(self, state: int, token: int, following: int) -> int:
        """The shorter substrings of a class end in one place more than the longer ones from now on:
        give them a state of their own.
        """
        edges, length = dict(self.edges[following]), self.length[state] + 1
        clone = self._state(edges, length, self.link[following])
        self.ended[clone] = self.ended[following]
        while state >= 0 and self.edges[state].get(token) == following:
            self.edges[state][token] = clone
            state = self.link[state]
        self.link[following] = clone
        return clone

    def _state(self, edges: dict[int, int], length: int, link: int) -> int:
        self.edges.append(edges)
        self.length.append(length)
        self.link.append(link)
        self.ended.append(0)
        return len(self.edges) - 1


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
