"""Closed forms against published values, against plain enumeration, against each other;
no simulation, nothing random but the points.
"""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_kit import ACCEPTED as X
from theory_kit import expected

from lr.theory import acceptance, asynchronous, synchronous
from lr.theory.asynchronous import (
    lr_async_limit,
    lr_async_speedup,
    recurrence_speedup,
    stage_times,
)
from lr.theory.domain import DomainError, geometric
from lr.theory.hybrid import best_split
from lr.theory.synchronous import (
    lr_sync_cycle_speedup,
    lr_sync_speedup,
    sd_speedup,
    sd_tokens,
)

ALPHAS = (0.0, 0.1, 0.35, 0.6, 0.8, 0.95, 1.0)
CS = (0.02, 0.1, 0.2, 0.25, 1 / 3, 0.7)


def test_the_printed_formulas_as_they_are_printed() -> None:
    """The functions are written with G_n; the paper's fractions, term by term, are the
    same numbers.
    """
    for a, c, k in product((0.1, 0.35, 0.6, 0.9), CS, (1, 2, 3, 7)):
        f_sync = (1 - a**k) / ((1 - a) * (1 - c + c * k))
        assert lr_sync_speedup(a, k, c) == pytest.approx(f_sync, rel=1e-12)
        assert synchronous.sd_speedup_of_positions(a, k, c) == pytest.approx(
            f_sync, rel=1e-12
        )
        assert lr_async_limit(a, c) == pytest.approx(
            1 / (c + (1 - c) * (1 - a)), rel=1e-12
        )
        if k < math.ceil(1 / c):
            s_2 = (1 - a**k) / ((1 - a) + c * (a - a ** (k + 1) - k * (1 - a) * a**k))
            assert lr_async_speedup(a, k, c) == pytest.approx(s_2, rel=1e-12)
        else:
            assert lr_async_speedup(a, k, c) == pytest.approx(
                lr_async_limit(a, c), rel=1e-12
            )


def test_a_verdict_pays_up_to_a_latency() -> None:
    """At that latency the unlimited window is as fast as plain decoding."""
    for a, c in product((0.1, 0.35, 0.6, 0.9), CS):
        latency = asynchronous.judge_latency_that_pays(a, c)
        assert lr_async_limit(a, c, latency) == pytest.approx(1, rel=1e-12)


def test_cycles_by_enumeration() -> None:
    """Steps per cycle over time per cycle, summed over the number of drafts
    accepted."""
    for a, g, c in product((0.0, 0.3, 0.6, 0.9), (1, 2, 5), CS):
        bonus, none = (
            expected(a, np.minimum(X, g) + 1),
            expected(a, np.minimum(X + 1, g)),
        )
        assert lr_sync_cycle_speedup(a, g, c) == pytest.approx(
            bonus / (1 + c * g), rel=1e-12
        )
        assert lr_sync_cycle_speedup(a, g, c, "N1") == pytest.approx(
            none / (1 + c * g), rel=1e-12
        )
        assert lr_sync_cycle_speedup(a, g, c, "N2") == pytest.approx(
            none / (1 + c * (g - 1)), rel=1e-12
        )
        assert sd_tokens(a, g) == pytest.approx(bonus, rel=1e-12)
        accepted, judged = (
            expected(a, np.minimum(X, g)),
            expected(a, np.minimum(X + 1, g)),
        )
        assert synchronous.sync_judged(a, g) == pytest.approx(judged, rel=1e-12)
        assert accepted == pytest.approx(a * judged, abs=1e-12)
        assert synchronous.sync_draft_share(a, g) == pytest.approx(
            accepted / bonus, abs=1e-12
        )
        assert synchronous.sync_wasted(a, g) == pytest.approx(g + 1 - bonus, abs=1e-12)
        assert synchronous.sync_bonus(a, g) == pytest.approx(
            expected(a, g <= X), abs=1e-12
        )


def test_windows_by_enumeration_of_the_recurrences() -> None:
    """E[X + 1] / E V_X with V from the recurrences: every window, every judge latency,
    late drafts too.
    """
    alphas = (*ALPHAS, 0.9999)
    grid = product(
        ("paper", "depth"), alphas, (1, 2, 3, 6), CS, (0.0, 0.05, 0.2, 0.6, 1.5)
    )
    for window, a, k, c, v in grid:
        by_recurrence = recurrence_speedup(window, a, k, c, v)
        assert lr_async_speedup(a, k, c, window, v) == pytest.approx(
            by_recurrence, rel=1e-11
        ), (
            window,
            a,
            k,
            c,
            v,
        )


