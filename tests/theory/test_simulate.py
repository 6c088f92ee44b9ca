"""The scheduler on a simulated clock: workers, distributions, exact times, and what has
no formula.

Rates against the closed forms are in `test_against_the_scheduler.py`.

SIGMAS: every Monte-Carlo check of this folder fails beyond so many standard errors. A
normal variable goes there with probability 2e-9; there are fewer than 500 such checks,
so one of them fails by chance with probability below 1e-6 (Bonferroni). Seeds are
fixed.
"""

import math
from statistics import fmean, stdev

import pytest

from lr.rng import Stream
from lr.spec.protocol import NodeId, Schedule, SchedulerConfig, Work, WorkKind
from lr.theory.distributions import (
    Bernoulli,
    BetaSiblings,
    Constant,
    JudgeErrors,
    Lognormal,
    Resampled,
)
from lr.theory.simulate import ENDLESS, Workers, World, simulate
from lr.types import Origin

SIGMAS = 6.0
KEYS = [Stream.root(3).key(i) for i in range(4000)]
STEPS = 1500


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


def work(number):
    return Work(WorkKind.TARGET, NodeId(0, 0, number))


def test_rows_that_share_a_batch_slow_each_other():
    workers = Workers(overhead=0.5)
    workers.submit(0.0, {work(0): 1.0})
    workers.submit(0.4, {work(1): 1.0})
    assert workers.next_time() == pytest.approx(1.3)
    assert workers.complete(1.3) == work(0)
    assert workers.next_time() == pytest.approx(1.7)
    assert workers.complete(1.7) == work(1)
    assert (workers.busy, workers.occupied) == pytest.approx((1.3 + 1.3, 1.7))


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_a_synchronous_cycle_on_few_rows_goes_in_waves(rows):
    """All 5 drafts are accepted, so all 6 target steps are needed, as many at a time as
    there are rows.
    """
    world = World(Bernoulli(1), draft=Constant(0.1))
    outcome = simulate(
        SchedulerConfig(ENDLESS, Schedule.SYNC, 5, max_target_rows=rows), world, 6
    )
    assert outcome.seconds == pytest.approx(5 * 0.1 + math.ceil(6 / rows), abs=1e-12)
    assert outcome.workers[WorkKind.TARGET].peak == min(rows, 6)


@pytest.mark.parametrize("variation, rate", [(0.3, 1.84), (1.0, 1.49)])
def test_random_step_times_cost_speed(variation, rate):
    """a = 0.6, c = 0.2, no window, lognormal: an independent simulation gave these; S1,
    for constant times, is 1.923.
    """
    world = World(Bernoulli(0.6), Lognormal(1.0, variation), Lognormal(0.2, variation))
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, 200), world, STEPS)
    rate_is(outcome, rate, tolerance=0.02)


@pytest.mark.parametrize("depth, rate", [(4, 1.615), (200, 1.244)])
def test_with_a_batch_that_is_not_free_a_window_helps(depth, rate):
    """a = 0.6, c = b = 0.1, k pairs in flight: an independent simulation gave 1.615 ±
    0.014 for k = 4 and 1.244 ± 0.014 for no window.
    """
    world = World(Bernoulli(0.6), target_overhead=0.1)
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, depth), world, STEPS)
    rate_is(outcome, rate, tolerance=SIGMAS * 0.014)


def test_the_same_seed_gives_the_same_steps_in_every_window():
    """Chance is keyed by what it is about, so `paper` and `depth`, whatever their
    depth, emit the same. Another seed gives another run.
    """

    def accepted(schedule, depth, seed):
        world = World(
            Bernoulli(0.6),
            Lognormal(1.0, 0.5),
            Lognormal(0.3, 0.5),
            Lognormal(0.1, 1.0),
            seed=seed,
        )
        outcome = simulate(SchedulerConfig(ENDLESS, schedule, depth), world, 200)
        return [stage.accepted for stage in outcome.stages]

    runs = [
        accepted(schedule, depth, 7)
        for schedule in (Schedule.PAPER, Schedule.DEPTH)
        for depth in (1, 3, 8)
    ]
    assert all(run == runs[0] for run in runs)
    assert accepted(Schedule.PAPER, 3, 8) != runs[0]


def test_the_target_reads_a_draft_step_before_it_writes():
    """Depth 1, c = 0.5, reading 0.2: the root's step ends at 1, the next one at 0.5 +
    0.2 + 1."""
    world = World(Bernoulli(1), draft=Constant(0.5), reading=0.2)
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 1), world, 2)
    assert outcome.seconds == pytest.approx(1.7, abs=1e-12)
    # a synchronous cycle of three drafts reads them one after the other: 3 * 0.25 + 2 *
    # 0.3 + 0.1
    world = World(Bernoulli(1), draft=Constant(0.25), reading=0.1, reading_before=0.3)
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 3), world, 4)
    assert outcome.seconds == pytest.approx(0.75 + 0.7 + 1, abs=1e-12)


def test_distributions_have_their_means():
    def mean_over_keys(draw, mean):
        mean_is([float(draw(key)) for key in KEYS], mean)

    mean_over_keys(Lognormal(2.0, 0.5).draw, 2.0)
    mean_over_keys(Resampled([1.0, 2.0, 6.0]).draw, 3.0)
    assert Lognormal(2.0, 0.0).draw(KEYS[1]) == pytest.approx(2.0)
    errors = JudgeErrors(0.25, 0.5)
    mean_over_keys(lambda key: errors.says_aligned(True, key), 0.75)
    mean_over_keys(lambda key: errors.says_aligned(False, key), 0.5)
    mean_over_keys(lambda key: Bernoulli(0.3).equivalent(0, 0, key), 0.3)
    # E A^2 = 1/3 for siblings that share a uniform A, not 1/4; and all alike or none
    siblings = BetaSiblings(1, 1)

    def both_accepted(key):
        first = siblings.equivalent(0, key, key + 1)
        return first and siblings.equivalent(0, key, -key)

    mean_over_keys(both_accepted, 1 / 3)
    alike = BetaSiblings(0.86e-3, 0.14e-3)
    mean_over_keys(lambda key: alike.equivalent(0, key, 0), 0.86)


def test_late_drafts_rejected_as_the_official_code_does():
    """A draft slower than the target is never in time; waited for, it sets the pace and
    all is accepted.
    """
    world = World(Bernoulli(1), draft=Constant(1.2))
    waits = simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 3), world, 20)
    assert waits.origins == {Origin.ACCEPTED: 20} and waits.seconds == pytest.approx(
        20 * 1.2, abs=1e-12
    )
    config = SchedulerConfig(ENDLESS, Schedule.DEPTH, 3, reject_late=True)
    rejects = simulate(config, world, 20)
    assert rejects.origins == {
        Origin.CORRECTION: 20
    } and rejects.seconds == pytest.approx(20, abs=1e-12)
