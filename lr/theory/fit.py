"""Fits to the paper's tables: which draft speed and judge latency would explain Table 1, which
correlation of siblings Table 3.

These are fits, to seven and to four points; the paper reports none of these parameters, and a good
fit does not make them true. Table 1 is fitted with the asynchronous formula without a window
(`lr_async_limit`), by least squares of the speedups; c and v then stand for all that costs like a
draft step or like a verdict. With v = 0 no common c fits. Table 3 is fitted with Beta(p, q)
siblings. Source: THEORY 2d, 2e. Read next: `tables.py` for the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lr.theory.asynchronous import lr_async_limit
from lr.theory.domain import geometric
from lr.theory.tables import TABLE_3_DEPTH, WIDTHS, Pair, WidthRow
from lr.theory.width import beta_width_acceptance, tree_rows


def least_squares(
    residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, rounds: int = 200
) -> np.ndarray:
    """Positive parameters [n] that minimise the sum of squared residuals, from `start`
    (Levenberg-Marquardt in their logarithms).
    """
    x, damping = np.log(start), 1e-3
    error = residuals(np.exp(x))
    for _ in range(rounds):
        slopes = np.stack(
            [(residuals(np.exp(x + step)) - error) / 1e-6 for step in 1e-6 * np.eye(len(x))], axis=1
        )
        normal = slopes.T @ slopes
        move = np.linalg.solve(
            normal + damping * np.diag(np.diag(normal) + 1e-12), -slopes.T @ error
        )
        tried = residuals(np.exp(x + np.clip(move, -1, 1)))
        if tried @ tried < error @ error:
            x, error, damping = x + np.clip(move, -1, 1), tried, damping / 3
            if np.abs(move).max() < 1e-12:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    found: np.ndarray = np.exp(x)
    return found


@dataclass(frozen=True)
class SpeedFit:
    """Table 1 fitted: `c`, `v`, what they predict, and predicted - printed; `r_squared` of the
    speedups.
    """

    c: float
    v: float
    predicted: tuple[float, ...]
    residuals: tuple[float, ...]
    r_squared: float


def fit_speedups(pair: Pair) -> SpeedFit:
    """The c and v that explain the lookahead speedups of one model pair best, given its acceptance
    rates.
    """
    alpha, printed = np.array(pair.acceptance), np.array(pair.lookahead)

    def residuals(parameters: np.ndarray) -> np.ndarray:
        c, v = parameters
        off: np.ndarray = np.asarray(lr_async_limit(alpha, min(c, 0.999), v)) - printed
        return off

    c, v = least_squares(residuals, np.array([0.3, 0.2]))
    left = residuals(np.array([c, v]))
    spread = printed - printed.mean()
    return SpeedFit(
        float(c),
        float(v),
        tuple((printed + left).tolist()),
        tuple(left.tolist()),
        float(1 - left @ left / (spread @ spread)),
    )


@dataclass(frozen=True)
class WidthFit:
    """A row of Table 3 fitted: siblings ~ Beta(`p`, `q`), what they predict; the cycle times that
    the speedups imply, in target steps.
    """

    p: float
    q: float
    predicted: tuple[float, ...]
    residuals: tuple[float, ...]
    cycle_times: tuple[float, ...]
    """G_3(alpha_W) / speedup, with the printed acceptance."""
    base_time: float
    """Straight line through the cycle times: at one alternative ..."""
    per_row: float
    """... and per further target row."""


def fit_width(row: WidthRow) -> WidthFit:
    """The correlation of siblings behind one row of Table 3, and what its rows cost."""
    printed, widths = np.array(row.acceptance), np.array(WIDTHS)

    def residuals(parameters: np.ndarray) -> np.ndarray:
        p, q = parameters
        off: np.ndarray = np.asarray(beta_width_acceptance(p, q, widths)) - printed
        return off

    p, q = least_squares(residuals, np.array([0.4, 0.3]))
    left = residuals(np.array([p, q]))
    times = geometric(printed, TABLE_3_DEPTH + 1) / np.array(row.speedup)
    extra = np.asarray(tree_rows(widths, TABLE_3_DEPTH)) - (TABLE_3_DEPTH + 1)
    per_row, base = np.polyfit(extra, times, 1)
    return WidthFit(
        float(p),
        float(q),
        tuple((printed + left).tolist()),
        tuple(left.tolist()),
        tuple(times.tolist()),
        float(base),
        float(per_row),
    )
