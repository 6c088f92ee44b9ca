"""Best of W drafts by the target's likelihood, after SpecCoT (arXiv 2504.19095): the draft writes
several versions of a step, the target picks the one that it finds likeliest.

    lr generate --variant best_of
    lr generate --variant "best_of(width=4, floor=-2.0)"

Two extension points: a verifier that measures (the target's mean log-probability per token, from
the reading that the target owes the step anyway) and a chooser that waits for all and takes the
best.

Faithful: the target chooses among drafts without writing one itself, and writes where none is good
enough. Not: SpecCoT trains the draft and lets the target choose by a prompt that shows all
versions; here the likelihood chooses, and `floor` says what is good enough.
"""

from __future__ import annotations

from lr.parts.judge import asked_model
from lr.parts.verifiers import LikelihoodVerifier
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.variants.choosers import BestScore


def best_of(reasoner: Reasoner, *, width: int = 3, floor: float = -1.0) -> Variant:
    """Accept the likeliest of `width` drafts, if its mean is at least `floor` nats per token."""
    runner = asked_model(reasoner.models.target, reasoner.codec).runner
    settings = {"width": width, "depth": 1, "schedule": "sync"}
    costs = {"score": 0.05}  # a pass over a draft step: a step of twenty tokens takes twenty
    verifier = LikelihoodVerifier(floor, runner)
    return Variant(verifier, chooser=BestScore(), settings=settings, costs=costs)
