"""The scripted driver: its orders, its transcript, and the document that shows both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lr.spec.protocol import (
    Cancel,
    Drafted,
    Limits,
    NodeId,
    Schedule,
    SchedulerConfig,
    Targeted,
    Work,
    WorkKind,
)
from lr.types import Finish
from lr.watch.scripted import (
    ScriptedRun,
    TextScript,
    line_of,
    newest,
    oldest,
    quoted,
    shuffled,
    step_of,
    text_of,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "scheduler.md"
SCRIPT = TextScript(["a.", "b.", "c$"], ["A.|A.", "X.|B.", "C$|C."])


def examples() -> list[tuple[str, str]]:
    """(program, what it prints) as the document has them."""
    return re.findall(
        r"```python\n(.*?)```.*?```text\n(.*?)```",
        DOCUMENT.read_text(encoding="utf-8"),
        re.DOTALL,
    )


@pytest.mark.parametrize("number", [0, 1])
def test_the_document_shows_what_the_code_prints(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    program, printed = examples()[number]
    exec(compile(program, str(DOCUMENT), "exec"), {"__name__": "document"})
    assert capsys.readouterr().out == printed


def test_orders() -> None:
    work = [Work(WorkKind.TARGET, NodeId(0, i)) for i in range(5)]
    assert (oldest(work), newest(work)) == (0, 4)
    one, again, other = shuffled(1), shuffled(1), shuffled(2)
    picks = [one(work) for _ in range(50)]
    assert picks == [again(work) for _ in range(50)] != [other(work) for _ in range(50)]
    assert set(picks) == set(range(5))


@pytest.mark.parametrize("schedule", Schedule)
def test_another_order_is_another_story_with_the_same_end(schedule: Schedule) -> None:
    config = SchedulerConfig(Limits(100), schedule, 2, 2)
    runs = [
        ScriptedRun(config, SCRIPT, order) for order in (oldest, newest, shuffled(3))
    ]
    ends = [[(text_of(e.step), e.origin) for e in run.run()] for run in runs]
    assert ends[0] == ends[1] == ends[2]
    assert len({tuple(run.lines()) for run in runs}) > 1


def test_one_event_at_a_time() -> None:
    """`step` completes the piece that it is given; `turns` has all that has happened,
    `prefixes` what is alive.
    """
    run = ScriptedRun(SchedulerConfig(Limits(100), Schedule.DEPTH, 1), SCRIPT)
    assert [text_of(step) for step in run.prefixes[NodeId(0, 1)]] == []
    turn = run.step(Work(WorkKind.DRAFT, NodeId(0, 1)))
    assert turn is run.turns[1] and len(turn.commands) == 1
    assert [text_of(step) for step in run.prefixes[NodeId(0, 1)]] == ["A."]
    run.run()
    assert run.done and not run.work and not run.prefixes


def test_an_event_of_ones_own() -> None:
    """What if the target said something else?"""
    run = ScriptedRun(SchedulerConfig(Limits(100), Schedule.DEPTH, 1), SCRIPT)
    run.tell(Targeted(NodeId(0, 0), step_of("no.")))
    assert next(text_of(e.step) for e in run.run()) == "no."


def test_a_stale_event_changes_nothing() -> None:
    run = ScriptedRun(SchedulerConfig(Limits(100), Schedule.DEPTH, 2), SCRIPT)
    cancelled: list[Work] = []
    while not cancelled:
        cancelled = [
            command.work
            for command in run.step().commands
            if isinstance(command, Cancel)
        ]
    before = dict(run.prefixes)
    assert (
        run.tell(run.event_of(cancelled[0])).commands == () and run.prefixes == before
    )


def test_a_step_that_is_too_long_is_cut() -> None:
    run = ScriptedRun(
        SchedulerConfig(Limits(100, 3), Schedule.DEPTH, 0), TextScript(["abcd.", "e$"])
    )
    first, second = run.run()
    assert (text_of(first.step), first.step.finish) == ("abc", Finish.LENGTH)
    assert (text_of(second.step), second.step.finish) == ("e$", Finish.EOS)


def test_lines_for_what_the_document_does_not_show() -> None:
    config = SchedulerConfig(Limits(100), Schedule.DEPTH, 1, needs_target_step=False)
    run = ScriptedRun(config, TextScript(["a.", "b.", "c?$"], ["A.", "X.", "C?$"]))
    run.run()
    lines = run.lines(quoted)
    assert '    judge 0:1: "A." alone' in lines
    assert "0:1 judged aligned (the same)" in lines
    assert "2:3 judged alone: unsure" in lines
    assert line_of(Drafted(NodeId(0, 1), None)) == "0:1 no draft can come"
