"""The trace as a file: what is written is read; what is wrong is said with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lr.engine.recorder import BranchesGrew, BranchHolds
from lr.spec.protocol import Cancel, Drafted, Emit, Judge, Judged, NodeId, Work
from lr.spec.protocol import WorkKind as Kind
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
from lr.watch.trace.file import (
    Header,
    TraceError,
    parse_trace,
    piece_of,
    pieces_of,
    read_trace,
    records_of,
    trace_lines,
    write_trace,
)

PIECES = [b"a", b"\xe2\x82", b"\xac", b"b\xff"]
STEP = Step((0, 1, 2), Finish.BOUNDARY)
NO = Verdict(False, "differs", 0.25)
ROOT, CHILD = NodeId(0, 0), NodeId(0, 1, 3)
CORRECTED = EmittedStep(0, Step((3,), Finish.EOS), Origin.CORRECTION, NO, STEP)
REJECTED = DraftToken(0, -1, 0.5, 1.0, 0.5, 0.75, False)
UNTRIED = DraftToken(3, 0, 0.1, 0.2, 0.5, None, None)
ROUND = RoundDetail(3, (REJECTED, UNTRIED), 0.25, 7, 1, 0.3, True, 2**64 - 1)
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
    (1.0, Cancel(Work(Kind.TARGET, CHILD))),
    (2.0, Emit(CORRECTED, (NO,), ROOT, None)),
    (2.0, Ended(True)),
]
HEADER = Header("lockstep", question="Ω?", caches={"target": {"blocks": 4}})
RECORDS = records_of(EVENTS, PIECES.__getitem__)
LINES = list(trace_lines(HEADER, RECORDS))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.jsonl", HEADER, RECORDS)
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.header == HEADER
    assert [(record.time, record.event) for record in trace.records] == EVENTS
    assert trace.stats == stats_of(EVENTS)
    assert trace.complete
    assert trace.notes == []


def test_tokens_have_their_texts() -> None:
    data = {record.kind: record.data for record in RECORDS}
    assert data["written"]["step"]["pieces"] == ["a", "", "€"]
    assert data["token"]["piece"] == "<AC>"
    assert data["token"]["key"] == "0x8000000000000000"
    assert piece_of(3, PIECES.__getitem__) == "b<FF>"


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        ([0], ["a"]),
        ([1], ["\ufffd"]),
        ([1, 2, 0], ["", "€", "a"]),
        ([1, 0], ["", "\ufffda"]),
        ([], []),
    ],
)
def test_pieces_joined_are_the_text(tokens: list[int], pieces: list[str]) -> None:
    assert pieces_of(tokens, PIECES.__getitem__) == pieces


def test_a_trace_that_was_cut_short_is_read_and_said() -> None:
    trace = parse_trace([*LINES[:4], LINES[4][:20]])
    assert len(trace.records) == 3
    assert not trace.complete
    assert "line 5" in trace.notes[0]
    assert "cut short" in trace.notes[1]


def changed(line: int, **values: object) -> list[str]:
    content = json.loads(LINES[line]) | values
    kept = {name: value for name, value in content.items() if value is not ...}
    return [*LINES[:line], json.dumps(kept), *LINES[line + 1 :]]


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        ([], "empty"),
        (["{}"], "line 1"),
        (["[1]"], "line 1"),
        (changed(0, version=2), "version 2"),
        (changed(0, depth="deep"), "depth"),
        (changed(0, texts=...), "line 1"),
        (changed(1, node="root"), "line 2: hold"),
        (changed(2, rows=[[1]]), "line 3: grow"),
        (changed(3, seconds=...), "line 4: forward"),
        (changed(3, time="now"), "line 4"),
        (changed(3, event="telepathy"), "telepathy"),
        (changed(5, time=0.1), "line 6: time"),
        ([*LINES[:3], "{torn", *LINES[3:]], "line 4: not JSON"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(broken: list[str], word: str) -> None:
    with pytest.raises(TraceError, match=word):
        parse_trace(broken)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="read"):
        read_trace(tmp_path / "nowhere.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="UTF-8"):
        read_trace(tmp_path / "binary")
    with pytest.raises(TraceError, match="written"):
        write_trace(tmp_path / "no" / "folder.jsonl", HEADER, [])
