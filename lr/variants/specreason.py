"""SpecReason (Pan et al., arXiv 2504.07891): the draft writes a step, the target scores it from 0
to 9, and writes it anew if it is bad.

Two extension points: a verifier that scores (`scorers.py`), and a router (the first steps of a
chain, which set its course, are the target's). The paper looks one step ahead, in turns.

    reasoner.generate(question, variant=specreason(reasoner))
    lr generate --variant "specreason(threshold=0.9, first_steps=2)"

Faithful: threshold, first steps, and with scorer "digits" the question and that no target step is
written for an accepted one. Not: on the tiny family the judge scores (the tiny target cannot), and
it compares with the target's own step, so no target step is saved there. More depth than 1 is
Lookahead Reasoning's addition.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.types import Role, Step
from lr.variants.scorers import make_scorer


@dataclass(frozen=True)
class TargetFirst:
    """The router: the target writes the first `steps` steps, the draft is tried from then on."""

    steps: int

    def who_writes(self, index: int, previous: Step | None) -> Role:
        return Role.TARGET if index < self.steps else Role.DRAFT


def specreason(
    reasoner: Reasoner,
    *,
    threshold: float | None = None,
    first_steps: int = 0,
    scorer: str | None = None,
) -> Variant:
    """Accept a draft step iff its score is at least `threshold` (None: the scorer's usual one)."""
    return Variant(
        make_scorer(reasoner, scorer, threshold),
        router=TargetFirst(first_steps),
        settings={"depth": 1, "schedule": "sync"},
    )
