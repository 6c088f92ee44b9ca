"""A verifier that is fitted to labelled pairs: a logistic regression over named signals.

A signal is one number about a pair: how likely the target finds the draft step, how
sure the draft was, whether the same numbers occur. `lr verify PAIRS --fit FILE.json`
finds the weights. The file says which signals it uses, and so what the verifier
requires: if none of them looks at the target's step, the target need not write one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec

from lr.errors import SettingError
from lr.spec.numbers import numbers_in, word_cosine
from lr.spec.sampling import root_scaled
from lr.spec.verifiers.base import (
    Decode,
    Pair,
    Requires,
    Verifier,
    completed,
    texts_of,
    verdicts_of,
)
from lr.spec.verifiers.judge import at_least
from lr.types import Finish, Role, Verdict, require


@dataclass(frozen=True)
class Signal:
    """A number about a pair, and what the pair must hold for it."""

    requires: Requires
    measure: Callable[[Pair, Decode], float]


def same_numbers(pair: Pair, decode: Decode) -> float:
    """1 if both steps have the same set of numbers, else 0."""
    target, draft = texts_of(pair, decode)
    return float(set(numbers_in(target)) == set(numbers_in(draft)))


def length_ratio(pair: Pair, _: Decode) -> float:
    """How unlike the lengths are: |log(draft tokens / target tokens)|."""
    return abs(math.log(len(pair.draft_step.tokens) / len(pair.target_step.tokens)))


def of_logs(role: Role, summary: Callable[[Sequence[float]], float]) -> Signal:
    """A number about the log-probabilities of the draft step under a model."""
    requires = Requires[f"{role.name}_LOGPROBS"]
    return Signal(requires, lambda pair, _: summary(pair.logs(role)))


COMPARED = Requires.TARGET_STEP
SIGNALS: dict[str, Signal] = {
    # log p of the draft step's tokens under the target: mean, lowest, sum over root
    "target_mean": of_logs(Role.TARGET, fmean),
    "target_lowest": of_logs(Role.TARGET, min),
    "target_root": of_logs(Role.TARGET, root_scaled),
    # log q of the same tokens under the draft, which wrote them
    "draft_mean": of_logs(Role.DRAFT, fmean),
    "draft_lowest": of_logs(Role.DRAFT, min),
    "draft_root": of_logs(Role.DRAFT, root_scaled),
    # the draft step alone
    "length": Signal(
        Requires.NOTHING, lambda pair, _: math.log(len(pair.draft_step.tokens))
    ),
    "has_numbers": Signal(
        Requires.NOTHING,
        lambda pair, decode: float(bool(numbers_in(decode(pair.draft_step.tokens)))),
    ),
    "ends": Signal(
        Requires.NOTHING, lambda pair, _: float(pair.draft_step.finish is Finish.EOS)
    ),
    # both steps
    "same_numbers": Signal(COMPARED, same_numbers),
    "word_cosine": Signal(
        COMPARED, lambda pair, decode: word_cosine(*texts_of(pair, decode))
    ),
    "length_ratio": Signal(COMPARED, length_ratio),
}
"""The signals by name. `judge`, `embedding` and `score` are signals too: the scores of
these verifiers."""
SCORES = ("judge", "embedding", "score")


@dataclass(frozen=True)
class Weight:
    """A signal's weight, after it is scaled: (value - mean) / scale."""

    weight: float
    mean: float
    scale: Annotated[float, msgspec.Meta(gt=0)]  # it divides


@dataclass(frozen=True)
class Fit:
    """A fitted file. P(same meaning) = 1 / (1 + exp(-intercept - the weighted sum)).
    `threshold`: the least P that accepts. `about`: the data, the share accepted and
    wrong, the command, for people."""

    signals: dict[str, Weight]
    intercept: float
    threshold: float
    about: dict[str, object] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Fit:
        """From a file. Raises `SettingError` that names the field that is wrong."""
        try:
            fit = msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise SettingError(
                f"{path} is no fitted verifier ({type(error).__name__}: {error}); "
                f"make one with lr verify PAIRS --fit {path}."
            ) from error
        names = (*SIGNALS, *SCORES)
        for name in fit.signals:
            expected = f"one of {', '.join(names)}"
            require(name in names, f"a signal in {path}", name, expected)
        return fit

    def content(self, about: Mapping[str, object]) -> dict[str, object]:
        """What a file holds of this fit."""
        return asdict(replace(self, about={**self.about, **about}))

    def probability(self, values: Mapping[str, float]) -> float:
        """P(same meaning) of a pair with these values of the signals."""
        total = self.intercept
        for name, weight in self.signals.items():
            # of the scaled value
            total += weight.weight * (values[name] - weight.mean) / weight.scale
        # in this order, NaN stays NaN
        return 1 / (1 + math.exp(-max(min(total, 700.0), -700.0)))


class FittedVerifier(Verifier):
    """Accepts from the threshold of a `Fit` on, or from another `threshold` on.

    `scorers`: verifiers whose scores are signals of the file, by name."""

    name = "fitted"

    def __init__(
        self,
        fit: Fit,
        decode: Decode,
        threshold: float | None = None,
        scorers: Mapping[str, Verifier] | None = None,
    ) -> None:
        self.fit = fit
        self.decode = decode
        self.scorers = dict(scorers or {})
        self.threshold = fit.threshold if threshold is None else threshold
        expected = "a probability, 0 to 1"
        require(0 <= self.threshold <= 1, "threshold", self.threshold, expected)
        self.requires = required(fit.signals, self.scorers)

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return sum(scorer.passes for scorer in self.scorers.values())

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        asks_draft = Requires.DRAFT_LOGPROBS in self.requires
        unknown = Verdict(False, "no model drew the draft step", failed=True)
        # a step source gives no log q
        given = [asks_draft and not pair.logs(Role.DRAFT) for pair in pairs]
        verdicts = [unknown if each else None for each in given]
        return completed(verdicts, pairs, self.compare)

    def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """The verdicts by the signals."""
        rows = values_of(self.fit.signals, pairs, self.decode, self.scorers)
        return [self.verdict(row) for row in rows]

    def verdict(self, values: Mapping[str, float]) -> Verdict:
        """The verdict, with the signals as its reason."""
        p = self.fit.probability(values)
        listed = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
        return at_least(self.threshold, p, f"fitted: P(same) = {p:.3f} ({listed})")


def required(names: Collection[str], scorers: Mapping[str, Verifier]) -> Requires:
    """What pairs must hold for these signals."""
    requires = Requires.NOTHING  # the union of what the signals need
    for name in names:
        part = scorers.get(name) or SIGNALS[name]
        requires |= part.requires
    return requires


def values_of(
    names: Collection[str],
    pairs: Sequence[Pair],
    decode: Decode,
    scorers: Mapping[str, Verifier],
) -> list[dict[str, float]]:
    """The values of the signals, one mapping per pair."""
    scores = {
        # one batch per scorer
        name: [verdict.score or 0.0 for verdict in verdicts_of(scorer, pairs)]
        for name, scorer in scorers.items()
    }
    rows = []
    for number, pair in enumerate(pairs):
        row = {
            name: scores[name][number]
            if name in scores
            else SIGNALS[name].measure(pair, decode)
            for name in names
        }
        rows.append(row)
    return rows
