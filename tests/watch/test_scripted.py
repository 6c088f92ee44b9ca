"""The scripted driver: its orders, its transcript, and the document that shows both."""

from __future__ import annotations

import re

import pytest
from tests_root import ROOT

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

SCRIPT = TextScript(["a.", "b.", "c$"], ["A.|A.", "X.|B.", "C$|C."])


def a_run(depth: int) -> ScriptedRun:
    return ScriptedRun(SchedulerConfig(Limits(100), Schedule.DEPTH, depth), SCRIPT)


def test_the_document_shows_what_the_code_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = (ROOT / "docs" / "scheduler.md").read_text(encoding="utf-8")
    pattern = r"```python\n(.*?)```.*?```text\n(.*?)```"
    [(program, printed)] = re.findall(pattern, document, re.DOTALL)
    exec(program, {"__name__": "document"})
    assert capsys.readouterr().out == printed


def test_orders() -> None:
    work = [Work(WorkKind.TARGET, NodeId(0, i)) for i in range(5)]
    assert (oldest(work), newest(work)) == (0, 4)
    picks = [shuffled(1), shuffled(1), shuffled(2)]
    numbers = [[pick(work) for _ in range(50)] for pick in picks]
    assert numbers[0] == numbers[1] != numbers[2]


@pytest.mark.parametrize("schedule", Schedule)
def test_another_order_is_another_story_with_the_same_end(schedule: Schedule) -> None:
    config = SchedulerConfig(Limits(100), schedule, 2, 2)
    orders = (oldest, newest, shuffled(3))
    runs = [ScriptedRun(config, SCRIPT, order) for order in orders]
    ends = [[(text_of(e.step), e.origin) for e in run.run()] for run in runs]
    assert ends[0] == ends[1] == ends[2]
    assert len({tuple(run.lines()) for run in runs}) > 1


def test_one_event_at_a_time() -> None:
    """`turns` has all that has happened, `prefixes` what is alive."""
    run = a_run(1)
    assert run.prefixes[NodeId(0, 1)] == ()
    turn = run.step(Work(WorkKind.DRAFT, NodeId(0, 1)))
    assert turn is run.turns[1]
    assert [text_of(step) for step in run.prefixes[NodeId(0, 1)]] == ["A."]
    run.run()
    assert run.done
    assert not run.work
    assert not run.prefixes


def test_an_event_of_ones_own() -> None:
    run = a_run(1)
    run.tell(Targeted(NodeId(0, 0), step_of("no.")))
    assert text_of(run.run()[0].step) == "no."


def test_a_stale_event_changes_nothing() -> None:
    run = a_run(2)
    cancelled: list[Work] = []
    while not cancelled:
        commands = run.step().commands
        cancelled = [one.work for one in commands if isinstance(one, Cancel)]
    before = dict(run.prefixes)
    assert run.tell(run.event_of(cancelled[0])).commands == ()
    assert run.prefixes == before


def test_a_step_that_is_too_long_is_cut() -> None:
    config = SchedulerConfig(Limits(100, 3), Schedule.DEPTH, 0)
    first, second = ScriptedRun(config, TextScript(["abcd.", "e$"])).run()
    assert (text_of(first.step), first.step.finish) == ("abc", Finish.LENGTH)
    assert (text_of(second.step), second.step.finish) == ("e$", Finish.EOS)


def test_lines_for_what_the_document_does_not_show() -> None:
    config = SchedulerConfig(Limits(100), Schedule.DEPTH, 1, needs_target_step=False)
    run = ScriptedRun(config, TextScript(["a.", "b.", "c?$"], ["A.", "X.", "C?$"]))
    run.run()
    lines = run.lines(quoted)
    assert '    judge 0:1: "A." alone' in lines
    assert "2:3 judged alone: unsure" in lines
    assert "no draft" in line_of(Drafted(NodeId(0, 1), None))
