"""The scheduler on a simulated clock: workers, distributions, exact times, and what has
no formula.

Rates against the closed forms are in `test_against_the_scheduler.py`. Statistical tests
fail beyond 5 standard errors of a mean over thousands of draws: false alarm 6e-7 each.
Seeds are fixed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist, fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_kit import emitted_steps, spans_of

from lr.errors import SettingError
from lr.rng import Stream, uniform
from lr.spec.protocol import Limits, NodeId, Schedule, SchedulerConfig, Work, WorkKind
from lr.theory.distributions import (
    Bernoulli,
    BetaSiblings,
    Constant,
    JudgeErrors,
    Lognormal,
    Replay,
    Resampled,
)
from lr.theory.simulate import ENDLESS, SimulationOutcome, Workers, World, simulate
from lr.trace import Trace
from lr.types import Origin

KEYS = [Stream.root(3).key(i) for i in range(4000)]
SIGMAS = 5
STEPS = 1500


def work(number: int) -> Work:
    return Work(WorkKind.TARGET, NodeId(0, 0, number))


def test_the_worked_example() -> None:
    workers = Workers(overhead=0.5)
    workers.submit(0.0, {work(0): 1.0})
    workers.submit(0.4, {work(1): 1.0})
    assert workers.next_time() == pytest.approx(1.3)
    first = workers.complete(1.3)
    assert (first.work, first.start, first.completed) == (work(0), 0.0, True)
    assert workers.next_time() == pytest.approx(1.7)


def test_a_queue_is_served_in_order_and_a_job_keeps_its_slot_until_its_last_row() -> (
    None
):
    """One slot. Job 0 has rows of 1 and 3, so job 1 begins at 3; a waiting row that is
    cancelled has no span.
    """
    workers = Workers(slots=1)
    workers.submit(0.0, {work(0): 1.0, work(1): 3.0})
    workers.submit(0.5, {work(2): 1.0, work(3): 1.0})
    workers.submit(0.5, {work(4): 2.0})
    assert workers.cancel(0.7, work(2)) is None
    ended = []
    while (time := workers.next_time()) < math.inf:
        span = workers.complete(time)
        ended.append((span.work.node.number, span.start, time))
    assert ended == [(0, 0.0, 1.0), (1, 0.0, 3.0), (3, 3.0, 4.0), (4, 4.0, 6.0)]
    assert (workers.peak, workers.begun, workers.completed, workers.busy) == (
        2,
        4,
        4,
        1 + 3 + 1 + 2,
    )


def test_a_cancelled_row_makes_room_and_makes_the_others_faster() -> None:
    workers = Workers(slots=2, overhead=1.0)
    for number in range(3):
        workers.submit(0.0, {work(number): 1.0})
    assert workers.next_time() == pytest.approx(2.0)  # two at a time, each half as fast
    span = workers.cancel(1.0, work(0))
    assert span is not None and (span.start, span.completed) == (0.0, False)
    assert workers.next_time() == pytest.approx(
        2.0
    )  # the third has taken the place of the first
    workers.cancel(1.5, work(2))
    assert workers.next_time() == pytest.approx(
        1.75
    )  # row 1 has come 0.75 far and is alone now
    assert [s.work for s in workers.stop(1.6)] == [
        work(1)
    ] and workers.next_time() == math.inf


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.floats(0.05, 3), min_size=1, max_size=8),
    gaps=st.lists(st.floats(0, 1), min_size=8, max_size=8),
    overhead=st.sampled_from([0.0, 0.1, 1.0]),
    slots=st.sampled_from([None, 1, 2, 3]),
)
def test_workers_against_a_plain_reckoning(
    lengths: list[float], gaps: list[float], overhead: float, slots: int | None
) -> None:
    """One row per job. The reckoning keeps what is left of each row and moves from
    event to event.
    """
    arrivals = [(sum(gaps[: i + 1]), i, length) for i, length in enumerate(lengths)]
    workers = Workers(slots, overhead)
    ended: dict[int, float] = {}

    def run_until(limit: float) -> None:
        while workers.next_time() <= limit and workers.next_time() < math.inf:
            time = workers.next_time()
            ended[workers.complete(time).work.node.number] = time

    for time, i, length in arrivals:
        run_until(time)
        workers.submit(time, {work(i): length})
    run_until(math.inf)

    expected: dict[int, float] = {}
    waiting, left, now = list(arrivals), dict[int, float](), 0.0
    while waiting or left:
        room = slots is None or len(left) < slots
        pace = 1 + overhead * (len(left) - 1) if left else 1.0
        done_in = min(left.values()) * pace if left else math.inf
        if waiting and room and max(waiting[0][0], now) <= now + done_in:
            step = max(waiting[0][0] - now, 0.0)
            left = {i: rest - step / pace for i, rest in left.items()}
            now += step
            _, i, length = waiting.pop(0)
            left[i] = length
        else:
            first = min(left, key=lambda i: left[i])
            left = {i: rest - done_in / pace for i, rest in left.items()}
            now += done_in
            del left[first]
            expected[first] = now
    assert ended.keys() == expected.keys()
    assert all(ended[i] == pytest.approx(expected[i], abs=1e-9) for i in ended)


def test_durations() -> None:
    """Means over 4000 keyed draws; 5 standard errors of a normal mean: false alarm 6e-7
    each."""
    assert Constant(2.5).draw(KEYS[0]) == 2.5
    law = Lognormal(2.0, 0.5)
    assert abs(fmean(map(law.draw, KEYS)) - 2.0) < 5 * 1.0 / math.sqrt(len(KEYS))
    logs = [math.log(law.draw(key)) for key in KEYS]
    fitted, spread = NormalDist.from_samples(logs), math.log1p(0.25)
    assert abs(fitted.variance - spread) < 5 * spread * math.sqrt(2 / len(KEYS))
    assert Lognormal(2.0, 0.0).draw(KEYS[1]) == pytest.approx(2.0)
    values = [1.0, 2.0, 4.0]
    drawn = [Resampled(values).draw(key) for key in KEYS]
    for value in values:
        assert abs(drawn.count(value) - len(KEYS) / 3) < 5 * math.sqrt(
            len(KEYS) * 2 / 9
        )


def test_acceptance() -> None:
    hits = sum(Bernoulli(0.3).equivalent(0, 0, key) for key in KEYS)
    assert abs(hits - 0.3 * len(KEYS)) < 5 * math.sqrt(len(KEYS) * 0.21)
    assert [Replay([True, False]).equivalent(i, 0, 0) for i in range(4)] == [
        True,
        False,
        True,
        False,
    ]
    both = sum(
        BetaSiblings(1, 1).equivalent(0, p, a)
        and BetaSiblings(1, 1).equivalent(0, p, b)
        for p, a, b in zip(KEYS[:1000], KEYS[1000:2000], KEYS[2000:3000], strict=True)
    )
    assert abs(both - 1000 / 3) < 5 * math.sqrt(
        1000 * 2 / 9
    )  # E A^2 = 1/3 for a uniform A, not 1/4
    assert all(BetaSiblings(1e9, 1e-3).equivalent(0, key, key) for key in KEYS[:10])


def test_judge_errors_use_the_key() -> None:
    errors = JudgeErrors(0.25, 0.5)
    for key in KEYS[:50]:
        assert errors.says_aligned(True, key) == (uniform(key) >= 0.25)
        assert errors.says_aligned(False, key) == (uniform(key) < 0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(-1.0),
        lambda: Lognormal(0.0, 1.0),
        lambda: Lognormal(1.0, -1.0),
        lambda: Resampled([]),
        lambda: Resampled([1.0, math.nan]),
        lambda: Bernoulli(1.5),
        lambda: BetaSiblings(0.0, 1.0),
        lambda: Replay([]),
        lambda: JudgeErrors(2.0),
        lambda: JudgeErrors(0.0, -1.0),
        lambda: Workers(slots=0),
        lambda: Workers(overhead=-0.1),
    ],
)
def test_settings_are_checked(make) -> None:
    with pytest.raises(SettingError):
        make()


def stage(
    schedule: Schedule, depth: int, accepted: int, c: float, v: float = 0.0, **settings
) -> SimulationOutcome:
    """One stage in which so many draft steps are accepted before the first is rejected.
    Target steps take 1, drafts c, the judge v.
    """
    world = World(
        Replay([True] * accepted + [False]), draft=Constant(c), judge=Constant(v)
    )
    outcome = simulate(
        SchedulerConfig(ENDLESS, schedule, depth, **settings), world, accepted + 1
    )
    [only] = outcome.stages
    assert only.accepted == accepted and only.seconds == outcome.seconds
    return outcome


@pytest.mark.parametrize(
    ("schedule", "table"),
    [
        (Schedule.PAPER, [1, 1.2, 1.4, 2, 2.2, 2.4, 3, 3.2]),
        (Schedule.DEPTH, [1, 1.2, 1.4, 1.6, 2.2, 2.4, 2.6, 2.8, 3.4]),
    ],
)
def test_stage_times_of_a_window_of_three(
    schedule: Schedule, table: list[float]
) -> None:
    """c = 0.2. The paper's window has three starts per unit of time; the other has
    four, its pattern repeating after 1 + c.
    """
    for accepted, expected in enumerate(table):
        assert stage(schedule, 3, accepted, 0.2).seconds == pytest.approx(
            expected, abs=1e-12
        )


def test_figure_1_of_the_paper() -> None:
    """Two draft steps are accepted, the third is not: latency 2t + T."""
    for schedule in (Schedule.PAPER, Schedule.DEPTH):
        assert stage(schedule, 3, 2, 0.3).seconds == pytest.approx(
            2 * 0.3 + 1, abs=1e-12
        )


@pytest.mark.parametrize("c", [0.1, 0.2, 0.25, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 7, 12])
def test_peak_target_rows(depth: int, c: float) -> None:
    """The window, or as many as the draft can start while the target writes one: where
    1 / c is whole, one ends as the next begins.
    """
    enough = math.ceil(1 / c - 1e-9)
    for schedule, widest in ((Schedule.PAPER, depth), (Schedule.DEPTH, depth + 1)):
        assert stage(schedule, depth, 30, c).workers[WorkKind.TARGET].peak == min(
            widest, enough
        )
    sync = simulate(
        SchedulerConfig(ENDLESS, Schedule.SYNC, depth),
        World(Bernoulli(1), draft=Constant(c)),
        30,
    )
    assert sync.workers[WorkKind.TARGET].peak == depth + 1


@pytest.mark.parametrize("accepted", range(6))
@pytest.mark.parametrize(("b", "v"), [(0.0, 0.0), (0.05, 0.0), (0.2, 0.3)])
def test_a_synchronous_cycle_takes_the_same_time_whatever_is_accepted(
    accepted: int, b: float, v: float
) -> None:
    """g drafts, g + 1 target steps that slow each other down, the verdicts side by
    side: c g + 1 + b g + v, for min(X, g) + 1 steps.
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
    """All 5 drafts are accepted, so all 6 target steps are needed, as many at a time as
    there are rows.
    """
    world = World(Bernoulli(1), draft=Constant(0.1))
    outcome = simulate(
        SchedulerConfig(ENDLESS, Schedule.SYNC, 5, max_target_rows=rows), world, 6
    )
    assert outcome.seconds == pytest.approx(5 * 0.1 + math.ceil(6 / rows), abs=1e-12)
    assert outcome.workers[WorkKind.TARGET].peak == min(rows, 6)


