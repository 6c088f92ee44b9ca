"""Stepping through recordings: what-ifs of them are runs made anew, and refused where
they would be another answer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from player_kit import simulated
from stepper_kit import QUESTION, script_session, tiny_reasoner

from lr.commands.trace import remaking
from lr.errors import LRError
from lr.spec.protocol import Drafted
from lr.types import Finish, Step
from lr.watch.stepper.session import Session
from lr.watch.stepper.sources import Recorded, ScriptSource, StepperError
from lr.watch.trace.file import TraceFile, read_trace
from lr.watch.trace.replay import trace_of


@pytest.mark.usefixtures("whole_targets")
def test_a_recording_is_walked_and_forked_by_running_it_again(tmp_path: Path) -> None:
    run = tiny_reasoner().run(
        QUESTION,
        detailed=True,
        mode="lr",
        depth=3,
        temperature=0.6,
        seed=1,
        max_tokens=60,
    )
    run.finish()
    trace = trace_of(run)
    session = Session(Recorded(trace, remaking(trace)))
    session.go("verdict")
    place = session.active.place
    assert "made anew" in session.force(False)
    assert session.sides[0].place == place and not session.sides[0].source.runs
    session.go("end")
    assert session.sides[0].state.text == run.result.text != session.sides[1].state.text
    session.move("B")
    session.save(str(tmp_path / "what-if.jsonl"))
    saved = read_trace(tmp_path / "what-if.jsonl")
    assert saved.complete and saved.header.variant == "a what-if of the stepper"
    again = Session(Recorded(saved, remaking(saved)))
    again.go("verdict")
    with pytest.raises(LRError, match="custom parts"):
        again.fork()
    session.close()


def test_a_recording_without_models_says_that_there_is_no_what_if() -> None:
    session = Session(Recorded(simulated()))
    assert session.go("verdict")
    with pytest.raises(StepperError, match="says too little to be run again"):
        session.fork()
    assert len(session.sides) == 1
    assert session.go("rejection")


def test_a_recording_that_another_program_made_is_refused() -> None:
    whole = script_session()
    whole.go("end")
    records = list(whole.sides[0].records)
    changed = next(one for one in records if one.kind == "drafted")
    other = Drafted(changed.event.node, Step((1, 2), Finish.BOUNDARY))
    records[changed.number] = replace(changed, event=other)
    source = whole.sides[0].source
    assert isinstance(source, ScriptSource)
    session = Session(
        Recorded(TraceFile(source.header, records), lambda: ScriptSource(source.begin))
    )
    session.go("end")
    with pytest.raises(StepperError, match="another one"):
        session.fork()
