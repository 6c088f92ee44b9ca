"""Many simulated stages against the closed forms: speedups, siblings, the judge's errors, random
step times.

Each test of a rate looks at D = steps - rate * time, summed over stages (synchronous: cycles),
which are independent and alike: if the closed form is right its mean is 0. It fails beyond 5
standard errors: with thousands of stages a normal variable goes there with probability 6e-7. Seeds
are fixed.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest

from lr.spec.protocol import Kind, Schedule, SchedulerConfig
from lr.theory.chance import Bernoulli, BetaSiblings, Constant, JudgeErrors, Lognormal
from lr.theory.simulate import ENDLESS, Outcome, World, simulate
from lr.types import Origin

STEPS = 1500
SIGMAS = 5


def check_rate(outcome: Outcome, rate: float) -> None:
    surplus = [stage.accepted + 1 - rate * stage.seconds for stage in outcome.stages]
    assert len(surplus) > 200
    assert abs(fmean(surplus)) < SIGMAS * stdev(surplus) / math.sqrt(len(surplus))


def check_share(hits: int, trials: int, share: float) -> None:
    assert trials > 300
    assert abs(hits - trials * share) < SIGMAS * math.sqrt(trials * share * (1 - share))


def geometric(a: float, n: int) -> float:
    """1 + a + ... + a^(n-1)."""
    return (1 - a**n) / (1 - a)


def s_1(a: float, c: float, v: float = 0.0) -> float:
    """No window: the paper's S1, with judge latency."""
    return 1 / ((1 + v) * (1 - a) + c * a)


def s_2(a: float, k: int, c: float) -> float:
    """k pairs in flight, k c < 1: the paper's S2."""
    return (1 - a**k) / ((1 - a) + c * (a - a ** (k + 1) - k * (1 - a) * a**k))


def s_d(a: float, depth: int, c: float) -> float:
    """At most D drafts unverified, D c < 1, with K = D + 1."""
    k = depth + 1
    return (1 - a**k) / ((1 - a) + c * (a - a ** (k + 1) - (k - 1) * (1 - a) * a**k))


def test_the_formulas_give_the_published_values() -> None:
    assert s_2(0.6, 6, 0.1) == pytest.approx(2.1375272644, abs=1e-10)
    assert s_d(0.6, 6, 0.1) == pytest.approx(2.1523522309, abs=1e-10)
    assert s_1(0.6, 0.1) == pytest.approx(2.1739130435, abs=1e-10)
    assert s_2(0.8, 4, 0.05) == pytest.approx(2.8489808524, abs=1e-10)
    assert s_d(0.8, 4, 0.05) == pytest.approx(3.1448329541, abs=1e-10)
    assert s_2(0.6, 3, 0.1 / 1.1) / 1.1 == pytest.approx(1.7002081888, abs=1e-10)


@pytest.mark.parametrize(("a", "k", "c"), [(0.6, 6, 0.1), (0.8, 4, 0.05)])
def test_windows(a: float, k: int, c: float) -> None:
    world = World(Bernoulli(a), draft=Constant(c))
    check_rate(simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, k), world, STEPS), s_2(a, k, c))
    check_rate(simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, k), world, STEPS), s_d(a, k, c))
    check_rate(simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 20), world, STEPS), s_1(a, c))


@pytest.mark.parametrize(("a", "g", "c"), [(0.6, 6, 0.1), (0.8, 4, 0.05)])
def test_sync(a: float, g: int, c: float) -> None:
    """Per cycle of min(X, g) + 1 steps; and what else is known of it: judged, drafted, bonus."""
    outcome = simulate(
        SchedulerConfig(ENDLESS, Schedule.SYNC, g), World(Bernoulli(a), draft=Constant(c)), STEPS
    )
    check_rate(outcome, geometric(a, g + 1) / (1 + c * g))
    check_share(outcome.origins[Origin.ACCEPTED], outcome.judged, a)
    check_share(outcome.origins[Origin.BONUS], len(outcome.stages), a**g)


def test_the_checks_can_fail() -> None:
    """A rate that is 15 % off is noticed. (The exact times are in `test_simulate_times.py`.)"""
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, 6), World(Bernoulli(0.6)), STEPS)
    for factor in (0.85, 1.15):
        with pytest.raises(AssertionError):
            check_rate(outcome, factor * s_2(0.6, 6, 0.1))


def test_judge_latency() -> None:
    """Paid once per rejection, not per step; with a window it holds the slot. Synchronous: once per
    cycle.
    """
    slow = World(Bernoulli(0.6), judge=Constant(0.1))
    check_rate(
        simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, 11), slow, STEPS), s_1(0.6, 0.1, 0.1)
    )
    check_rate(
        simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, 3), slow, STEPS),
        s_2(0.6, 3, 0.1 / 1.1) / 1.1,
    )
    check_rate(
        simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 3), slow, STEPS),
        geometric(0.6, 4) / (1 + 0.3 + 0.1),
    )


def test_judge_errors() -> None:
    """The rate of acceptance is p (1 - fr) + (1 - p) fa, the share of wrong steps in the output (1
    - p) fa.
    """
    p, fr, fa = 0.7, 0.2, 0.3
    world = World(Bernoulli(p), errors=JudgeErrors(fr, fa))
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 4), world, STEPS)
    check_share(outcome.origins[Origin.ACCEPTED], outcome.judged, p * (1 - fr) + (1 - p) * fa)
    check_share(outcome.wrong, outcome.steps, (1 - p) * fa)
    assert simulate(SchedulerConfig(ENDLESS), World(Bernoulli(p)), 300).wrong == 0


