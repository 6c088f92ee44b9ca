"""Speculative Thinking (Yang et al., arXiv 2504.12329): the target takes over where
drafts reflect.

    lr generate --variant "speculative_thinking(cues=('wait', 'so'))"

The target writes each step that the draft begins with a cue such as "Wait" or "Hmm".
Two extension points: a verifier that looks at the beginning of a draft step, without
any model, and a corrector, by which the target continues from the draft's cue instead
of starting over.

Faithful: the small model leads, reflection cues hand over, the cue is kept. Different:
the paper hands over for a fixed number of tokens, here it is one step, and has more
cues, for affirmation and for a chain of failures. The tiny languages do not reflect:
choose cues among their words, or nothing is handed over."""

from __future__ import annotations

from collections.abc import Sequence

from lr.reasoner import Reasoner
from lr.spec.variant import Correction, Corrector, Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.judge import Decode
from lr.types import Verdict

CUES = (
    "wait",
    "hmm",
    "alternatively",
    "however",
    "let me check",
    "let me verify",
    "actually",
)


class Reflection(Verifier, Corrector):
    """Hands a step to the target if it begins with a cue, ignoring case."""

    name, requires = "reflection", Requires.NOTHING

    def __init__(self, decode: Decode, cues: Sequence[str]) -> None:
        self.decode, self.cues = decode, tuple(cue.casefold() for cue in cues)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        cues = [self.cue(pair.draft.tokens) for pair in pairs]
        return [
            Verdict(not cue, f"begins with {cue!r}" if cue else "no cue")
            for cue in cues
        ]

    def cue(self, tokens: Sequence[int]) -> str | None:
        text = self.decode(tokens).strip().casefold()
        return next((cue for cue in self.cues if text.startswith(cue)), None)

    def begin(self, correction: Correction) -> Sequence[int]:
        """The tokens of the draft up to the end of its cue, at most all but the
        last."""
        for tokens in (pair.draft.tokens for pair in correction.rejected):
            for length in range(1, len(tokens)):
                if self.cue(tokens[:length]):
                    return tokens[:length]
        return ()


def speculative_thinking(
    reasoner: Reasoner, *, cues: tuple[str, ...] = CUES
) -> Variant:
    """Let the target write the steps that the draft begins with one of `cues`."""
    reflection = Reflection(reasoner.codec.decode, cues)
    return Variant(
        reflection, corrector=reflection, settings={"depth": 1, "schedule": "sync"}
    )
