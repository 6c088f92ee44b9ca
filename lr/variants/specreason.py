"""SpecReason (Pan et al., arXiv 2504.07891): the target scores draft steps and rewrites
bad ones.

    reasoner.generate(question, variant=specreason(reasoner))
    lr generate --variant "specreason(threshold=0.9)"

One part: a verifier that scores, 0 to 9 in the paper (`scorers.py`).

Faithful: the threshold, and with scorer "digits" the question, and that an accepted
step needs no target step. Different: the first steps may be drafts. On the tiny family,
whose target cannot score, the judge does; it compares with the target's own step, so no
target step is saved. The paper alternates, one step ahead; a depth above 1 is Lookahead
Reasoning's addition."""

from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.variants.scorers import make_scorer


def specreason(
    reasoner: Reasoner,
    *,
    threshold: float | None = None,
    scorer: str | None = None,
) -> Variant:
    """Accept a draft step iff its score is at least `threshold` (None: the scorer's
    default)."""
    verifier = make_scorer(reasoner, scorer, threshold)
    # one step ahead, decided before the next is drafted
    return Variant(verifier, settings={"depth": 1, "schedule": "sync"})
