"""Prompt lookup: if the last few tokens stood earlier in the text, propose what followed them
there.

The paper's token-level method (n-gram speculation; Saxena's prompt lookup decoding, and vLLM's
`ngram`). No model, no state: the proposal is a function of the branch's own tokens. The longest
n-gram wins, and of its occurrences the most recent one. Example: tokens 5 8 9 1 5 8, n = 2: the
pair "5 8" stood at the beginning, so 9 1 5 8 is proposed, cut to k.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from lr.kvcache.branch import Branch
from lr.spec.acceptance import EMPTY, Proposal
from lr.spec.drafters.base import Context
from lr.types import Coupling, require


class LookupDrafter:
    """N-gram lookup in the branch's own tokens, prompt included, for n from `prompt_lookup_max`
    down to `prompt_lookup_min`.
    """

    name = "ngram"
    trees = False
    coupling = Coupling.INDEPENDENT

    def __init__(self, prompt_lookup_max: int = 2, prompt_lookup_min: int = 1) -> None:
        require(
            prompt_lookup_min >= 1, "prompt_lookup_min", prompt_lookup_min, "a whole number >= 1"
        )
        require(
            prompt_lookup_max >= prompt_lookup_min,
            "prompt_lookup_max",
            prompt_lookup_max,
            f"a whole number >= prompt_lookup_min, which is {prompt_lookup_min}",
        )
        self.longest, self.shortest = prompt_lookup_max, prompt_lookup_min

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [self._look_up(context.tokens, min(k, context.limit)) for context in contexts]

    def forget(self, branches: Iterable[Branch]) -> None:
        """Nothing is kept."""

    def _look_up(self, tokens: Sequence[int], k: int) -> Proposal:
        if k < 1:
            return EMPTY
        text = array("q", tokens).tobytes()
        for n in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            end = rfind(text, text[-8 * n :])
            if end is not None:
                return Proposal.chain(tokens[end : end + k])
        return EMPTY


def rfind(text: bytes, pattern: bytes) -> int | None:
    """The place right behind the last occurrence of `pattern` before the end of `text`, counted in
    tokens of 8 bytes; None: nowhere.
    """
    stop = len(text) - 1  # the pattern is the text's own end, which does not count
    while (place := text.rfind(pattern, 0, stop)) >= 0:
        if place % 8 == 0:
            return (place + len(pattern)) // 8
        stop = place + len(pattern) - 1
    return None
