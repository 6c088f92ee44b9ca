"""Three levels (ours): an n-gram drafts steps for the draft, which drafts steps for the
target.

    lr generate --variant "three_levels(n=3, threshold=-0.3)"

If the last n tokens occurred before, the step that followed them is proposed. The draft
reads it in one forward and adopts it if its mean log-probability is at least
`threshold`; else it writes the step itself. The result is a draft step like any other:
the verifier compares it with the target's. One extension point: a step proposer.

It pays if an answer repeats its steps (loops, tables, proofs by cases) and the draft is
expensive. A step must recur word for word, so on the tiny family almost nothing is
proposed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.spec.drafters import earlier_end
from lr.spec.sampling import step_logprobs
from lr.spec.variant import StepProposer, Variant
from lr.spec.verifiers.judge import PrefixCache, PromptRow, asked_model
from lr.spec.write import BlankLineSegmenter, TokenBytes
from lr.types import require


class RepeatedSteps(StepProposer):
    """Proposes one alternative: the step that followed the last `n` tokens before, if
    likely."""

    def __init__(
        self,
        token_bytes: TokenBytes,
        draft: PrefixCache | None,
        n: int = 3,
        threshold: float = -0.3,
    ) -> None:
        require(n >= 1, "n", n, "a whole number >= 1")
        self.token_bytes, self.draft, self.n, self.threshold = (
            token_bytes,
            draft,
            n,
            threshold,
        )

    def propose(
        self, tokens: Sequence[int], width: int
    ) -> Sequence[Sequence[int] | None]:
        end = (
            earlier_end(array("q", tokens).tobytes(), self.n)
            if len(tokens) > self.n
            else None
        )
        step = [] if end is None else self.one_step(tokens[end:])
        return [step if step and self.likely(tokens, step) else None]

    def one_step(self, tokens: Sequence[int]) -> list[int]:
        """The first step in `tokens`; empty if no step ends in them."""
        segmenter = BlankLineSegmenter(self.token_bytes)
        for length, token in enumerate(tokens, start=1):
            if segmenter.feed(token):
                return list(tokens[:length])
        return []

    def likely(self, tokens: Sequence[int], step: Sequence[int]) -> bool:
        """Whether the draft adopts the step; always true without a draft."""
        if self.draft is None:
            return True
        row = PromptRow([*tokens, *step[:-1]], wanted=len(step), keep=len(tokens))
        [logits] = self.draft.logits([row])
        if isinstance(logits, Exception):
            return False
        return math.fsum(step_logprobs(logits, step)) / len(step) >= self.threshold


def three_levels(reasoner: Reasoner, *, n: int = 3, threshold: float = -0.3) -> Variant:
    """An n-gram proposes steps, the draft checks them, the target verifies them."""
    codec, draft = reasoner.codec, reasoner.models.draft
    if draft is None:
        raise SettingError(
            "the draft is None, expected a model: it is the second level."
        )
    asked = PrefixCache(asked_model(draft, codec).runner)
    return Variant(proposer=RepeatedSteps(codec.token_bytes, asked, n, threshold))
