"""The scripted driver: its orders, its transcript, and the document that shows both."""

from __future__ import annotations

import re

import pytest
from tests_root import ROOT

from lr.spec.protocol import (
    Cancel,
    Limits,
    Schedule,
    SchedulerConfig,
    Work,
)
from lr.types import Finish
from lr.watch.scripted import (
    ScriptedRun,
    TextScript,
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


def test_a_stale_event_changes_nothing() -> None:
    run = a_run(2)
    cancelled: list[Work] = []
    while not cancelled:
        commands = run.step().commands
        cancelled = [c.work for c in commands if isinstance(c, Cancel)]
    before = dict(run.prefixes)
    assert run.tell(run.event_of(cancelled[0])).commands == ()
    assert run.prefixes == before


def test_a_step_that_is_too_long_is_cut() -> None:
    config = SchedulerConfig(Limits(100, 3), Schedule.DEPTH, 0)
    first, second = ScriptedRun(config, TextScript(["abcd.", "e$"])).run()
    assert (text_of(first.step), first.step.finish) == ("abc", Finish.LENGTH)
    assert (text_of(second.step), second.step.finish) == ("e$", Finish.EOS)
