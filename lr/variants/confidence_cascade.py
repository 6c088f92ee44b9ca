"""A confidence cascade, after ConfSpec (arXiv 2602.18447).

    lr generate --variant "confidence_cascade(high=-0.05)"

The draft scores its own step, which is cheap. If the score is in the band (low, high),
the draft is unsure, and an expensive scorer (`scorers.py`) decides. Faithful: who
decides when. Different: the measure of confidence, for which the paper gives no
numbers; here the draft's mean log-probability per token. With scorer "judge", which
compares with the target's step, every verdict waits for that step, also where the draft
is sure. This costs the time of the target's step, and a draft step that ends otherwise
than the target's (cut, or the end of the text) is rejected unseen. With "digits" the
target writes only after a rejection."""

import math
from collections.abc import Sequence
from statistics import fmean

from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier, verdicts_of
from lr.types import Role, Verdict, require
from lr.variants.scorers import make_scorer


class Cascade(Verifier):
    """The draft's mean log-probability per token of its own step decides if it is
    outside the band (low, high), else `expensive` decides."""

    def __init__(self, expensive: Verifier, *, low: float, high: float) -> None:
        require(low <= high, "(low, high)", (low, high), "low <= high")
        self.name = f"confidence>{expensive.name}"
        # both may be asked
        self.requires = Requires.DRAFT_LOGPROBS | expensive.requires
        self.expensive = expensive
        self.low = low
        self.high = high

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.expensive.passes

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        # no draft wrote it: reject
        scores = [fmean(pair.logs(Role.DRAFT) or (-math.inf,)) for pair in pairs]
        is_unsure = [self.low < score < self.high for score in scores]
        # only these cost a call of the expensive one
        unsure = [pair for pair, asks in zip(pairs, is_unsure, strict=True) if asks]
        expensive = iter(verdicts_of(self.expensive, unsure))  # one batch
        # each pair keeps its place
        return [
            next(expensive)
            if asks
            else Verdict(score > self.low, f"{score:.3f} nats per token", score)
            for score, asks in zip(scores, is_unsure, strict=True)
        ]


def confidence_cascade(
    reasoner: Reasoner,
    *,
    low: float = -math.inf,
    high: float = -0.1,
    threshold: float | None = None,
    scorer: str | None = None,
) -> Variant:
    """Accept from `high` nats on, reject up to `low`, else ask the scorer."""
    cascade = Cascade(make_scorer(reasoner, scorer, threshold), low=low, high=high)
    return Variant(cascade, settings={"depth": 1, "schedule": "sync"})
