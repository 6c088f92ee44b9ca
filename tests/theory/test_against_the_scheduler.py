"""Every closed form against the real scheduler on a simulated clock: exactly where it
can be, then statistically (see `theory_kit.py`).

Exactly: X, the number of drafts accepted before the first reject, is the only chance
there is. So one deterministic stage is simulated for each X, and weighing them with
P(X) = a^X (1 - a) gives the speedup of the scheduler without any sampling.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
from theory_kit import rate_is, share_is, spans_of

from lr.spec.protocol import Schedule, SchedulerConfig, WorkKind
from lr.theory.acceptance import (
    beta_width_acceptance,
    judged_acceptance,
    tree_rows,
    tree_sync_speedup,
    width_acceptance,
    wrong_share,
    wrong_share_sync,
)
from lr.theory.asynchronous import (
    async_parallelism,
    crowded_step_time,
    lr_async_limit,
    lr_async_speedup,
    speedup_of_stages,
    stage_times,
)
from lr.theory.distributions import (
    Bernoulli,
    BetaSiblings,
    Constant,
    JudgeErrors,
    Replay,
)
from lr.theory.hybrid import hybrid_speedup
from lr.theory.simulate import ENDLESS, SimulationOutcome, World, simulate
from lr.theory.synchronous import (
    lr_sync_cycle_speedup,
    lr_sync_speedup,
    sd_speedup,
    sync_bonus,
    sync_draft_share,
    sync_judged,
    sync_wasted,
)
from lr.trace import Trace
from lr.types import Origin

WINDOWS = {"paper": Schedule.PAPER, "depth": Schedule.DEPTH}


@cache
def stage(
    schedule: Schedule, depth: int, accepted: int, c: float, v: float = 0.0
) -> SimulationOutcome:
    """One stage (or cycle) in which so many drafts are accepted and the next is not."""
    world = World(
        Replay([True] * accepted + [False]), draft=Constant(c), judge=Constant(v)
    )
    return simulate(SchedulerConfig(ENDLESS, schedule, depth), world, accepted + 1)


@pytest.mark.parametrize("window", ["paper", "depth"])
def test_stage_times_and_speedups_exactly(window) -> None:
    """The scheduler's stage times are those of the recurrences to 1e-12, and their mean
    over X gives the closed form.
    """
    for k, c, v in product((1, 2, 4), (0.1, 0.25, 0.3, 0.7), (0.0, 0.2, 0.9)):
        times = np.array(
            [stage(WINDOWS[window], k, x, c, v).seconds for x in range(18)]
        )
        assert np.abs(times - stage_times(window, k, c, 18, v)).max() < 1e-12, (k, c, v)
        for a in (0.0, 0.1):  # 0.1^18 = 1e-18: longer stages do not show
            assert speedup_of_stages(a, times) == pytest.approx(
                lr_async_speedup(a, k, c, window, v), rel=1e-12
            )


def test_the_synchronous_scheduler_obeys_algorithm_1_and_not_the_text() -> None:
    """g drafts, g + 1 target steps in flight (the paper's text: k1 = gamma1), min(X, g)
    + 1 steps: convention B, whatever X is.
    """
    for g, c, v in product((1, 2, 4), (0.1, 0.5, 1.4), (0.0, 0.3)):
        for x in range(g + 1):
            world = World(
                Replay([True] * x + [False] * 9), draft=Constant(c), judge=Constant(v)
            )
            outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, g), world, x + 1)
            assert outcome.seconds == pytest.approx(1 + c * g + v, abs=1e-12)
            assert outcome.workers[WorkKind.TARGET].peak == g + 1 != g
            assert outcome.stages[0].accepted + 1 == min(x, g) + 1
        for a in (0.3, 0.8):
            p = np.array([a**x * (1 - a) for x in range(g)] + [a**g])
            ours = p @ np.arange(1, g + 2) / (1 + c * g + v)
            assert lr_sync_cycle_speedup(
                a, g, c, "B", verifier_latency=v
            ) == pytest.approx(ours, rel=1e-12)
            assert (
                lr_sync_cycle_speedup(a, g, c, "N1", verifier_latency=v) < ours - 1e-3
            )
            if v == 0:
                assert lr_sync_speedup(a, g + 1, c) == pytest.approx(ours, rel=1e-12)


def test_parallel_target_steps_exactly() -> None:
    for k, c in product((1, 2, 4, 7), (0.1, 0.2, 0.3, 0.5, 0.9)):
        for window, schedule in WINDOWS.items():
            assert stage(schedule, k, 20, c).workers[
                WorkKind.TARGET
            ].peak == async_parallelism(k, c, window)


@pytest.mark.parametrize(
    ("a", "k", "c", "v"),
    [(0.6, 6, 0.1, 0.0), (0.8, 3, 0.05, 0.2), (0.4, 2, 0.3, 0.0), (0.9, 5, 0.25, 0.4)],
)
def test_speedups_of_long_runs(a: float, k: int, c: float, v: float) -> None:
    world = World(Bernoulli(a), draft=Constant(c), judge=Constant(v), seed=1)
    for window, schedule in WINDOWS.items():
        rate_is(
            simulate(SchedulerConfig(ENDLESS, schedule, k), world, 2000),
            lr_async_speedup(a, k, c, window, v),
        )
    rate_is(
        simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, 60), world, 1500),
        lr_async_limit(a, c, v),
    )
    sync = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, k), world, 2000)
    rate_is(sync, lr_sync_cycle_speedup(a, k, c, verifier_latency=v))
    cycles, accepted = len(sync.stages), sum(s.accepted for s in sync.stages)
    share_is(accepted, sync.judged, a)
    share_is(sum(s.accepted == k for s in sync.stages), cycles, sync_bonus(a, k))
    assert accepted / sum(s.accepted + 1 for s in sync.stages) == pytest.approx(
        sync_draft_share(a, k), abs=0.05
    )
    assert sync.judged / cycles == pytest.approx(sync_judged(a, k), rel=0.12)
    wasted = sync.workers[WorkKind.TARGET].begun - sync.steps
    assert wasted / cycles == pytest.approx(sync_wasted(a, k), rel=0.12)


@pytest.mark.parametrize(("b", "g"), [(0.05, 3), (0.3, 2)])
def test_batches_that_are_not_free(b: float, g: int) -> None:
    """Synchronous: b is a c. All accepted, no window: the crowd's step time."""
    world = World(Bernoulli(0.7), draft=Constant(0.2), target_overhead=b)
    rate = lr_sync_cycle_speedup(0.7, g, 0.2, batch_overhead=b)
    rate_is(simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, g), world, 1500), rate)
    assert rate == pytest.approx(lr_sync_cycle_speedup(0.7, g, 0.2 + b))
    crowd = World(Bernoulli(1), draft=Constant(0.1), target_overhead=b / 6)
    trace = Trace()
    simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 100), crowd, 500, trace)
    spans = spans_of(trace, WorkKind.TARGET)
    steady = [end - start for start, end, completed in spans if completed][250:]
    assert sum(steady) / len(steady) == pytest.approx(
        crowded_step_time(b / 6, 0.1), rel=0.05
    )


