"""What cannot be is refused and changes nothing; what is stale is ignored; settings are
checked."""

import pytest

from lr.errors import SettingError
from lr.spec.protocol import (
    Cancel,
    Drafted,
    Judged,
    Limits,
    NodeId,
    ProtocolError,
    Schedule,
    SchedulerConfig,
    Targeted,
    Work,
    WorkKind,
)
from lr.spec.scheduler import LookaheadScheduler
from lr.types import Finish, Step, Verdict
from lr.watch.scripted import ScriptedRun, TextScript, step_of

ROOT, CHILD, GRANDCHILD = NodeId(0, 0), NodeId(0, 1), NodeId(0, 2)
YES = Verdict(aligned=True, why="told so")
A_STEP = step_of("a.")


def some_run():
    """Draft 0:1 is written; in flight are draft 0:2, target 0:0, target 0:1."""
    run = ScriptedRun(
        SchedulerConfig(Limits(20, 5), Schedule.DEPTH, 2),
        TextScript(["a.", "b$"], ["A.", "B$"]),
    )
    run.tell(Drafted(CHILD, A_STEP))
    return run


IMPOSSIBLE = {
    "completed already": Drafted(CHILD, A_STEP),
    "not commanded yet": Targeted(GRANDCHILD, A_STEP),
    "not commanded yet: the pair is not complete": Judged(CHILD, YES),
    "no such sibling": Targeted(NodeId(0, 1, 1), A_STEP),
    "no such place": Targeted(NodeId(7, 7), A_STEP),
    "an empty step": Targeted(ROOT, Step((), Finish.BOUNDARY)),
    "longer than the limit": Targeted(ROOT, step_of("aaaaa.")),
}


@pytest.mark.parametrize("event", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_events_raise_and_change_nothing(event):
    run, twin = some_run(), some_run()
    with pytest.raises(ProtocolError):
        run.tell(event)
    assert run.run() == twin.run() and run.turns == twin.turns


def test_the_event_of_cancelled_work_comes_at_most_once():
    run = some_run()
    for event in (Drafted(GRANDCHILD, A_STEP), Targeted(CHILD, A_STEP)):
        run.tell(event)
    rejected = run.tell(Judged(GRANDCHILD, Verdict(aligned=False, why="told so")))
    late = Targeted(GRANDCHILD, A_STEP)
    assert Cancel(Work(WorkKind.TARGET, GRANDCHILD)) in rejected.commands
    assert run.tell(late).commands == ()
    with pytest.raises(ProtocolError):
        run.tell(late)


def test_start_comes_first_and_once():
    scheduler = LookaheadScheduler(SchedulerConfig(Limits(9)))
    with pytest.raises(ProtocolError):
        scheduler.handle(Targeted(ROOT, A_STEP))
    scheduler.start()
    with pytest.raises(ProtocolError, match="start"):
        scheduler.start()


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"depth": -1}, "depth is -1"),
        ({"depth": 0, "schedule": Schedule.PAPER}, "depth is 0"),
        ({"depth": 1.5}, "depth is 1.5"),
        ({"width": 0}, "width is 0"),
        ({"max_target_rows": 0}, "max_target_rows is 0"),
        ({"reject_late": True, "schedule": Schedule.PAPER}, "late_drafts is 'reject'"),
        ({"reject_late": True, "needs_target_step": False}, "late_drafts is 'reject'"),
    ],
)
def test_settings_are_checked(settings, named):
    with pytest.raises(SettingError, match=named):
        SchedulerConfig(Limits(9), **settings)


def test_a_node_is_named_by_its_place_in_the_tree():
    """The example of the docstring, and back again."""
    child = NodeId(0, 0).child(1, 2)
    assert [str(child.child(j, 2)) for j in range(2)] == ["0:2.2", "0:2.3"]
    for width in (1, 2, 5):
        for j in range(width):
            child = NodeId(3, 3).child(j, width)
            assert all(
                child.child(i, width).parent(width) == child for i in range(width)
            )
