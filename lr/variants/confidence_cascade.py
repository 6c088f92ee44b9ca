"""A confidence cascade, after ConfSpec (arXiv 2602.18447): the draft rates its own step; only where
it is unsure the target is asked.

A cheap score by the draft model, an expensive one by the target, and the cascade that asks the
second where the first lies inside the band (low, high). Neither needs a target step, so a step of
which the draft is sure costs the target nothing at all before it reads the chain again.

    reasoner.generate(question, variant=confidence_cascade(reasoner.models), depth=1,
    schedule="sync")

`low` below 0 (the default): the draft may accept alone, but not reject alone. ConfSpec's own
measure of confidence is not given in numbers that could be copied; the band belongs to the models
at hand and has to be measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from lr.engine.engine import Models
from lr.engine.load import asked_model
from lr.errors import SettingError
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier, verdicts_of
from lr.spec.verifiers.judge import ScoreVerifier
from lr.types import Verdict, require


class Cascade(Verifier):
    """`cheap` decides where its score is at or outside the band (low, high); else `expensive` does.

    A score of at most `low` rejects, one of at least `high` accepts; without a score `expensive`
    decides. The band is on the cheap verifier's scale: a probability, a cosine, 0 to 9, nats.
    """

    def __init__(self, cheap: Verifier, expensive: Verifier, *, low: float, high: float) -> None:
        require(low <= high, "(low, high)", (low, high), "low <= high")
        self.name = f"{cheap.name}>{expensive.name}"
        self.requires = cheap.requires | expensive.requires
        self.early_requires = None if cheap.requires & Requires.TARGET_STEP else cheap.requires
        self.fallible = expensive.fallible
        self.cheap, self.expensive, self.low, self.high = cheap, expensive, low, high

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.cheap.passes + self.expensive.passes

    def judge_early(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        return [self._sure(verdict) for verdict in verdicts_of(self.cheap, pairs)]

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        first = self.judge_early(pairs)
        unsure = [pair for pair, verdict in zip(pairs, first, strict=True) if verdict is None]
        second = iter(self.expensive.judge(unsure) if unsure else [])
        return [next(second) if verdict is None else verdict for verdict in first]

    def _sure(self, verdict: Verdict) -> Verdict | None:
        score = verdict.score
        if score is None or self.low < score < self.high:
            return None
        return Verdict(
            score > self.low, why=f"{self.cheap.name} is sure: {verdict.why}", score=score
        )


def confidence_cascade(
    models: Models, *, low: float = -1.0, high: float = 8.0, threshold: float = 7.0
) -> Variant:
    """Accept where the draft's own score is at least `high`, reject where it is at most `low`, else
    iff the target's is at least `threshold`; scores are expected digits, 0 to 9."""
    if models.draft is None:
        raise SettingError(
            "the draft is None, expected a model: a confidence cascade asks the draft first."
        )
    cheap = asked_model(models.draft, models.codec)
    expensive = asked_model(models.target, models.codec)
    return Variant(
        Cascade(
            ScoreVerifier(cheap, threshold=high),
            ScoreVerifier(expensive, threshold=threshold),
            low=low,
            high=high,
        )
    )