def test_a_wave_that_is_decided_spares_the_next() -> None:
    world = World(Bernoulli(0), draft=Constant(0.1))
    outcome = simulate(
        SchedulerConfig(ENDLESS, Schedule.SYNC, 5, max_target_rows=2), world, 1
    )
    assert (
        outcome.seconds == pytest.approx(0.5 + 1, abs=1e-12)
        and outcome.workers[WorkKind.TARGET].completed == 2
    )


def test_judges_in_short_supply_queue_up() -> None:
    """Synchronous, 3 pairs at once: with one judge the last verdict comes after 3 v,
    with as many as needed after v.
    """
    for workers, wait in ((1, 3 * 0.2), (2, 2 * 0.2), (None, 0.2)):
        world = World(
            Bernoulli(1),
            draft=Constant(0.1),
            judge=Constant(0.2),
            judge_workers=workers,
        )
        outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 3), world, 4)
        assert outcome.seconds == pytest.approx(0.3 + 1 + wait, abs=1e-12)


def test_late_drafts_rejected_as_the_official_code_does() -> None:
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


def test_without_need_of_target_steps() -> None:
    """A step costs its draft and its score while it is accepted, and a target step
    where it is not.
    """
    world = World(
        Replay([True, True, False]), draft=Constant(0.2), score=Constant(0.05)
    )
    config = SchedulerConfig(ENDLESS, Schedule.SYNC, 1, needs_target_step=False)
    outcome = simulate(config, world, 3)
    assert outcome.seconds == pytest.approx(3 * (0.2 + 0.05) + 1, abs=1e-12)


