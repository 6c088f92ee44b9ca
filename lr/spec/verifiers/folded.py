"""A shortcut in front of a verifier that reads text: what is the same text, but for case and outer
white space, is not asked about.

White space inside a text counts, and nothing else is forgiven: "x = 1 1" is not "x = 11", as it is
in the official code, which deletes all white space. Only for judge-like verifiers: the exact
verifier compares token ids and takes no shortcut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lr.spec.verifiers.base import Need, Pair, Verifier, need_of
from lr.types import Verdict


class FoldedThen:
    """Accepts pairs whose texts are equal after folding case and outer white space, and asks
    `verifier` about the others.

    It keeps the name of `verifier`. `decode` turns token ids into text.
    """

    def __init__(self, verifier: Verifier, decode: Callable[[Sequence[int]], str]) -> None:
        self.name = verifier.name
        self.need = need_of(verifier) | Need.TARGET_STEP
        self.verifier = verifier
        self.decode = decode

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        same = [
            self._folded(pair.draft.tokens) == self._folded(pair.target_step.tokens)
            for pair in pairs
        ]
        others = [pair for pair, equal in zip(pairs, same, strict=True) if not equal]
        asked = iter(self.verifier.judge(others) if others else [])
        return [Verdict(aligned=True, why="equal text") if equal else next(asked) for equal in same]

    def _folded(self, tokens: Sequence[int]) -> str:
        return self.decode(tokens).strip().casefold()
