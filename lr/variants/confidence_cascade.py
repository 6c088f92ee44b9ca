"""A confidence cascade, after ConfSpec (arXiv 2602.18447).

    lr generate --variant "confidence_cascade(high=-0.05)"

The draft scores its own step, which is cheap. If the score is in the band (low, high),
the draft is unsure, and an expensive scorer (`scorers.py`) decides. Faithful: who
decides when. Different: the measure of confidence, for which the paper gives no
numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lr.engine.verifiers import asked_model
from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier, verdicts_of
from lr.spec.verifiers.named import LikelihoodVerifier, ScoreVerifier
from lr.types import Verdict, require
from lr.variants.scorers import make_scorer


class Cascade(Verifier):
    """`cheap` decides if its score is outside the band (low, high), else `expensive`
    decides."""

    def __init__(
        self, cheap: Verifier, expensive: Verifier, *, low: float, high: float
    ) -> None:
        require(low <= high, "(low, high)", (low, high), "low <= high")
        self.name = f"{cheap.name}>{expensive.name}"
        self.requires = cheap.requires | expensive.requires
        self.early_requires = (
            None if cheap.requires & Requires.TARGET_STEP else cheap.requires
        )
        self.cheap, self.expensive, self.low, self.high = cheap, expensive, low, high

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.cheap.passes + self.expensive.passes

    def judge_early(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        return [self._sure(verdict) for verdict in verdicts_of(self.cheap, pairs)]

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        first = self.judge_early(pairs)
        unsure = [
            pair for pair, verdict in zip(pairs, first, strict=True) if verdict is None
        ]
        second = iter(self.expensive.judge(unsure) if unsure else [])
        return [next(second) if verdict is None else verdict for verdict in first]

    def _sure(self, verdict: Verdict) -> Verdict | None:
        score = verdict.score
        if score is None or self.low < score < self.high:
            return None
        return Verdict(
            score > self.low, f"{self.cheap.name} is sure: {verdict.why}", score
        )


class Confidence(LikelihoodVerifier):
    """The draft's mean log-probability per token of its own step."""

    name, requires = "confidence", Requires.NOTHING

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return super().judge([replace(pair, logprobs=None) for pair in pairs])


def confidence_cascade(
    reasoner: Reasoner,
    *,
    low: float = -math.inf,
    high: float | None = None,
    threshold: float | None = None,
    scorer: str | None = None,
) -> Variant:
    """Accept from `high` on (None: -0.1 nats, or the digit 8), reject up to `low`, else
    ask."""
    if reasoner.engine.draft is None:
        raise SettingError(
            "the draft is None, expected a model: the cascade asks the draft first."
        )
    asked, digits = (
        asked_model(reasoner.engine.draft, reasoner.codec),
        scorer == "digits",
    )
    high = (8.0 if digits else -0.1) if high is None else high
    cheap = (
        ScoreVerifier(asked, threshold=high)
        if digits
        else Confidence(high, asked.runner)
    )
    cascade = Cascade(
        cheap, make_scorer(reasoner, scorer, threshold), low=low, high=high
    )
    return Variant(cascade, settings={"depth": 1, "schedule": "sync"})