@pytest.mark.parametrize(
    ("p", "fr", "fa"), [(0.7, 0.2, 0.3), (0.5, 0.0, 0.5), (0.4, 0.6, 0.4)]
)
def test_a_judge_that_errs(p: float, fr: float, fa: float) -> None:
    world = World(Bernoulli(p), errors=JudgeErrors(fr, fa))
    run = simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, 4), world, 2500)
    share_is(run.origins[Origin.ACCEPTED], run.judged, judged_acceptance(p, fr, fa))
    share_is(run.wrong, run.steps, wrong_share(p, fa))
    sync = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 3), world, 2500)
    expected = wrong_share_sync(p, fr, fa, 3)
    assert abs(sync.wrong / sync.steps - expected) < 6 * math.sqrt(
        2 * expected / sync.steps
    )


@pytest.mark.parametrize("width", [1, 2, 4])
def test_alternatives(width: int) -> None:
    """Independent and correlated: the share of positions at which one is accepted, and
    the speedup of a tree in free batches.
    """
    world = World(Bernoulli(0.4), draft=Constant(0.1), draft_workers=None)
    sync = SchedulerConfig(ENDLESS, Schedule.SYNC, 2, width)
    outcome = simulate(sync, world, 500)
    rate_is(outcome, tree_sync_speedup(width_acceptance(0.4, width), width, 2, 0.1))
    assert outcome.workers[WorkKind.TARGET].peak == tree_rows(width, 2)
    alike = simulate(
        SchedulerConfig(ENDLESS, Schedule.DEPTH, 1, width),
        World(BetaSiblings(0.35, 0.2)),
        800,
    )
    share_is(
        alike.origins[Origin.ACCEPTED],
        alike.steps,
        beta_width_acceptance(0.35, 0.2, width),
    )


def test_the_product_exactly() -> None:
    """If the inner speculation makes draft and target g times as fast, lookahead on top
    of it is g times as fast: time is scaled.
    """
    g = sd_speedup(0.6, 3, 0.1)
    plain, faster = (
        World(
            Replay([True, True, False]), target=Constant(1 / s), draft=Constant(0.2 / s)
        )
        for s in (1, g)
    )
    config = SchedulerConfig(ENDLESS, Schedule.PAPER, 3)
    ratio = simulate(config, plain, 30).seconds / simulate(config, faster, 30).seconds
    assert ratio == pytest.approx(g, rel=1e-12)
    assert hybrid_speedup(0.6, 0.6, 0.2, 0.1, 3, 4, "async") == pytest.approx(
        g * lr_async_speedup(0.6, 3, 0.2), rel=1e-12
    )
