"""Theorems 3 and 4 by trying all integers, at random points of their box, and where
they end. Seeds are fixed.
"""

import numpy as np
import pytest

from lr.theory.asynchronous import async_parallelism, lr_async_speedup
from lr.theory.hybrid import THRESHOLD, best_split, theorem3, theorem4_conditions
from lr.theory.synchronous import lr_sync_speedup


def bests(a1, a2, c1, c2, budget, asynchronous):
    """(best with k1, k2 >= 2, best with k1 = 1, best with k2 = 1) [points], over all
    integers within the budget.

    Written with loops over k1 and k2, not with the code that is tested.
    """
    k = np.arange(1, budget + 1)[:, None]
    f = lr_async_speedup(a1, k, c1) if asynchronous else lr_sync_speedup(a1, k, c1)
    g = lr_sync_speedup(a2, k, c2)  # the same formula in tokens
    rows = async_parallelism(k, c1) if asynchronous else np.broadcast_to(k, f.shape)
    hybrid = np.full(f.shape[1], -np.inf)
    for k1 in range(2, budget + 1):
        for k2 in range(2, budget // 2 + 1):
            fits = rows[k1 - 1] * k2 <= budget
            speedup = np.where(fits, f[k1 - 1] * g[k2 - 1], -np.inf)
            hybrid = np.maximum(hybrid, speedup)
    return hybrid, g.max(axis=0), np.where(rows <= budget, f, -np.inf).max(axis=0)


@pytest.mark.parametrize("budget", [16, 18, 24, 32])
def test_theorem_4_by_brute_force(budget):
    """In the box the hybrid beats both pure methods: 1500 random points, a third of
    them near the corners, and the worst corner.
    """
    rng = np.random.default_rng(budget)
    u = rng.random((4, 1500))
    u[:, 500:1000] = np.where(u[:, 500:1000] < 0.5, 0.001, 0.999)
    low = np.array([0.52, 0.52, 0.01, 0.0])[:, None]
    high = np.array([0.8, 0.8, 1 / 3, 0.2])[:, None]
    points = low + (high - low) * u
    points = points[:, theorem4_conditions(*points, budget)]
    assert points.shape[1] > 1200
    hybrid, tokens, steps = bests(*points, budget, asynchronous=True)
    assert np.all(hybrid > np.maximum(tokens, steps))


def test_theorem_4_ends_at_a_budget_of_10():
    """The worst corner (a1 -> 0.8, a2 -> 0.52, c1 -> 0, c2 -> 0.2): 16 rows and 12
    suffice, 10 do not, the hybrid loses.
    """
    corner = (0.7999, 0.5201, 1e-4, 0.1999)
    ratios = {}
    for budget in (6, 8, 10, 12, 16):
        points = (np.array([x]) for x in corner)
        hybrid, tokens, steps = bests(*points, budget, asynchronous=True)
        ratios[budget] = (hybrid / np.maximum(tokens, steps)).item()
        split = best_split(*corner, budget, "async")
        assert split.hybrid_wins == (ratios[budget] > 1)
    exact = {6: 0.839, 8: 0.900, 10: 0.956, 12: 1.005, 16: 1.087}
    assert ratios == pytest.approx(exact, abs=2e-3)
    best = best_split(0.6, 0.6, 0.2, 0.1, 16, "async")
    assert best.speedup == pytest.approx(3.1468492801, abs=6e-11)
    assert not theorem4_conditions(0.79, 0.53, 0.1, 0.1, 10)
    assert theorem4_conditions(0.79, 0.53, 0.1, 0.1, 16)


@pytest.mark.parametrize("budget", [4, 6, 8, 12, 16])
def test_theorem_3_by_brute_force(budget):
    """Its four claims at the points among 4000 random ones at which it applies."""
    points = np.random.default_rng(budget).random((4, 4000))
    points = points[:, theorem3(*points, budget).premise]
    assert points.shape[1] > 300
    says = theorem3(*points, budget)
    hybrid, tokens, steps = bests(*points, budget, asynchronous=False)
    assert np.all(says.seven | says.eight)
    wins = hybrid > np.maximum(tokens, steps)
    assert np.all(wins[says.hybrid]) and says.hybrid.sum() > 50
    assert np.all(tokens[~says.seven] >= np.maximum(hybrid, steps)[~says.seven])
    assert np.all(steps[~says.eight] >= np.maximum(hybrid, tokens)[~says.eight])


def test_lemma_6_bounds_the_threshold_of_theorem_3():
    """What the proof of Theorem 3 needs of condition (6)."""
    y = np.linspace(1e-6, 1 - 1e-6, 400_001)
    values = 2 - y + (y - 2 + 1 / y) * np.log1p(-y)
    assert values.max() == pytest.approx(1.1562281731, abs=1e-9)
    assert values.max() < THRESHOLD
