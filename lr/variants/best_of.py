"""Best of W drafts by the target's likelihood, after SpecCoT (arXiv 2504.19095).

    lr generate --variant best_of
    lr generate --variant "best_of(width=4, floor=-2.0)"

The draft writes several versions of a step, and the target picks the likeliest. One
part: a verifier that measures the target's log-probability of the step, which costs
no extra pass, and whose `choose` takes the best of all versions.

Faithful: the target chooses among drafts without writing a step, and writes if no draft
is good enough. Different: SpecCoT trains the draft and lets the target choose by a
prompt that shows all versions. Here the likelihood chooses, and `floor` says what is
good enough."""

import math
from collections.abc import Sequence

from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.named import LikelihoodVerifier
from lr.types import Step, Verdict


class LikeliestVerifier(LikelihoodVerifier):
    """Of the drafts that are likely enough, takes the likeliest."""

    name = "best_of"

    def choose(self, drafts: Sequence[Step], verdicts: Sequence[Verdict]) -> int | None:
        # a pair that was not judged
        scores = [-math.inf if v.score is None else v.score for v in verdicts]
        # `floor` has decided which drafts may be taken at all
        aligned = [j for j, verdict in enumerate(verdicts) if verdict.aligned]
        # None: the target writes
        return max(aligned, key=scores.__getitem__, default=None)


def best_of(reasoner: Reasoner, *, width: int = 3, floor: float = -1.25) -> Variant:
    """Accept the likeliest of `width` drafts if its root-scaled log-probability is at
    least `floor` nats."""
    # all versions of a step are judged before one is taken, so nothing runs ahead
    settings = {"width": width, "depth": 1, "schedule": "sync"}
    return Variant(LikeliestVerifier(floor), settings=settings)
