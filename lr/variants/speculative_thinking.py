"""Speculative Thinking (Yang et al., arXiv 2504.12329): the draft thinks, and where it begins to
reflect ("Wait", "Hmm", ...) the target takes over for that step.

    lr generate --variant "speculative_thinking(cues=('wait', 'so'))"

Two extension points: a verifier that looks at how a draft step begins (it needs no model at all),
and a corrector: the target goes on from the draft's cue instead of beginning anew.

Faithful: the small model leads, reflection cues hand over, the cue itself stays. Not: the paper
hands over for a fixed number of tokens and has further cues for affirmation and for a chain of
failures; here it is one step. The tiny languages do not reflect, so there the cues must be words
of theirs, or nothing is ever handed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from lr.parts.judge import Decode
from lr.reasoner import Reasoner
from lr.spec.variant import Correction, Corrector, Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.types import Verdict

CUES = ("wait", "hmm", "alternatively", "however", "let me check", "let me verify", "actually")


class Reflection(Verifier, Corrector):
    """Hands a step to the target if it begins with a cue, in whatever case."""

    name, requires = "reflection", Requires.NOTHING

    def __init__(self, decode: Decode, cues: Sequence[str]) -> None:
        self.decode, self.cues = decode, tuple(cue.casefold() for cue in cues)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        cues = [self.cue(pair.draft.tokens) for pair in pairs]
        return [Verdict(not cue, f"begins with {cue!r}" if cue else "no cue") for cue in cues]

    def cue(self, tokens: Sequence[int]) -> str | None:
        text = self.decode(tokens).strip().casefold()
        return next((cue for cue in self.cues if text.startswith(cue)), None)

    def begin(self, correction: Correction) -> Sequence[int]:
        """The tokens of the draft up to the end of its cue; all but the last of a whole step."""
        for tokens in (pair.draft.tokens for pair in correction.rejected):
            for length in range(1, len(tokens)):
                if self.cue(tokens[:length]):
                    return tokens[:length]
        return ()


def speculative_thinking(reasoner: Reasoner, *, cues: tuple[str, ...] = CUES) -> Variant:
    """The target writes the steps that the draft begins with one of `cues`."""
    reflection = Reflection(reasoner.codec.decode, cues)
    return Variant(reflection, corrector=reflection, settings={"depth": 1, "schedule": "sync"})
