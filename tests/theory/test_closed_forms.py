"""Closed forms against published values, against plain enumeration, against each other;
no simulation, nothing random but the points.
"""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lr.theory.acceptance import (
    beta_width_acceptance,
    judged_acceptance,
    tree_rows,
    width_acceptance,
)
from lr.theory.asynchronous import (
    async_parallelism,
    lr_async_limit,
    lr_async_speedup,
    stage_times,
)
from lr.theory.domain import DomainError, geometric
from lr.theory.hybrid import best_split
from lr.theory.synchronous import (
    lr_sync_cycle_speedup,
    lr_sync_speedup,
    sd_speedup_of_positions,
    sd_tokens,
    sync_best_k,
)

X = np.arange(2000)
"""0, 1, 2, ...: drafts accepted."""
CS = (0.02, 0.1, 0.2, 0.25, 1 / 3, 0.7)


def expected(alpha, values):
    """E values[X] for P(X >= i) = alpha^i, term by term; `values` belongs to
    X, alpha <= 0.95.
    """
    return float(np.sum((1 - alpha) * alpha**X * values))


def same(value, right):
    assert value == pytest.approx(right, rel=1e-12, abs=1e-12)


def test_the_printed_formulas_as_they_are_printed():
    """The functions are written with G_n; the paper's fractions, term by term, are the
    same numbers.
    """
    for a, c, k in product((0.1, 0.35, 0.6, 0.9), CS, (1, 2, 3, 7)):
        f_sync = (1 - a**k) / ((1 - a) * (1 - c + c * k))
        same(lr_sync_speedup(a, k, c), f_sync)
        same(sd_speedup_of_positions(a, k, c), f_sync)
        limit = 1 / (c + (1 - c) * (1 - a))
        same(lr_async_limit(a, c), limit)
        s_2 = (1 - a**k) / ((1 - a) + c * (a - a ** (k + 1) - k * (1 - a) * a**k))
        same(lr_async_speedup(a, k, c), s_2 if k < math.ceil(1 / c) else limit)


def test_cycles_by_enumeration():
    """Steps per cycle over time per cycle, summed over the number of drafts
    accepted."""
    for a, g, c in product((0.0, 0.3, 0.6, 0.9), (1, 2, 5), CS):
        with_bonus = expected(a, np.minimum(X, g) + 1)
        without = expected(a, np.minimum(X + 1, g))
        same(lr_sync_cycle_speedup(a, g, c), with_bonus / (1 + c * g))
        late = lr_sync_cycle_speedup(a, g, c, verifier_latency=0.3)
        same(late, with_bonus / (1 + c * g + 0.3))
        same(lr_sync_cycle_speedup(a, g, c, "N1"), without / (1 + c * g))
        same(lr_sync_cycle_speedup(a, g, c, "N2"), without / (1 + c * (g - 1)))
        same(sd_tokens(a, g), with_bonus)
        # asynchronous inside the cycle: the last step waits for no draft of its own
        seconds = expected(a, 1.3 + c * np.minimum(X, g - 1))
        same(lr_async_speedup(a, g, c, "cycle", 0.3), without / seconds)


@pytest.mark.parametrize("window", ["paper", "depth"])
def test_windows_by_enumeration_of_the_recurrences(window):
    """E[X + 1] / E V_X with V from the recurrences, for every latency of verdicts that
    has a closed form.
    """
    for k, c, v in product((1, 2, 3, 6), CS, (0.0, 0.05, 0.2, 0.6, 1.5)):
        if window == "depth" and (k - 1) * c < v and k * c < 1 + v:
            with pytest.raises(DomainError, match="verifier_latency"):
                lr_async_speedup(0.5, k, c, window, v)
            continue
        times = stage_times(window, k, c, len(X), v)
        for a in (0.0, 0.1, 0.35, 0.6, 0.8, 0.95):
            speedup = lr_async_speedup(a, k, c, window, v)
            by_enumeration = expected(a, X + 1) / expected(a, times)
            assert speedup == pytest.approx(by_enumeration, rel=1e-11)


