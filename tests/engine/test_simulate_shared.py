"""Draft and target on one machine, taking turns."""

from __future__ import annotations

import math

import pytest

from lr.errors import SettingError
from lr.spec.protocol import Kind, NodeId, Schedule, SchedulerConfig, Work
from lr.theory.chance import Bernoulli, Constant, Replay
from lr.theory.simulate import ENDLESS, World, simulate
from lr.theory.workers import Workers


def work(number: int, kind: Kind = Kind.TARGET) -> Work:
    return Work(kind, NodeId(0, 0, number))


def test_the_worked_example_of_turns() -> None:
    """turns 0.5: the first progresses at 1/3, the second at 2/3. The second is done at 1.5; then
    the first, half done, has it all: 2.0.
    """
    first, second = Workers(), Workers()
    Workers.share_machine(first, second, 0.5)
    first.submit(0.0, [(work(0), 1.0)])
    second.submit(0.0, [(work(1), 1.0)])
    assert second.next_time() == pytest.approx(1.5) and first.next_time() == pytest.approx(3.0)
    second.complete(1.5)
    assert first.next_time() == pytest.approx(2.0)


def test_batches_on_a_shared_machine() -> None:
    """Overhead 1, two target rows: a turn of the target takes twice as long, for both. Draft: 1 + 2
    = 3 per unit, target: 2 + 1 = 3.
    """
    draft, target = Workers(), Workers(overhead=1.0)
    Workers.share_machine(draft, target, 1.0)
    target.submit(0.0, [(work(0), 1.0), (work(1), 1.0)])
    draft.submit(0.0, [(work(2, Kind.DRAFT), 0.5)])
    assert draft.next_time() == pytest.approx(1.5) and target.next_time() == pytest.approx(3.0)
    draft.complete(1.5)
    assert target.next_time() == pytest.approx(1.5 + 0.5 * 2)


@pytest.mark.parametrize("turns", [0.25, 1.0, 8.0])
@pytest.mark.parametrize("schedule", [Schedule.PAPER, Schedule.DEPTH])
def test_one_machine_does_as_much_work_as_it_has_time(turns: float, schedule: Schedule) -> None:
    """Constant times, overhead 1 (rows one after the other): all accepted, the machine is never
    idle and nothing is thrown away, so the time is the work: a draft and a target step for each
    step, whatever the turns."""
    world = World(Bernoulli(1), draft=Constant(0.4), draft_turns=turns, target_overhead=1.0)
    outcome = simulate(SchedulerConfig(ENDLESS, schedule, 3), world, 200)
    begun_too_early = 5 * 1.4  # what is in work behind the last step
    assert 200 * 1.4 - 1e-9 <= outcome.seconds <= 200 * 1.4 + begun_too_early


def test_synchronous_cycles_do_not_mind_sharing() -> None:
    """Draft and target are never at work together there."""
    world, shared = (
        World(Bernoulli(0.6), draft=Constant(0.3), draft_turns=turns) for turns in (None, 0.7)
    )
    config = SchedulerConfig(ENDLESS, Schedule.SYNC, 3)
    assert simulate(config, world, 100).seconds == pytest.approx(
        simulate(config, shared, 100).seconds, rel=1e-12
    )


def test_a_stage_on_one_machine_by_hand() -> None:
    """k = 1, c = 0.5, equal turns: both start, at half speed; the draft is done at 1.0, the target,
    half done, at 1.5.
    """
    world = World(Replay([False]), draft=Constant(0.5), draft_turns=1.0)
    assert simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, 1), world, 1).seconds == pytest.approx(
        1.5, abs=1e-12
    )


def test_changing_costs() -> None:
    """As above, and half a unit lost per unit of the target's: a unit of its work takes 1 + 1 + 0.5
    while both work. The draft is done at 0.5 * 2.5 = 1.25; the target, half done, at 1.75. A
    synchronous run never pays: only one of them has work."""
    world = World(Replay([False]), draft=Constant(0.5), draft_turns=1.0, change=0.5)
    assert simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, 1), world, 1).seconds == pytest.approx(
        1.75, abs=1e-12
    )
    free = World(Replay([False]), draft=Constant(0.5), draft_turns=1.0)
    sync = SchedulerConfig(ENDLESS, Schedule.SYNC, 2)
    assert simulate(sync, world, 9).seconds == simulate(sync, free, 9).seconds


@pytest.mark.parametrize("overhead", [0.0, 0.5])
def test_reading_stalls_every_row(overhead: float) -> None:
    """Depth 1, c = 0.5, reading 0.2: root row from 0; the draft is there at 0.5, half of the row
    done. Its own row is read until 0.7, both wait. With overhead the root's second half takes 1 +
    overhead as long. Then the draft step is accepted."""
    world = World(Bernoulli(1), draft=Constant(0.5), target_overhead=overhead, reading=0.2)
    done = 0.7 + 0.5 * (1 + overhead)
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.DEPTH, 1), world, 1)
    assert outcome.seconds == pytest.approx(done, abs=1e-12)


def test_reading_in_a_synchronous_cycle() -> None:
    """Two drafts, two rows to read: 2 * 0.25 + 2 * 0.1 + 1 for three steps."""
    world = World(Bernoulli(1), draft=Constant(0.25), reading=0.1)
    outcome = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 2), world, 3)
    assert outcome.seconds == pytest.approx(1.7, abs=1e-12)


@pytest.mark.parametrize("turns", [0.0, -1.0, math.inf, math.nan])
def test_turns_are_checked(turns: float) -> None:
    with pytest.raises(SettingError):
        simulate(SchedulerConfig(ENDLESS), World(Bernoulli(0.5), draft_turns=turns), 1)
