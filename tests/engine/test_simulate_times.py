"""The simulated clock against the exact stage times: the recurrences of both windows, the
synchronous cycle, the peaks.
"""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest

from lr.spec.protocol import Kind, LateDrafts, Limits, Schedule, SchedulerConfig
from lr.theory.chance import Bernoulli, Constant, Replay
from lr.theory.simulate import ENDLESS, Outcome, World, simulate
from lr.types import Origin


def stage(
    schedule: Schedule, depth: int, accepted: int, c: float, v: float = 0.0, **settings
) -> Outcome:
    """One stage in which so many draft steps are accepted before the first is rejected. Target
    steps take 1, drafts c, the judge v.
    """
    world = World(Replay([True] * accepted + [False]), draft=Constant(c), judge=Constant(v))
    outcome = simulate(SchedulerConfig(ENDLESS, schedule, depth, **settings), world, accepted + 1)
    [only] = outcome.stages
    assert only.accepted == accepted and only.seconds == outcome.seconds
    return outcome


def recurrence(schedule: Schedule, depth: int, accepted: int, c: float, v: float) -> float:
    """When s_X is verified, X being the first draft step that is rejected.

    tau_j: s_j begins; d_j: the draft step beside it is ready; V_j: the pair is judged. Paper, k =
    depth pairs in flight: tau_j = max(d_{j-1}, V_{j-k}), d_j = tau_j + c. At most D = depth drafts
    unverified: tau_j = d_{j-1}, d_j = max(d_{j-1}, V_{j-D}) + c. In both V_j = max(tau_j + 1, d_j)
    + v.
    """
    tau: list[float] = []
    d: list[float] = []
    V: list[float] = []
    for j in range(accepted + 1):
        ready, slot = (d[j - 1] if j else 0.0), (V[j - depth] if j >= depth else 0.0)
        tau.append(max(ready, slot) if schedule is Schedule.PAPER else ready)
        d.append((tau[j] if schedule is Schedule.PAPER else max(ready, slot)) + c)
        V.append(max(tau[j] + 1, d[j]) + v)
    return V[accepted]


@pytest.mark.parametrize("schedule", [Schedule.PAPER, Schedule.DEPTH])
def test_stage_times_are_those_of_the_recurrences(schedule: Schedule) -> None:
    """Also where the draft is slower than the target (c > 1) and where the judge is (v > 1)."""
    grid = product(
        (1, 2, 3, 6),
        (0, 1, 2, 3, 5, 12),
        (0.05, 0.1, 0.2, 0.25, 1 / 3, 0.7, 1.5),
        (0.0, 0.1, 0.35, 1.7),
    )
    for depth, accepted, c, v in grid:
        seconds = stage(schedule, depth, accepted, c, v).seconds
        expected = recurrence(schedule, depth, accepted, c, v)
        assert abs(seconds - expected) < 1e-12, (depth, accepted, c, v)


@pytest.mark.parametrize(
    ("schedule", "table"),
    [
        (Schedule.PAPER, [1, 1.2, 1.4, 2, 2.2, 2.4, 3, 3.2]),
        (Schedule.DEPTH, [1, 1.2, 1.4, 1.6, 2.2, 2.4, 2.6, 2.8, 3.4]),
    ],
)
def test_stage_times_of_a_window_of_three(schedule: Schedule, table: list[float]) -> None:
    """c = 0.2. The paper's window has three starts per unit of time; the other has four, its
    pattern repeating after 1 + c.
    """
    for accepted, expected in enumerate(table):
        assert stage(schedule, 3, accepted, 0.2).seconds == pytest.approx(expected, abs=1e-12)


def test_figure_1_of_the_paper() -> None:
    """Two draft steps are accepted, the third is not: latency 2t + T."""
    for schedule in (Schedule.PAPER, Schedule.DEPTH):
        assert stage(schedule, 3, 2, 0.3).seconds == pytest.approx(2 * 0.3 + 1, abs=1e-12)


@pytest.mark.parametrize("c", [0.1, 0.2, 0.25, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 7, 12])
def test_peak_target_rows(depth: int, c: float) -> None:
    """The window, or as many as the draft can start while the target writes one: where 1 / c is
    whole, one ends as the next begins.
    """
    enough = math.ceil(1 / c - 1e-9)
    for schedule, widest in ((Schedule.PAPER, depth), (Schedule.DEPTH, depth + 1)):
        assert stage(schedule, depth, 30, c).workers[Kind.TARGET].peak == min(widest, enough)
    sync = simulate(
        SchedulerConfig(ENDLESS, Schedule.SYNC, depth), World(Bernoulli(1), draft=Constant(c)), 30
    )
    assert sync.workers[Kind.TARGET].peak == depth + 1


@pytest.mark.parametrize("accepted", range(6))
@pytest.mark.parametrize(("b", "v"), [(0.0, 0.0), (0.05, 0.0), (0.2, 0.3)])
def test_a_synchronous_cycle_takes_the_same_time_whatever_is_accepted(
    accepted: int, b: float, v: float
) -> None:
    """g drafts, g + 1 target steps that slow each other down, the verdicts side by side: c g + 1 +
    b g + v, for min(X, g) + 1 steps.
    """
    g, c = 4, 0.3
    world = World(
        Replay([True] * accepted + [False] * 9),
        draft=Constant(c),
        judge=Constant(v),
        target_overhead=b,
    )
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, g), world, 50)
    assert outcome.stages[0].accepted == min(accepted, g)
    assert outcome.stages[0].seconds == pytest.approx(c * g + 1 + b * g + v, abs=1e-12)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_a_synchronous_cycle_on_few_rows_goes_in_waves(rows: int) -> None:
    """All 5 drafts are accepted, so all 6 target steps are needed, as many at a time as there are
    rows.
    """
    world = World(Bernoulli(1), draft=Constant(0.1))
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 5, max_target_rows=rows), world, 6)
    assert outcome.seconds == pytest.approx(5 * 0.1 + math.ceil(6 / rows), abs=1e-12)
    assert outcome.workers[Kind.TARGET].peak == min(rows, 6)


