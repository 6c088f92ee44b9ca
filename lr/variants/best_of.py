"""Best of W drafts by the target's likelihood, after SpecCoT (arXiv 2504.19095).

    lr generate --variant best_of
    lr generate --variant "best_of(width=4, floor=-2.0)"

The draft writes several versions of a step, and the target picks the likeliest. Two
extension points: a verifier that measures the target's mean log-probability per token,
which costs no extra pass, and a chooser that waits for all versions and takes the best.

Faithful: the target chooses among drafts without writing a step, and writes if no draft
is good enough. Different: SpecCoT trains the draft and lets the target choose by a
prompt that shows all versions. Here the likelihood chooses, and `floor` says what is
good enough."""

from __future__ import annotations

from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.judge import asked_model
from lr.spec.verifiers.named import LikelihoodVerifier
from lr.variants.choosers import BestScore


def best_of(reasoner: Reasoner, *, width: int = 3, floor: float = -1.0) -> Variant:
    """Accept the likeliest of `width` drafts if its mean is at least `floor` nats per
    token."""
    runner = asked_model(reasoner.models.target, reasoner.codec).runner
    settings = {"width": width, "depth": 1, "schedule": "sync"}
    costs = {
        "score": 0.05
    }  # one pass over a draft step; writing a step of 20 tokens takes 20
    verifier = LikelihoodVerifier(floor, runner)
    return Variant(verifier, chooser=BestScore(), settings=settings, costs=costs)
