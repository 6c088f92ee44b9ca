"""Every closed form against the real scheduler on a simulated clock: exactly where it
can be, then statistically.

Exactly: X, the number of drafts accepted before the first reject, is the only chance
there is. So one deterministic stage is simulated for each X, and weighing them with
P(X) = a^X (1 - a) gives the speedup of the scheduler without any sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from lr.spec.protocol import Schedule, SchedulerConfig, WorkKind
from lr.theory.asynchronous import async_parallelism, lr_async_speedup, stage_times
from lr.theory.distributions import Constant
from lr.theory.formula_vs_simulation import FORMULAS, Point
from lr.theory.hybrid import hybrid_speedup
from lr.theory.simulate import ENDLESS, World, simulate
from lr.theory.synchronous import sd_speedup

WINDOWS = {"paper": Schedule.PAPER, "depth": Schedule.DEPTH}
POINT = Point(0.35, 0.25, 3, 0.2, 0.05, 3, 2.0, 0.3, 0.2, 1500, 1)


@dataclass(frozen=True)
class Replay:
    """Given outcomes by step number, repeated cyclically."""

    outcomes: Sequence[bool]

    def equivalent(self, index, position, sibling):
        return self.outcomes[index % len(self.outcomes)]


def stage(schedule, depth, accepted, c, v=0.0):
    """One stage in which so many drafts are accepted and the next is not. Target steps
    take 1, drafts c, verdicts v.
    """
    outcomes = Replay([True] * accepted + [False])
    world = World(outcomes, draft=Constant(c), judge=Constant(v))
    config = SchedulerConfig(ENDLESS, schedule, depth)
    return simulate(config, world, accepted + 1)


@pytest.mark.parametrize("window", ["paper", "depth"])
def test_stage_times_exactly(window):
    """The scheduler's stage times are those of the recurrences to 1e-12. Their mean over
    X is the closed form, by enumeration (`test_closed_forms.py`).
    """
    for k, c, v in product((1, 2, 4), (0.1, 0.25, 0.3, 0.7), (0.0, 0.2, 0.9)):
        stages = [stage(WINDOWS[window], k, x, c, v) for x in range(18)]
        times = np.array([outcome.seconds for outcome in stages])
        assert np.abs(times - stage_times(window, k, c, 18, v)).max() < 1e-12


def test_the_synchronous_scheduler_obeys_algorithm_1():
    """g drafts, g + 1 target steps in flight (the paper's text: k1 = gamma1), min(X, g)
    + 1 steps: convention B, whatever X is. (Its mean: `test_closed_forms.py`.)
    """
    for g, c, v in product((1, 2, 4), (0.1, 0.5, 1.4), (0.0, 0.3)):
        for x in range(g + 1):
            outcome = stage(Schedule.SYNC, g, x, c, v)
            assert outcome.seconds == pytest.approx(1 + c * g + v, abs=1e-12)
            assert outcome.workers[WorkKind.TARGET].peak == g + 1
            assert outcome.stages[0].accepted + 1 == min(x, g) + 1


def test_parallel_target_steps_exactly():
    for k, c in product((1, 2, 4, 7), (0.1, 0.2, 0.3, 0.5, 0.9)):
        for window, schedule in WINDOWS.items():
            peak = stage(schedule, k, 20, c).workers[WorkKind.TARGET].peak
            assert peak == async_parallelism(k, c, window)


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.name)
def test_every_formula_of_lr_theory_agrees_with_the_clock(formula):
    """Within 6 standard errors."""
    value = formula.value(POINT)
    assert value > 0
    simulated = formula.simulated(POINT)
    assert abs(simulated.value - value) < 6 * simulated.error + 1e-9


def test_the_product_exactly():
    """If the inner speculation makes draft and target g times as fast, lookahead on top
    of it is g times as fast: time is scaled.
    """
    g = sd_speedup(0.6, 3, 0.1)
    config = SchedulerConfig(ENDLESS, Schedule.PAPER, 3)
    outcomes = Replay([True, True, False])

    def seconds(faster):
        target, draft = Constant(1 / faster), Constant(0.2 / faster)
        return simulate(config, World(outcomes, target, draft), 30).seconds

    assert seconds(1) / seconds(g) == pytest.approx(g, rel=1e-12)
    product_of_both = g * lr_async_speedup(0.6, 3, 0.2)
    hybrid = hybrid_speedup(0.6, 0.6, 0.2, 0.1, 3, 4, "async")
    assert hybrid == pytest.approx(product_of_both, rel=1e-12)


def test_without_need_of_target_steps():
    """A step costs its draft and its score while it is accepted, and a target step
    where it is not.
    """
    world = World(
        Replay([True, True, False]), draft=Constant(0.2), judge=Constant(0.05)
    )
    config = SchedulerConfig(ENDLESS, Schedule.SYNC, 1, needs_target_step=False)
    outcome = simulate(config, world, 3)
    assert outcome.seconds == pytest.approx(3 * (0.2 + 0.05) + 1, abs=1e-12)
