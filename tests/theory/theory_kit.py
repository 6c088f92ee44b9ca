"""What the tests of theory share: expectations by plain enumeration, one stage of the
scheduler, and statistical bounds whose false-alarm probability is known.

SIGMAS: every Monte-Carlo check of this folder fails beyond so many standard errors. A
normal variable goes there with probability 2e-9; there are fewer than 500 such checks,
so one of them fails by chance with probability below 1e-6 (Bonferroni). Seeds are
fixed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from lr.spec.protocol import SchedulerConfig
from lr.theory.distributions import Constant
from lr.theory.simulate import ENDLESS, World, simulate

SIGMAS = 6.0
ACCEPTED = np.arange(2000)
"""X = 0, 1, 2, ...: drafts accepted."""


def expected(alpha, values):
    """E values[X] for P(X >= i) = alpha^i, term by term; `values` belongs to
    `ACCEPTED`, alpha <= 0.95.
    """
    return float(np.sum((1 - alpha) * alpha**ACCEPTED * values))


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


def mean_is(values, mean, slack=1e-12):
    """The mean of these independent values is `mean`, as far as can be told."""
    assert len(values) >= 100
    error = stdev(values) / math.sqrt(len(values))
    assert abs(fmean(values) - mean) < SIGMAS * error + slack


def rate_is(outcome, rate, tolerance=0.0):
    """Steps per time: over independent stages, steps - rate * time has mean 0 exactly
    if `rate` is right, up to a `tolerance` of its own.
    """
    surplus = [stage.accepted + 1 - rate * stage.seconds for stage in outcome.stages]
    mean_time = fmean(stage.seconds for stage in outcome.stages)
    mean_is(surplus, 0.0, slack=tolerance * mean_time + 1e-12)
