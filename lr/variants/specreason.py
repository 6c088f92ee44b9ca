"""SpecReason (Pan et al., arXiv 2504.07891): the draft writes a step, the target scores it from 0
to 9, and writes it anew if it is bad.

Two seams: a verifier that needs no target step (the score), and a router (the first steps of a
chain, which set its course, are the target's). The paper looks one step ahead, so run it with depth
1 and schedule "sync"; more depth is Lookahead Reasoning's addition.

    reasoner.generate(question, variant=specreason(reasoner.models.target, reasoner.codec), depth=1,
    schedule="sync")

No target step is written for a step that is accepted: the target reads it once, to score it. Read
next: `spec/verifiers/judge.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.engine.load import asked_model
from lr.lab.endpoint.judge import ServedScore
from lr.lab.endpoint.models import ServedModel, refuse_for_logprobs
from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.judge import ScoreReading, ScoreVerifier
from lr.types import Role, Step


@dataclass(frozen=True)
class TargetFirst:
    """The router: the target writes the first `steps` steps, the draft is tried from then on."""

    steps: int

    def who_writes(self, index: int, previous: Step | None) -> Role:
        return Role.TARGET if index < self.steps else Role.DRAFT


def specreason(
    target: CausalLM | ServedModel, codec: Codec, *, threshold: float = 7.0, first_steps: int = 0
) -> Variant:
    """Accept a draft step iff the digit that the target finds likeliest is at least `threshold`."""
    verifier: Verifier
    if isinstance(target, ServedModel):
        refuse_for_logprobs(
            target, "SpecReason's score", "Use Lookahead Reasoning with verifier exact or judge"
        )
        verifier = ServedScore(target, threshold=threshold, reading=ScoreReading.LIKELIEST)
    else:
        asked = asked_model(target, codec)
        verifier = ScoreVerifier(asked, threshold=threshold, reading=ScoreReading.LIKELIEST)
    return Variant(verifier, router=TargetFirst(first_steps))