def test_a_wave_that_is_decided_spares_the_next() -> None:
    world = World(Bernoulli(0), draft=Constant(0.1))
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 5, max_target_rows=2), world, 1)
    assert (
        outcome.seconds == pytest.approx(0.5 + 1, abs=1e-12)
        and outcome.workers[Kind.TARGET].completed == 2
    )


def test_work_per_stage() -> None:
    """No window, m = ceil(1 / c): a stage starts X + m target steps; those behind the reject are
    cut: (m - 1) - c m (m - 1) / 2.
    """
    for accepted, c in product((0, 1, 5), (0.2, 0.3, 0.45)):
        target = stage(Schedule.DEPTH, 40, accepted, c).workers[Kind.TARGET]
        m = math.ceil(1 / c - 1e-9)
        assert (
            target.begun - 1 == accepted + m
        )  # the last belongs to the next stage, which has just begun
        assert target.busy == pytest.approx(accepted + m - c * m * (m - 1) / 2, abs=1e-12)


def test_in_the_fluid_limit_a_target_step_takes_what_the_crowd_costs() -> None:
    """All accepted, no window, b < c: n rows take T' = 1 + b (n - 1) each, and n = T' / c, so T' =
    (1 - b) / (1 - b / c).
    """
    b, c = 0.05, 0.1
    world = World(Bernoulli(1), draft=Constant(c), target_overhead=b)
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 200), world, 600, history=True)
    steady = [s.end - s.start for s in outcome.spans if s.work.kind is Kind.TARGET and s.completed][
        300:
    ]
    assert sum(steady) / len(steady) == pytest.approx((1 - b) / (1 - b / c), rel=0.03)


def test_judges_in_short_supply_queue_up() -> None:
    """Synchronous, 3 pairs at once: with one judge the last verdict comes after 3 v, with as many
    as needed after v.
    """
    for workers, wait in ((1, 3 * 0.2), (2, 2 * 0.2), (None, 0.2)):
        world = World(Bernoulli(1), draft=Constant(0.1), judge=Constant(0.2), judge_workers=workers)
        outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 3), world, 4)
        assert outcome.seconds == pytest.approx(0.3 + 1 + wait, abs=1e-12)


def test_late_drafts_rejected_as_the_official_code_does() -> None:
    """A draft slower than the target is never in time; waited for, it sets the pace and all is
    accepted.
    """
    world = World(Bernoulli(1), draft=Constant(1.2))
    waits = simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 3), world, 20)
    assert waits.origins == {Origin.ACCEPTED: 20} and waits.seconds == pytest.approx(
        20 * 1.2, abs=1e-12
    )
    config = SchedulerConfig(ENDLESS, Schedule.DEPTH, 3, late_drafts=LateDrafts.REJECT)
    rejects = simulate(config, world, 20)
    assert rejects.origins == {Origin.CORRECTION: 20} and rejects.seconds == pytest.approx(
        20, abs=1e-12
    )


def test_without_need_of_target_steps() -> None:
    """A step costs its draft and its score while it is accepted, and a target step where it is
    not.
    """
    world = World(Replay([True, True, False]), draft=Constant(0.2), score=Constant(0.05))
    config = SchedulerConfig(ENDLESS, Schedule.SYNC, 1, needs_target_step=False)
    outcome = simulate(config, world, 3)
    assert outcome.seconds == pytest.approx(3 * (0.2 + 0.05) + 1, abs=1e-12)


def test_a_chain_that_ends_ends_the_simulation() -> None:
    outcome = simulate(SchedulerConfig(Limits(5), Schedule.PAPER, 2), World(Bernoulli(1)), 100)
    assert outcome.steps == 5


def test_as_many_steps_as_were_asked_for() -> None:
    """Also where one event emits several: a synchronous cycle of 4 steps, of which 10 steps need
    two and a half.
    """
    outcome = simulate(
        SchedulerConfig(ENDLESS, Schedule.SYNC, 3), World(Bernoulli(1)), 10, history=True
    )
    assert outcome.steps == len(outcome.emissions) == 10 and len(outcome.stages) == 2


def test_history() -> None:
    """Every row begun is a span; the one draft model never writes two steps at once; the emissions
    are the steps in order.
    """
    world = World(Bernoulli(0.6), draft=Constant(0.2), judge=Constant(0.1))
    config = SchedulerConfig(ENDLESS, Schedule.DEPTH, 4)
    outcome = simulate(config, world, 60, history=True)
    for kind, worker in outcome.workers.items():
        spans = [span for span in outcome.spans if span.work.kind is kind]
        assert (
            len(spans) == worker.begun and sum(span.completed for span in spans) == worker.completed
        )
        assert sum(span.end - span.start for span in spans) == pytest.approx(worker.busy)
    drafts = sorted((s.start, s.end) for s in outcome.spans if s.work.kind is Kind.DRAFT)
    assert all(one[1] <= other[0] for one, other in pairwise(drafts))
    assert [step.index for _, step in outcome.emissions] == list(range(60))
    assert not simulate(config, world, 60).spans
