"""Suffix drafts: find the longest end of the text that occurred before, however long, and propose
what followed it.

A suffix automaton (Blumer et al., 1985) of everything in the branch, built token by token in
constant amortised time. Its states are classes of substrings with the same set of end positions;
the suffix link of the state of the whole text stands for the longest suffix that also ends
somewhere earlier. Every state keeps the last place where it ended. (The idea of drafting from
suffixes: SuffixDecoding, arXiv 2411.04975.) Example: 1 2 3 9 1 2 3: the longest earlier suffix is
"1 2 3", which ended at place 3, so 9 1 2 3 is proposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lr.kvcache.branch import Branch
from lr.spec.acceptance import EMPTY, Proposal
from lr.spec.drafters.base import Context
from lr.types import Coupling, require


class SuffixAutomaton:
    """The automaton of `tokens`; `repeat` tells the length and the last earlier end of the longest
    suffix that is not new.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.edges: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.ended = [0]  # number of tokens before the end of the state's last occurrence
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
        """The shorter substrings of a class now end in one place more than the longer ones: give
        them a state of their own.
        """
        clone = self._state(
            dict(self.edges[following]), self.length[state] + 1, self.link[following]
        )
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


class SuffixDrafter:
    """Proposes what followed the longest suffix of at least `min_match` tokens the last time it
    occurred in the branch.
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
        known = 0 if automaton is None else len(automaton.tokens)
        if (
            automaton is None or automaton.tokens != tokens[:known]
        ):  # new, or its tail was taken back
            automaton, known = SuffixAutomaton(), 0
            self._automata[context.branch] = automaton
        automaton.extend(tokens[known:])
        matched, end = automaton.repeat
        if k < 1 or matched < self.min_match:
            return EMPTY
        return Proposal.chain(tokens[end : end + k])
