"""The trace as a file: schema, classes and documentation say the same; what is written
is read; what is wrong is said with its line.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lr.engine.recorder import BranchesGrew, BranchHolds
from lr.spec.protocol import (
    Cancel,
    Drafted,
    Emit,
    Judge,
    Judged,
    Limits,
    NodeId,
    SchedulerConfig,
    Work,
    WorkKind,
)
from lr.trace import (
    DraftToken,
    Ended,
    ForwardPass,
    RoundDetail,
    StepWritten,
    TokenRound,
    TokenWritten,
    stats_of,
)
from lr.types import EmittedStep, Finish, Origin, Role, Step, Verdict
from lr.watch.scripted import ScriptedRun, TextScript
from lr.watch.trace.file import (
    Header,
    TraceError,
    TraceFile,
    parse_trace,
    piece_of,
    pieces_of,
    read_trace,
    records_of,
    trace_lines,
    write_trace,
)
from lr.watch.trace.virtual import scripted_trace

PIECES = [b"a", b"\xe2\x82", b"\xac", b"b\xff"]
STEP = Step((0, 1, 2), Finish.BOUNDARY)
NO = Verdict(False, "differs", 0.25)
ROOT, CHILD = NodeId(0, 0), NodeId(0, 1, 3)
CORRECTED = EmittedStep(0, Step((3,), Finish.EOS), Origin.CORRECTION, NO, STEP)
ROUND = RoundDetail(
    3,
    (
        DraftToken(0, -1, 0.5, 1.0, 0.5, 0.75, False),
        DraftToken(3, 0, 0.1, 0.2, 0.5, None, None),
    ),
    0.25,
    7,
    1,
    0.3,
    True,
    2**64 - 1,
)
EVENTS = [
    (0.0, BranchHolds("target", 0, ROOT)),
    (0.125, BranchesGrew("target", ((0, 5), (1, 6)), ((1, 0, 2),), ((0, 1),))),
    (0.25, ForwardPass(Role.TARGET, 2, 6, 0.1)),
    (0.5, TokenWritten(Role.DRAFT, CHILD, 0, 0, 2, 0.5, 2**63)),
    (0.75, TokenRound(Role.TARGET, 0, 2, 2, 0, 1, ROOT, ROUND)),
    (0.75, StepWritten(Role.DRAFT, 0, STEP, CHILD)),
    (0.75, Drafted(CHILD, STEP)),
    (0.75, Drafted(NodeId(0, 1), None)),
    (1.0, Judge(CHILD, ROOT, STEP, None)),
    (1.0, Judged(CHILD, NO)),
    (1.0, Cancel(Work(WorkKind.TARGET, CHILD))),
    (2.0, Emit(CORRECTED, (NO,), ROOT, None)),
    (2.0, Ended(True)),
]
HEADER_MADE = Header(
    "lockstep", question="Ω?", caches={"target": {"blocks": 4, "block_size": 4}}
)


def made() -> TraceFile:
    return TraceFile(HEADER_MADE, records_of(EVENTS, PIECES.__getitem__))


def lines() -> list[str]:
    trace = made()
    return list(trace_lines(trace.header, trace.records))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.jsonl", HEADER_MADE, made().records)
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.header == HEADER_MADE
    assert [(record.time, record.event) for record in trace.records] == EVENTS
    assert trace.stats == stats_of(EVENTS)
    assert (trace.complete, trace.notes) == (True, [])


def test_tokens_have_their_texts() -> None:
    written = next(record for record in made().records if record.kind == "written")
    assert written.data["step"]["pieces"] == ["a", "", "€"]
    token = next(record for record in made().records if record.kind == "token")
    assert (token.data["piece"], token.data["key"]) == ("<AC>", "0x8000000000000000")


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        ([0], ["a"]),
        ([1], ["\ufffd"]),
        ([1, 2, 0], ["", "€", "a"]),
        ([1, 0], ["", "\ufffda"]),
        ([], []),
        ([3], ["b\ufffd"]),
    ],
)
def test_pieces_joined_are_the_text(tokens: list[int], pieces: list[str]) -> None:
    assert pieces_of(tokens, PIECES.__getitem__) == pieces
    assert "".join(pieces) == b"".join(PIECES[token] for token in tokens).decode(
        errors="replace"
    )


def test_a_piece_by_itself_shows_its_bytes() -> None:
    assert [piece_of(token, PIECES.__getitem__) for token in range(4)] == [
        "a",
        "<E2><82>",
        "<AC>",
        "b<FF>",
    ]


def test_a_trace_that_was_cut_short_is_read_and_said() -> None:
    whole = lines()
    trace = parse_trace([*whole[:4], whole[4][:20]])
    assert len(trace.records) == 3
    assert not trace.complete
    assert "line 5" in trace.notes[0]
    assert "cut short" in trace.notes[1]
    assert parse_trace(whole[:5]).notes == [
        "the trace was cut short: its last event (end) is missing"
    ]


def changed(line: int, **values: object) -> list[str]:
    all_lines = lines()
    content = json.loads(all_lines[line]) | values
    all_lines[line] = json.dumps(
        {name: value for name, value in content.items() if value is not ...}
    )
    return all_lines


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ([], "is empty"),
        (["{}"], "line 1: this is not a trace"),
        (["[1]"], "line 1: expected an object"),
        (
            changed(0, version=2),
            "version 2, this program reads version 4. Record it anew",
        ),
        (
            changed(0, version=5),
            "version 5, this program reads version 4. Read it with a newer",
        ),
        (changed(0, version="x"), "version 'x'.*Record it anew"),
        (changed(0, depth="deep"), "line 1: .*Expected `int`, got `str`.*depth"),
        (changed(0, texts=...), "line 1: .*texts"),
        (changed(0, texts={"5": 1.5}), "line 1: .*header is not complete"),
        (changed(1, node="root"), "line 2: hold: Expected `array`, got `str`.*node"),
        (changed(2, rows=[[1]]), "line 3: grow: .*rows"),
        (
            changed(3, seconds=...),
            "line 4: forward: .*missing required field `seconds`",
        ),
        (changed(3, role="judge"), "line 4: forward: .*role"),
        (changed(3, tokens=True), "line 4: forward: .*tokens"),
        (changed(3, time="now"), "line 4: forward: .*Expected `float`"),
        (
            changed(3, event="telepathy"),
            "line 4: there is no kind of event 'telepathy'",
        ),
        (changed(5, time=0.1), "line 6: time 0.1 is before 0.5"),
        (changed(6, step={"tokens": [1]}), "line 7: written: .*finish.*step"),
        ([*lines()[:3], "{torn", *lines()[3:]], "line 4: not JSON"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(broken: list[str], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parse_trace(broken)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "nowhere.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(tmp_path / "binary")
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(tmp_path / "no" / "folder.jsonl", HEADER_MADE, [])


def test_a_scripted_run_is_a_trace() -> None:
    run = ScriptedRun(
        SchedulerConfig(Limits(100), depth=2), TextScript(["a.", "b$"], ["A.", "C."])
    )
    run.run()
    trace = scripted_trace(run)
    again = parse_trace(list(trace_lines(trace.header, trace.records)))
    assert again.records == trace.records
    assert (again.stats.steps, again.stats.accepted, again.stats.judged) == (2, 1, 2)
    assert (
        "".join(
            "".join(r.data["step"]["pieces"]) for r in again.records if r.kind == "emit"
        )
        == "A.b$"
    )
