"""SpecReason (Pan et al., arXiv 2504.07891): the target scores draft steps and rewrites
bad ones.

    reasoner.generate(question, variant=specreason(reasoner))
    lr generate --variant "specreason(threshold=0.9, first_steps=2)"

Two extension points: a verifier that scores, 0 to 9 in the paper (`scorers.py`), and a
router that gives the first steps of a chain, which set its course, to the target.

Faithful: threshold, first steps, and with scorer "digits" the question, and that an
accepted step needs no target step. Different: on the tiny family, whose target cannot
score, the judge does. It compares with the target's own step, so no target step is
saved. The paper alternates, one step ahead; a depth above 1 is Lookahead Reasoning's
addition."""

from __future__ import annotations

from dataclasses import dataclass

from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.types import Role, Step
from lr.variants.scorers import make_scorer


@dataclass(frozen=True)
class TargetFirst:
    """A router: the target writes the first `steps` steps, the draft is tried from then
    on."""

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
    """Accept a draft step iff its score is at least `threshold` (None: the scorer's
    default)."""
    return Variant(
        make_scorer(reasoner, scorer, threshold),
        router=TargetFirst(first_steps),
        settings={"depth": 1, "schedule": "sync"},
    )
