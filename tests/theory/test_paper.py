"""The fits to the paper's tables."""

import numpy as np
import pytest
from paper_tables import (
    PAPER_DATASETS,
    TABLE_1,
    TABLE_3,
    WIDTHS,
    fit_speedups,
    fit_width,
    token_acceptance,
)

from lr.theory.acceptance import beta_width_acceptance, width_acceptance
from lr.theory.asynchronous import lr_async_limit
from lr.theory.synchronous import sd_speedup


@pytest.mark.parametrize(
    "pair, c, v, r_squared",
    [("r1", 0.199, 0.284, 0.914), ("qwen3", 0.406, 0.217, 0.753)],
)
def test_table_1_fitted(pair, c, v, r_squared):
    """One c and one v explain the seven speedups to 0.09; v = 0 explains none."""
    alpha = np.array(TABLE_1[pair].acceptance)
    printed = np.array(TABLE_1[pair].lookahead)
    assert fit_speedups(TABLE_1[pair]) == pytest.approx((c, v), abs=1e-3)
    surplus = lr_async_limit(alpha, *fit_speedups(TABLE_1[pair])) - printed
    assert np.abs(surplus).max() < 0.09
    share = np.square(surplus).sum() / np.square(printed - printed.mean()).sum()
    assert 1 - share == pytest.approx(r_squared, abs=1e-3)
    # the c that S1 needs with v = 0, per data set
    needed = (1 / printed - (1 - alpha)) / alpha
    assert np.ptp(needed) > 0.2


@pytest.mark.parametrize(
    "number, p, q",
    [(0, 0.35, 0.20), (1, 0.28, 0.205), (2, 0.36, 0.41), (3, 0.23, 0.274)],
)
def test_table_3_needs_correlated_siblings(number, p, q):
    """Beta fits to 0.02; independence is off by up to 0.3, and by more the more
    alternatives there are.
    """
    row = TABLE_3[number]
    fit = fit_width(row)
    assert (fit.p, fit.q) == pytest.approx((p, q), abs=6e-3)
    widths, printed = np.array(WIDTHS), np.array(row.acceptance)
    correlated = beta_width_acceptance(fit.p, fit.q, widths)
    assert correlated == pytest.approx(printed, abs=0.02)
    surplus = width_acceptance(row.acceptance[0], widths) - printed
    assert np.all(np.diff(surplus[:3]) > 0) and surplus.max() > 0.15
    assert 1.38 < fit.base_time < 1.44 and 0.008 < fit.per_row < 0.014


@pytest.mark.parametrize("pair", TABLE_1)
def test_token_acceptance_gives_the_printed_speedup(pair):
    table = TABLE_1[pair]
    for column, dataset in enumerate(PAPER_DATASETS):
        speedup = sd_speedup(token_acceptance(table, dataset), 8, 0.0)
        assert speedup == pytest.approx(table.tokens[column])