def test_solved_start_times() -> None:
    """V_j = tau_j + 1: floor(j/k) + c (j mod k) for P; floor(j/K)(1 + c) + c (j mod K),
    K = D + 1, for D; c j without a window.
    """
    for k, c in product((1, 2, 3, 6), (0.05, 0.1, 0.15)):
        paper, depth = stage_times("paper", k, c, 50), stage_times("depth", k, c, 50)
        free = stage_times("paper", 40, c, 50)
        for j in range(50):
            assert paper[j] == pytest.approx(1 + j // k + c * (j % k), abs=1e-12)
            assert depth[j] == pytest.approx(
                1 + j // (k + 1) * (1 + c) + c * (j % (k + 1)), abs=1e-12
            )
            assert free[j] == pytest.approx(1 + c * j, abs=1e-12)


def test_the_cycle_by_enumeration() -> None:
    """C: X < k ends at its first reject, full acceptance at the last verdict; the k-th
    step needs no draft before it but k - 1.
    """
    for a, k, c, v in product((0.0, 0.3, 0.8), (1, 2, 5), CS, (0.0, 0.3)):
        steps = expected(a, np.minimum(X + 1, k))
        seconds = expected(a, 1 + c * np.minimum(X, k - 1) + v)
        assert lr_async_speedup(a, k, c, "cycle", v) == pytest.approx(
            steps / seconds, rel=1e-12
        )


@settings(max_examples=300, deadline=None)
@given(a=st.floats(0, 0.999), k=st.integers(1, 40), c=st.floats(0.001, 0.999))
def test_the_order_of_the_schedules(a: float, k: int, c: float) -> None:
    chain = [
        lr_sync_speedup(a, k, c),
        lr_async_speedup(a, k, c, "cycle"),
        lr_async_speedup(a, k, c),
        lr_async_speedup(a, k, c, "depth"),
        lr_async_speedup(a, k + 1, c),
        lr_async_limit(a, c),
        min(1 / (1 - a), 1 / c),
    ]
    for worse, better in pairwise(chain):
        assert worse <= better * (1 + 1e-9)
    assert chain[2] >= 1 - 1e-12


def test_limits() -> None:
    for c, k in product(CS, (1, 2, 5)):
        enough = math.ceil(1 / c - 1e-9)
        assert lr_async_speedup(0.6, enough, c) == pytest.approx(
            lr_async_limit(0.6, c), rel=1e-12
        )
        if k * c < 1:
            assert lr_async_speedup(1.0, k, c) == pytest.approx(k)
            assert lr_async_speedup(1.0, k, c, "depth") == pytest.approx(
                (k + 1) / (1 + c)
            )
        assert lr_async_limit(1.0, c) == pytest.approx(1 / c)
        for window in ("paper", "depth", "cycle"):
            assert lr_async_speedup(0.0, k, c, window) == 1.0
        assert (
            lr_sync_speedup(0.7, 1, c)
            == lr_async_speedup(0.7, 1, c)
            == lr_sync_cycle_speedup(0.7, 0, c)
            == 1.0
        )
    assert lr_async_limit(0.6, 0.0) == pytest.approx(2.5)
    assert geometric(1 - 1e-13, 7).item() == pytest.approx(
        7, abs=1e-10
    )  # (1 - a^7) / (1 - a) has lost three digits there
    assert acceptance.judged_acceptance(0.7, 0.2, 0.3) == pytest.approx(0.65)
    assert acceptance.judged_acceptance(0.123, 0.6, 0.4) == pytest.approx(
        0.4
    )  # a judge that guesses
    assert acceptance.nothing_wrong(0.7, 0.3, 2) == pytest.approx(0.91**2)


def test_the_best_number_of_drafts_by_trying() -> None:
    for a, c in product((0.05, 0.3, 0.6, 0.8, 0.95), CS):
        k = np.arange(1, 400)
        assert synchronous.sync_best_k(a, c) == int(
            k[np.argmax(lr_sync_speedup(a, k, c))]
        )
    assert synchronous.sync_best_k(0.2, 0.2) == 1  # alpha <= c: lookahead only costs
    assert synchronous.sync_best_k(1.0, 0.2, most=50) == 50


def test_lemma_2_the_asynchronous_speedup_grows_to_ceil_1_c() -> None:
    for a, c in product((0.1, 0.5, 0.9), CS):
        f = lr_async_speedup(a, np.arange(1, 60), c)
        enough = math.ceil(1 / c - 1e-9)
        assert np.all(np.diff(f[:enough]) > -1e-14) and np.all(
            np.diff(f[: min(enough, 6)]) > 0
        )
        assert np.ptp(f[enough - 1 :]) < 1e-12
        assert asynchronous.async_parallelism(100, c) == enough


def test_siblings() -> None:
    """Beta with large parameters is independence; with small ones siblings agree; the
    product is E[1 - (1 - A)^W].
    """
    assert acceptance.beta_width_acceptance(6e8, 4e8, 4) == pytest.approx(
        acceptance.width_acceptance(0.6, 4), abs=1e-6
    )
    assert acceptance.beta_width_acceptance(6e-8, 4e-8, 8) == pytest.approx(
        0.6, abs=1e-6
    )
    nodes, weights = np.polynomial.legendre.leggauss(200)
    a = (nodes + 1) / 2
    density = a * (1 - a) ** 2 * 12  # Beta(2, 3)
    for w in (1, 2, 5):
        mean = float(np.sum(weights / 2 * density * (1 - (1 - a) ** w)))
        assert acceptance.beta_width_acceptance(2, 3, w) == pytest.approx(
            mean, abs=1e-12
        )
    assert acceptance.tree_rows(2, 2) == 7 and acceptance.tree_rows(1, 5) == 6
    assert acceptance.width_pays_sync(
        0.5, 0.75, 2, 2, 0.1
    ) and not acceptance.width_pays_sync(0.5, 0.52, 2, 2, 0.1, 0.2)
    assert acceptance.width_pays_async(
        0.5, 0.75, 0.1, 1.05, 0.1
    ) and not acceptance.width_pays_async(0.5, 0.55, 0.1, 1.3, 0.2)


def test_published_values_to_ten_digits() -> None:
    """Found by an independent program."""
    a, k, c = 0.6, 6, 0.1
    values = (
        (lr_sync_speedup(a, k, c), 1.5889066667),
        (lr_async_speedup(a, k, c), 2.1375272644),
        (lr_async_speedup(a, k, c, "depth"), 2.1523522309),
        (lr_async_speedup(a, k, c, "cycle"), 2.0937227673),
        (lr_async_limit(a, c), 2.1739130435),
        (lr_sync_cycle_speedup(a, k, c), 1.5187600000),
        (lr_sync_cycle_speedup(a, k, c, "N1"), 1.4896000000),
        (sd_tokens(0.8, 5), 3.68928),
        (sd_speedup(0.8, 5, 0.1), 2.45952),
        (lr_async_speedup(0.6, 3, 0.1, verifier_latency=0.1), 1.7002081888),
        (acceptance.tree_sync_speedup(0.75, 2, 2, 0.1, 0.01, 0.02), 1.8237381703),
        (best_split(0.6, 0.6, 0.2, 0.1, 16, "async").speedup, 3.1468492801),
    )
    for ours, published in values:
        assert ours == pytest.approx(published, abs=6e-11)


def test_arrays_broadcast_and_numbers_stay_numbers() -> None:
    alphas, ks = np.linspace(0, 0.9, 7)[:, None], np.arange(1, 6)[None, :]
    table = lr_async_speedup(alphas, ks, 0.15, "depth", 0.3)
    assert table.shape == (7, 5)
    assert table[3, 2] == lr_async_speedup(float(alphas[3, 0]), 3, 0.15, "depth", 0.3)
    assert isinstance(lr_async_speedup(0.5, 3, 0.1), float)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: sd_tokens(1.2, 3), 1.2),
        (lambda: sd_tokens(0.5, 2.5), 2.5),
        (lambda: sd_tokens("half", 1), "half"),
        (lambda: lr_sync_speedup([0.5, -0.1], 2, 0.1), -0.1),
        (lambda: lr_sync_cycle_speedup(0.5, 1, 0.1, "N3"), "N3"),
        (lambda: lr_async_speedup(0.5, 2, 1.0), 1.0),
        (lambda: lr_async_limit(1.0, 0.0), 1.0),
        (lambda: asynchronous.crowded_step_time(0.2, 0.1), 0.2),
        (lambda: best_split(0.5, 0.5, 0.1, 0.1, 0), 0),
    ],
)
def test_outside_of_its_domain_a_formula_names_the_value(call, value) -> None:
    with pytest.raises(DomainError) as caught:
        call()
    assert caught.value.value == value
