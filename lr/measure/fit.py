"""Fits a verifier to labelled pairs of steps, and says how well a threshold on a score
does.

The fit is a logistic regression with a ridge penalty over the named signals of
`lr/spec/verifiers/fitted.py`. Its quality is measured on pairs whose problem it has not
seen: one problem is left out, the others are fitted, and so on (cross-validation).
Pairs of one problem are not independent, so intervals are over problems too: problems
are drawn anew, with replacement."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from lr.errors import SettingError
from lr.measure.verifier_eval import ReplayedVerdicts, Threshold, auc, curve
from lr.spec.verifiers.base import Decode, Pair, Verifier
from lr.spec.verifiers.fitted import Fit, Weight, values_of
from lr.types import Verdict

Values: TypeAlias = NDArray[np.float64]
RIDGE = 1.0  # penalty on the squared weights of the scaled signals, over two
LEAST_PROBLEMS = 5
RESAMPLES = 1000
WRONG_SHARES = (0.01, 0.05, 0.1)
SHARES = ("AUC", *(f"accepts at\n{wrong:.0%} wrong" for wrong in WRONG_SHARES))


def fit_weights(values: Values, truth: Sequence[bool], names: Sequence[str]) -> Fit:
    """The weights that make the labels likeliest. `values` [pairs, signals]. A signal
    that never changes gets weight 0. The threshold is 0.5 until one is chosen."""
    means = values.mean(0)
    scales = values.std(0)
    scales[scales == 0] = 1.0
    scaled = (values - means) / scales
    signs = np.where(truth, 1.0, -1.0)

    def loss(parameters: Values) -> tuple[float, Values]:
        weights = parameters[1:]
        margins = signs * (parameters[0] + scaled @ weights)
        total = np.logaddexp(0.0, -margins).sum() + RIDGE / 2 * weights @ weights
        slopes = -signs * np.exp(-np.logaddexp(0.0, margins))  # d loss / d margin
        gradient = np.concatenate(([slopes.sum()], scaled.T @ slopes + RIDGE * weights))
        return float(total), gradient

    start = np.zeros(1 + len(names))
    minimum = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-8})
    intercept, *weights = minimum.x.tolist()
    rows = zip(names, weights, means.tolist(), scales.tolist(), strict=True)
    signals = {name: Weight(*numbers) for name, *numbers in rows}
    return Fit(signals, intercept, threshold=0.5)


def cross_validated(
    values: Values,
    truth: Sequence[bool],
    problems: Sequence[int],
    names: Sequence[str],
) -> list[float]:
    """For each pair, P(same meaning) by a fit to the pairs of all other problems.
    Raises `SettingError` if there are too few problems, or labels of one kind only."""
    groups = np.array(problems)
    labels = np.array(truth)
    if labels.all() or not labels.any():
        raise SettingError(
            f"all {len(labels)} labels are {bool(labels[0])}, expected both kinds: a fit "
            "needs pairs that mean the same and pairs that do not."
        )
    count = len(set(problems))
    if count < LEAST_PROBLEMS:
        raise SettingError(
            f"the pairs are of {count} problems, expected at least {LEAST_PROBLEMS}: a "
            "fit is tried on problems that it has not seen."
        )
    probabilities = np.zeros(len(labels))
    for problem in np.unique(groups):
        left_out = groups == problem
        fit = fit_weights(values[~left_out], labels[~left_out].tolist(), names)
        rows = (dict(zip(names, row, strict=True)) for row in values[left_out].tolist())
        probabilities[left_out] = [fit.probability(row) for row in rows]
    return probabilities.tolist()


def most_accepted(points: Sequence[Threshold], wrong: float) -> tuple[float, float]:
    """The largest share of pairs that a threshold of a `curve` accepts if at most the
    share `wrong` of them is wrong, and that threshold (infinite if there is none)."""
    allowed = [(at.accepted, at.score) for at in points if at.error <= wrong]
    return max(allowed, default=(0.0, math.inf))


def measures(scores: Sequence[float], truth: Sequence[bool]) -> list[float]:
    """The area under the ROC curve, and the share that a threshold accepts if at most
    1, 5 or 10 % of it is wrong: the numbers below the heads `SHARES`."""
    points = curve(scores, truth)
    accepted = [most_accepted(points, wrong)[0] for wrong in WRONG_SHARES]
    return [auc(scores, truth), *accepted]


@dataclass(frozen=True)
class Estimate:
    """A number and its interval at 95 %, over problems."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.2f} to {self.high:.2f})"


def shares(
    scores: Sequence[float], truth: Sequence[bool], problems: Sequence[int]
) -> dict[str, Estimate]:
    """The `measures` of scores and labels, each with its interval: the middle 95 % over
    `RESAMPLES` draws of the problems, with replacement. The keys are `SHARES`."""
    values = np.array(scores)
    labels = np.array(truth)
    members = [np.flatnonzero(np.array(problems) == p) for p in sorted(set(problems))]
    chance = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        chosen = chance.integers(len(members), size=len(members))
        pairs = np.concatenate([members[number] for number in chosen])
        drawn.append(measures(values[pairs].tolist(), labels[pairs].tolist()))
    low, high = np.nanpercentile(drawn, [2.5, 97.5], axis=0).tolist()
    estimates = map(Estimate, measures(scores, truth), low, high)
    return dict(zip(SHARES, estimates, strict=True))


def fit_pairs(
    names: Sequence[str],
    pairs: Sequence[Pair],
    truth: Sequence[bool],
    problems: Sequence[int],
    decode: Decode,
    scorers: Mapping[str, Verifier],
    wrong: float,
) -> tuple[Fit, ReplayedVerdicts]:
    """The fit to all pairs, and verdicts on each pair by the fit without its problem.
    The threshold is where these verdicts accept most with at most the share `wrong`
    wrong."""
    rows = values_of(names, pairs, decode, scorers)
    values = np.array([[row[name] for name in names] for row in rows])
    for name, column in zip(names, values.T, strict=True):
        if not np.isfinite(column).all():
            raise SettingError(f"signal {name} of a pair is not a finite number.")
    scores = cross_validated(values, truth, problems, names)
    accepted, threshold = most_accepted(curve(scores, truth), wrong)
    if not accepted:
        raise SettingError(
            f"no threshold accepts a pair with at most {wrong:.0%} wrong; give a larger "
            "--wrong, more pairs or other signals."
        )
    about: dict[str, object] = {
        "pairs": len(pairs),
        "same": sum(truth),
        "problems": len(set(problems)),
        "wrong": wrong,
        "accepted": round(accepted, 4),
        "auc": round(auc(scores, truth), 4),
    }
    fit = replace(fit_weights(values, truth, names), threshold=threshold, about=about)
    verdicts = [Verdict(score >= threshold, "fitted", score) for score in scores]
    return fit, ReplayedVerdicts(tuple(verdicts))
