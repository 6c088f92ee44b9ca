"""The exact verifier, and the shortcut for equal texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lr.kvcache.branch import common_length
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.types import Step, Verdict

Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""


class ExactVerifier(Verifier):
    """Accepts if the token ids are equal, the end-of-sequence token included. With it Lookahead
    Reasoning at temperature 0 emits what greedy decoding of the target emits.
    """

    name = "exact"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for draft, target in ((pair.draft.tokens, pair.target_step.tokens) for pair in pairs):
            differ = f"tokens differ from offset {common_length(draft, target)} on"
            same = draft == target
            verdicts.append(Verdict(same, why="equal tokens" if same else differ))
        return verdicts


class NormalisedMatch(Verifier):
    """Accepts equal texts, ignoring case and outer white space; asks `verifier` about the others.

    A shortcut for verifiers that read text. White space inside a text counts: "x = 1 1" is not
    "x = 11", unlike in the official code, which deletes all white space.
    """

    def __init__(self, verifier: Verifier, decode: Decode) -> None:
        self.name, self.verifier, self.decode = verifier.name, verifier, decode
        self.requires = verifier.requires | Requires.TARGET_STEP
        self.fallible = verifier.fallible

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.verifier.passes

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        def text(step: Step) -> str:
            return self.decode(step.tokens).strip().casefold()

        same = [text(pair.draft) == text(pair.target_step) for pair in pairs]
        others = [pair for pair, equal in zip(pairs, same, strict=True) if not equal]
        rest = iter(self.verifier.judge(others) if others else [])
        return [Verdict(aligned=True, why="equal text") if equal else next(rest) for equal in same]
