"""The fits to the paper's tables, and calibrations made of them."""

from __future__ import annotations

import numpy as np
import pytest

from lr.theory.acceptance import width_acceptance
from lr.theory.domain import DomainError
from lr.theory.paper import (
    DATASETS,
    TABLE_1,
    TABLE_3,
    WIDTHS,
    fit_speedups,
    fit_width,
    paper_calibration,
)
from lr.theory.synchronous import sd_speedup


def test_table_1_fitted() -> None:
    """A fit: c = 0.20, v = 0.28 (R1) and c = 0.41, v = 0.22 (Qwen3) explain the seven
    speedups to 0.09; v = 0 explains none of them.
    """
    for pair, c, v, r_squared in (
        ("r1", 0.199, 0.284, 0.914),
        ("qwen3", 0.406, 0.217, 0.753),
    ):
        found = fit_speedups(TABLE_1[pair])
        assert (found.c, found.v, found.r_squared) == pytest.approx(
            (c, v, r_squared), abs=1e-3
        )
        alpha, printed = (
            np.array(TABLE_1[pair].acceptance),
            np.array(TABLE_1[pair].lookahead),
        )
        assert np.array(found.predicted) == pytest.approx(printed, abs=0.09)
        needed = (
            1 / printed - (1 - alpha)
        ) / alpha  # c that S1 needs with v = 0, per data set
        assert np.ptp(needed) > 0.2


def test_the_fit_finds_the_least_squares() -> None:
    """Against a grid around it."""
    found = fit_speedups(TABLE_1["r1"])
    alpha, printed = (
        np.array(TABLE_1["r1"].acceptance),
        np.array(TABLE_1["r1"].lookahead),
    )

    def error(c: float, v: float) -> float:
        return float(np.sum((1 / ((1 + v) * (1 - alpha) + c * alpha) - printed) ** 2))

    best = error(found.c, found.v)
    assert all(
        error(found.c + dc, found.v + dv) > best
        for dc in (-0.01, 0, 0.01)
        for dv in (-0.01, 0, 0.01)
        if dc or dv
    )


def test_table_3_needs_correlated_siblings() -> None:
    """Beta fits to 0.02; independence is off by up to 0.3, and by more the more
    alternatives there are.
    """
    for row, p, q in zip(
        TABLE_3, (0.35, 0.28, 0.36, 0.23), (0.20, 0.205, 0.41, 0.274), strict=True
    ):
        found = fit_width(row)
        assert (found.p, found.q) == pytest.approx((p, q), abs=6e-3)
        assert found.predicted == pytest.approx(row.acceptance, abs=0.02)
        independent = np.array(
            [width_acceptance(row.acceptance[0], w) for w in WIDTHS]
        ) - np.array(row.acceptance)
        assert np.all(np.diff(independent[:3]) > 0) and independent.max() > 0.15
        assert 1.38 < found.base_time < 1.44 and 0.008 < found.per_row < 0.014


@pytest.mark.parametrize("pair", TABLE_1)
def test_calibrations_from_the_paper(pair: str) -> None:
    for dataset, acceptance, tokens in zip(
        DATASETS, TABLE_1[pair].acceptance, TABLE_1[pair].tokens, strict=True
    ):
        found = paper_calibration(pair, dataset)
        assert found.alpha1 == acceptance
        assert sd_speedup(found.alpha2, 8, 0.0) == pytest.approx(tokens, abs=1e-9)
    for wrong in (("r2", "GSM8K"), (pair, "MNIST")):
        with pytest.raises(DomainError):
            paper_calibration(*wrong)