@pytest.mark.parametrize("width", [1, 2, 3])
def test_siblings(width: int) -> None:
    """Independent: a position is accepted with probability 1 - (1 - a)^W. Correlated: 1 - prod (q +
    i) / (p + q + i).
    """
    config = SchedulerConfig(ENDLESS, Schedule.DEPTH, 2, width)
    a, p, q = 0.4, 0.35, 0.2
    alone = simulate(config, World(Bernoulli(a)), STEPS // 3)
    check_share(alone.origins[Origin.ACCEPTED], alone.steps, 1 - (1 - a) ** width)
    alike = simulate(config, World(BetaSiblings(p, q)), STEPS // 3)
    failing = math.prod((q + i) / (p + q + i) for i in range(width))
    check_share(alike.origins[Origin.ACCEPTED], alike.steps, 1 - failing)


def test_a_synchronous_tree_on_batches_that_are_not_free() -> None:
    """Width 2, depth 2: drafts in batches of 2 and 4, 7 target rows. The published value is
    1.8237381703.
    """
    a, width, g, c, b, b_d = 0.5, 2, 2, 0.1, 0.01, 0.02
    rows = sum(width**j for j in range(g + 1))
    drafting = sum(c * (1 + b_d * (width**j - 1)) for j in range(1, g + 1))
    rate = geometric(1 - (1 - a) ** width, g + 1) / (drafting + 1 + b * (rows - 1))
    assert rate == pytest.approx(1.8237381703, abs=1e-10)
    world = World(
        Bernoulli(a), draft=Constant(c), target_overhead=b, draft_overhead=b_d, draft_workers=None
    )
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, g, width), world, STEPS)
    check_rate(outcome, rate)
    assert outcome.workers[Kind.TARGET].peak == rows
    assert outcome.stages[0].seconds == pytest.approx(drafting + 1 + b * (rows - 1), abs=1e-12)


@pytest.mark.parametrize(("variation", "rate"), [(0.3, 1.84), (0.6, 1.65), (1.0, 1.49)])
def test_random_step_times_cost_speed(variation: float, rate: float) -> None:
    """a = 0.6, c = 0.2, no window, lognormal: an independent simulation found these; S1, for
    constant times, is 1.923.

    Its figures are rounded to 0.005 and have errors of their own, for which 0.015 are allowed.
    """
    world = World(Bernoulli(0.6), Lognormal(1.0, variation), Lognormal(0.2, variation))
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 40), world, STEPS)
    surplus = [stage.accepted + 1 - rate * stage.seconds for stage in outcome.stages]
    slack = 0.02 * fmean(stage.seconds for stage in outcome.stages)
    assert abs(fmean(surplus)) < slack + SIGMAS * stdev(surplus) / math.sqrt(len(surplus))


@pytest.mark.parametrize(("depth", "rate"), [(4, 1.615), (200, 1.244)])
def test_with_a_batch_that_is_not_free_a_window_helps(depth: int, rate: float) -> None:
    """a = 0.6, c = b = 0.1, k pairs in flight: an independent simulation found 1.615 ± 0.014 for k
    = 4 and 1.244 ± 0.014 for no window.
    """
    world = World(Bernoulli(0.6), target_overhead=0.1)
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, depth), world, STEPS)
    surplus = [stage.accepted + 1 - rate * stage.seconds for stage in outcome.stages]
    slack = SIGMAS * 0.014 * fmean(stage.seconds for stage in outcome.stages)
    assert abs(fmean(surplus)) < slack + SIGMAS * stdev(surplus) / math.sqrt(len(surplus))


def test_work_per_stage() -> None:
    """No window, m = ceil(1 / c): a / (1 - a) + m target steps begun per stage, less c m (m - 1) /
    2 of target time where they are cut.
    """
    a, c, m = 0.6, 0.2, 5
    outcome = simulate(
        SchedulerConfig(ENDLESS, Schedule.DEPTH, 30), World(Bernoulli(a), draft=Constant(c)), STEPS
    )
    stages = len(outcome.stages)
    assert outcome.origins[Origin.ACCEPTED] + m * stages == pytest.approx(
        outcome.workers[Kind.TARGET].begun, abs=2 * m
    )
    expected = outcome.origins[Origin.ACCEPTED] + stages * (m - c * m * (m - 1) / 2)
    assert outcome.workers[Kind.TARGET].busy == pytest.approx(expected, abs=2 * m)


def test_the_same_seed_gives_the_same_steps_in_every_window() -> None:
    """Chance is keyed by what it is about, so `paper` and `depth`, whatever their depth, emit the
    same. Another seed gives another run.
    """

    def origins(schedule: Schedule, depth: int, seed: int) -> list[Origin]:
        world = World(
            Bernoulli(0.6), Lognormal(1.0, 0.5), Lognormal(0.3, 0.5), Lognormal(0.1, 1.0), seed=seed
        )
        outcome = simulate(SchedulerConfig(ENDLESS, schedule, depth), world, 200, history=True)
        return [step.origin for _, step in outcome.emissions]

    runs = [
        origins(schedule, depth, 7)
        for schedule in (Schedule.PAPER, Schedule.DEPTH)
        for depth in (1, 3, 8)
    ]
    assert all(run == runs[0] for run in runs)
    assert origins(Schedule.PAPER, 3, 8) != runs[0]
