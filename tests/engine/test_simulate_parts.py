"""The parts of the simulation: workers against a plain reckoning, and the laws of chance."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lr.errors import SettingError
from lr.rng import Stream, uniform
from lr.spec.protocol import Kind, NodeId, Work
from lr.theory.chance import (
    Bernoulli,
    BetaSiblings,
    Constant,
    JudgeErrors,
    Lognormal,
    Replay,
    Resampled,
)
from lr.theory.workers import Workers

KEYS = [Stream.root(3).key(i) for i in range(4000)]


def work(number: int) -> Work:
    return Work(Kind.TARGET, NodeId(0, 0, number))


def test_the_worked_example() -> None:
    workers = Workers(overhead=0.5)
    workers.submit(0.0, [(work(0), 1.0)])
    workers.submit(0.4, [(work(1), 1.0)])
    assert workers.next_time() == pytest.approx(1.3)
    first = workers.complete(1.3)
    assert (first.work, first.start, first.completed) == (work(0), 0.0, True)
    assert workers.next_time() == pytest.approx(1.7)


def test_a_queue_is_served_in_order_and_a_job_keeps_its_slot_until_its_last_row() -> None:
    """One slot. Job 0 has rows of 1 and 3, so job 1 begins at 3; a waiting row that is cancelled
    has no span.
    """
    workers = Workers(slots=1)
    workers.submit(0.0, [(work(0), 1.0), (work(1), 3.0)])
    workers.submit(0.5, [(work(2), 1.0), (work(3), 1.0)])
    workers.submit(0.5, [(work(4), 2.0)])
    assert workers.cancel(0.7, work(2)) is None
    ended = []
    while (time := workers.next_time()) < math.inf:
        span = workers.complete(time)
        ended.append((span.work.node.number, span.start, span.end))
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
        workers.submit(0.0, [(work(number), 1.0)])
    assert workers.next_time() == pytest.approx(2.0)  # two at a time, each half as fast
    span = workers.cancel(1.0, work(0))
    assert span is not None and (span.end, span.completed) == (1.0, False)
    assert workers.next_time() == pytest.approx(2.0)  # the third has taken the place of the first
    workers.cancel(1.5, work(2))
    assert workers.next_time() == pytest.approx(1.75)  # row 1 has come 0.75 far and is alone now
    assert [s.work for s in workers.stop(1.6)] == [work(1)] and workers.next_time() == math.inf


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
    """One row per job. The reckoning keeps what is left of each row and moves from event to
    event.
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
        workers.submit(time, [(work(i), length)])
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
    """Means over 4000 keyed draws; 5 standard errors of a normal mean: false alarm 6e-7 each."""
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
        assert abs(drawn.count(value) - len(KEYS) / 3) < 5 * math.sqrt(len(KEYS) * 2 / 9)


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
        BetaSiblings(1, 1).equivalent(0, p, a) and BetaSiblings(1, 1).equivalent(0, p, b)
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