@settings(max_examples=300, deadline=None)
@given(a=st.floats(0, 0.999), k=st.integers(1, 40), c=st.floats(0.001, 0.999))
def test_the_order_of_the_schedules(a, k, c):
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


def test_formulas_at_the_ends_of_their_ranges():
    for c, k in product(CS, (1, 2, 5)):
        enough = math.ceil(1 / c - 1e-9)
        assert async_parallelism(100, c) == enough  # Lemma 2
        for a in (0.1, 0.6, 0.9):
            same(lr_async_speedup(a, [enough, 59], c), [lr_async_limit(a, c)] * 2)
        if k * c < 1:
            same(lr_async_speedup(1.0, k, c), k)
            same(lr_async_speedup(1.0, k, c, "depth"), (k + 1) / (1 + c))
        same(lr_async_limit(1.0, c), 1 / c)
        for window in ("paper", "depth", "cycle"):
            assert lr_async_speedup(0.0, k, c, window) == 1.0
        assert lr_sync_speedup(0.7, 1, c) == lr_async_speedup(0.7, 1, c) == 1.0
    same(lr_async_limit(0.6, 0.0), 2.5)
    # (1 - a^7) / (1 - a) has lost three digits there
    assert geometric(1 - 1e-13, 7).item() == pytest.approx(7, abs=1e-10)
    same(judged_acceptance(0.123, 0.6, 0.4), 0.4)  # a judge that guesses


def test_lemma_2_the_asynchronous_speedup_grows_to_ceil_1_c():
    for a, c in product((0.1, 0.5, 0.9), CS):
        f = lr_async_speedup(a, np.arange(1, 60), c)
        enough = math.ceil(1 / c - 1e-9)
        assert np.all(np.diff(f[:enough]) > -1e-14)
        assert np.all(np.diff(f[: min(enough, 6)]) > 0)


def test_the_best_number_of_drafts_by_trying():
    k = np.arange(1, 400)
    for a, c in product((0.05, 0.3, 0.6, 0.8, 0.95), CS):
        assert sync_best_k(a, c) == k[np.argmax(lr_sync_speedup(a, k, c))]
    assert sync_best_k(0.2, 0.2) == 1  # alpha <= c: lookahead only costs
    assert sync_best_k(1.0, 0.2, limit=50) == 50


def test_alternatives_between_independent_and_alike():
    """Beta with large parameters is independence; with small ones siblings agree; the
    product is E[1 - (1 - A)^W].
    """
    independent = width_acceptance(0.6, 4)
    assert beta_width_acceptance(6e8, 4e8, 4) == pytest.approx(independent, abs=1e-6)
    assert beta_width_acceptance(6e-8, 4e-8, 8) == pytest.approx(0.6, abs=1e-6)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    a = (nodes + 1) / 2
    density = a * (1 - a) ** 2 * 12  # Beta(2, 3)
    for w in (1, 2, 5):
        mean = np.sum(weights / 2 * density * (1 - (1 - a) ** w))
        same(beta_width_acceptance(2, 3, w), mean)
    assert tree_rows(2, 2) == 7 and tree_rows(1, 5) == 6


@pytest.mark.parametrize(
    "call, value",
    [
        (lambda: sd_tokens(1.2, 3), 1.2),
        (lambda: lr_sync_speedup([0.5, -0.1], 2, 0.1), -0.1),
        (lambda: lr_sync_cycle_speedup(0.5, 1, 0.1, "N3"), "N3"),
        (lambda: lr_async_speedup(0.5, 2, 1.0), 1.0),
        (lambda: best_split(0.5, 0.5, 0.1, 0.1, 0), 0),
    ],
)
def test_outside_of_its_domain_a_formula_names_the_value(call, value):
    with pytest.raises(DomainError) as caught:
        call()
    assert caught.value.value == value
