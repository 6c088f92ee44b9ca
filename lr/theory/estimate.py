"""From what was seen to a calibration: each parameter is a function of the problems, its interval
comes from resampling them.

Problems are the independent units (steps of one answer are not), so the bootstrap draws problems
with replacement; the interval holds the middle 95 % of 1000 draws. All estimates are ratios of
sums, so long answers count for more, as they do in time. A parameter that cannot be negative is cut
off at 0. This module knows no model. Read next: `twin.py`, which runs what was calibrated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from lr.theory.calibration import Calibration, CalibrationError, Estimate
from lr.theory.observe import Seconds, Seen

DRAWS = 1000
Estimator = Callable[[Sequence[Seen]], float]


def step_seconds(seen: Sequence[Seen]) -> float:
    """T: mean length of a target step times the time of a token alone."""
    return _mean_length(s.target.lengths for s in seen) * _over(s.target.token for s in seen)


def alpha1(seen: Sequence[Seen]) -> float:
    """Accepted / judged."""
    return _ratio(sum(s.lookahead.accepted for s in seen), sum(s.lookahead.judged for s in seen))


def c1(seen: Sequence[Seen]) -> float:
    """The draft's time in lookahead runs per draft step, in T."""
    drafts = sum(len(s.lookahead.draft_lengths) for s in seen)
    return _ratio(sum(s.lookahead.drafting for s in seen), drafts) / step_seconds(seen)


def b(seen: Sequence[Seen]) -> float:
    """What a further row costs the target, as a share of a lone row's time, in runs with
    lookahead.
    """
    return _row_share([s.lookahead.rows for s in seen])


def b_draft(seen: Sequence[Seen]) -> float:
    """The same for the draft, in runs with two alternatives per position."""
    return _row_share([s.pairs.drafts for s in seen])


def _row_share(runs: Sequence[Mapping[int, Seconds]]) -> float:
    """Least squares for the time of n rows, t (1 + b (n - 1)); t is the mean of the lone rows. At
    least 0.
    """
    t = _over(rows.get(1, Seconds()) for rows in runs)
    weighted = squares = 0.0
    for rows in runs:
        for n, seconds in rows.items():
            weighted += (n - 1) * (seconds.total - seconds.count * t)
            squares += seconds.count * (n - 1) ** 2
    return max(0.0, _ratio(_ratio(weighted, squares), t))


def pace(seen: Sequence[Seen]) -> float:
    """The time of a token in lone rows of lookahead runs over that of plain decoding; 1 where there
    were no lone rows.
    """
    return _ratio(_lone_row(seen), _over(s.target.token for s in seen)) or 1.0


def reading(seen: Sequence[Seen]) -> float:
    """What batches that also read a draft step take longer than those that do not, per draft step
    read, in T.
    """
    token, slope = _lone_row(seen), b(seen)
    longer = reads = 0.0
    for s in seen:
        for n, seconds in s.lookahead.reading_along.items():
            longer += seconds.total - seconds.count * token * (1 + slope * (n - 1))
            reads += seconds.count
    return max(0.0, _ratio(longer, reads) / step_seconds(seen))


def reading_alone(seen: Sequence[Seen]) -> float:
    """A pass that reads a draft step and does nothing else, in T."""
    return _over(s.lookahead.reading_alone for s in seen) / step_seconds(seen)


def start(seen: Sequence[Seen]) -> float:
    """The prompt for both models, in T."""
    return _ratio(sum(s.lookahead.start for s in seen), len(seen)) / step_seconds(seen)


def v(seen: Sequence[Seen]) -> float:
    """The median verdict, in T. The median, for verdicts are timed by the clock on the wall and
    some are interrupted.
    """
    verdicts = [seconds for s in seen for seconds in s.lookahead.verdicts]
    return median(verdicts) / step_seconds(seen) if verdicts else 0.0


def alpha2(seen: Sequence[Seen]) -> float:
    """Accepted / tried."""
    return _ratio(sum(s.tokens.accepted for s in seen), sum(s.tokens.tried for s in seen))