def test_a_chain_that_ends_ends_the_simulation() -> None:
    outcome = simulate(
        SchedulerConfig(Limits(5), Schedule.PAPER, 2), World(Bernoulli(1)), 100
    )
    assert outcome.steps == 5


def test_as_many_steps_as_were_asked_for() -> None:
    """Also where one event emits several: a synchronous cycle of 4 steps, of which 10
    steps need two and a half.
    """
    trace = Trace()
    outcome = simulate(
        SchedulerConfig(ENDLESS, Schedule.SYNC, 3), World(Bernoulli(1)), 10, trace
    )
    assert outcome.steps == len(emitted_steps(trace)) == 10 and len(outcome.stages) == 2


def test_what_a_trace_holds() -> None:
    """Every row begun is a span; the one draft model never writes two steps at once;
    the emissions are the steps in order.
    """
    world = World(Bernoulli(0.6), draft=Constant(0.2), judge=Constant(0.1))
    config = SchedulerConfig(ENDLESS, Schedule.DEPTH, 4)
    trace = Trace()
    for kind, worker in simulate(config, world, 60, trace).workers.items():
        spans = spans_of(trace, kind)
        assert len(spans) == worker.begun
        assert sum(completed for _, _, completed in spans) == worker.completed
        assert sum(end - start for start, end, _ in spans) == pytest.approx(worker.busy)
    drafts = sorted(spans_of(trace, WorkKind.DRAFT))
    assert all(one[1] <= other[0] for one, other in pairwise(drafts))
    assert [step.index for step in emitted_steps(trace)] == list(range(60))


def test_a_synchronous_tree_on_batches_that_are_not_free() -> None:
    """Width 2, depth 2: drafts in batches of 2 and 4, 7 target rows. The published
    value is 1.8237381703.
    """
    a, width, g, c, b, b_d = 0.5, 2, 2, 0.1, 0.01, 0.02
    rows = sum(width**j for j in range(g + 1))
    drafting = sum(c * (1 + b_d * (width**j - 1)) for j in range(1, g + 1))
    world = World(
        Bernoulli(a),
        draft=Constant(c),
        target_overhead=b,
        draft_overhead=b_d,
        draft_workers=None,
    )
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, g, width), world, STEPS)
    assert outcome.workers[WorkKind.TARGET].peak == rows
    assert outcome.stages[0].seconds == pytest.approx(
        drafting + 1 + b * (rows - 1), abs=1e-12
    )


@pytest.mark.parametrize(("variation", "rate"), [(0.3, 1.84), (0.6, 1.65), (1.0, 1.49)])
def test_random_step_times_cost_speed(variation: float, rate: float) -> None:
    """a = 0.6, c = 0.2, no window, lognormal: an independent simulation found these;
    S1, for constant times, is 1.923.

    Its figures are rounded to 0.005 and have errors of their own, for which 0.015 are
    allowed.
    """
    world = World(Bernoulli(0.6), Lognormal(1.0, variation), Lognormal(0.2, variation))
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 40), world, STEPS)
    surplus = [stage.accepted + 1 - rate * stage.seconds for stage in outcome.stages]
    slack = 0.02 * fmean(stage.seconds for stage in outcome.stages)
    assert abs(fmean(surplus)) < slack + SIGMAS * stdev(surplus) / math.sqrt(
        len(surplus)
    )


@pytest.mark.parametrize(("depth", "rate"), [(4, 1.615), (200, 1.244)])
def test_with_a_batch_that_is_not_free_a_window_helps(depth: int, rate: float) -> None:
    """a = 0.6, c = b = 0.1, k pairs in flight: an independent simulation found 1.615 ± 0.014 for k
    = 4 and 1.244 ± 0.014 for no window.
    """
    world = World(Bernoulli(0.6), target_overhead=0.1)
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, depth), world, STEPS)
    surplus = [stage.accepted + 1 - rate * stage.seconds for stage in outcome.stages]
    slack = SIGMAS * 0.014 * fmean(stage.seconds for stage in outcome.stages)
    assert abs(fmean(surplus)) < slack + SIGMAS * stdev(surplus) / math.sqrt(
        len(surplus)
    )


def test_the_same_seed_gives_the_same_steps_in_every_window() -> None:
    """Chance is keyed by what it is about, so `paper` and `depth`, whatever their
    depth, emit the same. Another seed gives another run.
    """

    def origins(schedule: Schedule, depth: int, seed: int) -> list[Origin]:
        world = World(
            Bernoulli(0.6),
            Lognormal(1.0, 0.5),
            Lognormal(0.3, 0.5),
            Lognormal(0.1, 1.0),
            seed=seed,
        )
        trace = Trace()
        simulate(SchedulerConfig(ENDLESS, schedule, depth), world, 200, trace)
        return [step.origin for step in emitted_steps(trace)]

    runs = [
        origins(schedule, depth, 7)
        for schedule in (Schedule.PAPER, Schedule.DEPTH)
        for depth in (1, 3, 8)
    ]
    assert all(run == runs[0] for run in runs)
    assert origins(Schedule.PAPER, 3, 8) != runs[0]


def test_the_target_reads_a_draft_step_before_it_writes() -> None:
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