def c2(seen: Sequence[Seen]) -> float:
    """A draft token behind another in token-level rounds, in lone target tokens."""
    return _over(s.tokens.again for s in seen) / _over(s.target.token for s in seen)


def b_positions(seen: Sequence[Seen]) -> float:
    """What a further drafted token adds to a round, its own drafting excepted; from rounds of one
    and of several.
    """
    _, slope = _round_law(seen)
    return max(0.0, slope - c2(seen))


def turn(seen: Sequence[Seen]) -> float:
    """What a round of no drafted token would cost beyond a lone pass: the line through rounds of
    one and of several drafted tokens.
    """
    start, _ = _round_law(seen)
    return max(0.0, start - 1)


def _round_law(seen: Sequence[Seen]) -> tuple[float, float]:
    """A round takes start + slope k lone target passes; (start, slope) from the mean rounds of both
    token-level runs.
    """
    lone = _over(s.target.token for s in seen)
    points = []
    for runs in ([s.single for s in seen], [s.tokens for s in seen]):
        rounds = sum(run.passes.count for run in runs)
        k = _ratio(sum(run.positions for run in runs), rounds) - 1
        points.append(
            (k, _ratio(sum(run.drafts.total + run.passes.total for run in runs), rounds) / lone)
        )
    (k1, one), (k2, several) = points
    slope = _ratio(several - one, k2 - k1)
    return one - slope * k1, slope


def second_chance(seen: Sequence[Seen]) -> float:
    """How often the second of two alternatives is accepted where the first was not."""
    return _ratio(sum(s.pairs.accepted for s in seen), sum(s.pairs.asked for s in seen))


PARAMETERS: Mapping[str, Estimator] = {
    f.__name__: f
    for f in (
        alpha1,
        c1,
        alpha2,
        c2,
        turn,
        b,
        b_draft,
        b_positions,
        pace,
        v,
        reading,
        reading_alone,
        start,
        step_seconds,
        second_chance,
    )
}


def calibrate(
    seen: Sequence[Seen], name: str, conditions: Mapping[str, Any], seed: int = 0
) -> Calibration:
    """Every parameter with its interval. At least four problems, or `CalibrationError`."""
    if len(seen) < 4:
        raise CalibrationError(
            f"there are {len(seen)} problems, expected at least 4: intervals come from resampling them."
        )
    draws = np.random.default_rng(seed).integers(len(seen), size=(DRAWS, len(seen)))
    samples = [[seen[i] for i in row] for row in draws]
    found: dict[str, Any] = {
        parameter: _interval(f, seen, samples) for parameter, f in PARAMETERS.items()
    }
    return Calibration(
        name=name,
        **found,
        target_lengths=tuple(n for s in seen for n in s.target.lengths),
        draft_lengths=tuple(n for s in seen for n in s.lookahead.draft_lengths),
        chain_lengths=tuple(len(s.target.lengths) for s in seen),
        conditions=dict(conditions),
    )


def _interval(
    estimator: Estimator, seen: Sequence[Seen], samples: Sequence[Sequence[Seen]]
) -> Estimate:
    ends: Any = np.quantile([estimator(sample) for sample in samples], (0.025, 0.975))
    return Estimate(float(estimator(seen)), float(ends[0]), float(ends[1]))


def _lone_row(seen: Sequence[Seen]) -> float:
    """Seconds of a plain target forward of one row in lookahead runs."""
    return _over(s.lookahead.rows.get(1, Seconds()) for s in seen)


def _ratio(above: float, below: float) -> float:
    """0 where nothing was counted: a resample may lack what is rare."""
    return above / below if below else 0.0


def _over(times: Any) -> float:
    kept = list(times)
    return _ratio(sum(t.total for t in kept), sum(t.count for t in kept))


def _mean_length(lengths: Any) -> float:
    kept = [n for some in lengths for n in some]
    return _ratio(sum(kept), len(kept))
