"""A trace: what is written is read, what is wrong is said with its line, and a trace of
models tells every token.
"""

import json
from contextlib import suppress

import pytest
from tests_root import python
from watch_kit import scripted

from lr.commands.answer import saving
from lr.reasoner import Reasoner
from lr.trace import Ended, stats_of
from lr.watch.trace.file import (
    TraceError,
    parse_trace,
    pieces_of,
    read_trace,
    trace_lines,
    trace_of,
    write_trace,
)
from lr.watch.trace.state import State, apply_event

QUESTION = "At first Ann has 7 coins. How many coins does Ann have?"
SHORT = {"max_tokens": 40, "segmenter": "fixed", "segment_tokens": 4, "depth": 3}
MODES = {
    "ar": {"mode": "ar"},
    "sd": {"mode": "sd"},
    "tree": {"mode": "sd", "drafter": "tree"},
    "lr": {"mode": "lr"},
    "wide": {"mode": "lr", "width": 2, "schedule": "sync"},
    "lr+sd": {"mode": "lr+sd", "width": 2, "acceptance": "block"},
    "overlapped": {"mode": "lr", "driver": "overlapped"},
}


# A trace of models tells every token


@pytest.fixture(scope="module")
def reasoner(target, draft):
    with Reasoner(target, draft, "random:0.6") as reasoner:
        yield reasoner


def traced(reasoner, **options):
    answer = reasoner.run(QUESTION, detailed=True, **SHORT, **options)
    stats = answer.finish().stats
    trace = trace_of(answer)
    read = parse_trace(list(trace_lines(trace)))
    assert read.records == trace.records
    assert read.stats == stats == stats_of(answer.trace.events)
    return read


@pytest.mark.parametrize("mode", MODES)
def test_a_trace_tells_every_token(reasoner, mode):
    trace = traced(reasoner, **MODES[mode])
    state = State.begin(trace.header)
    for record in trace.records:
        apply_event(state, record)
        for cache in state.caches.values():
            held = [branch.node for branch in cache.branches.values() if branch.node]
            assert len(held) == len(set(held)), "a node's prefix has one branch"
    assert state.done
    tokens = [token for step in state.emitted for token in step.step.written]
    assert len(tokens) == trace.stats.tokens > 0
    assert all(token.source for token in tokens)
    if mode == "sd":
        rounds = [record.event for record in trace.records if record.kind == "round"]
        rejected = [
            token.token
            for each in rounds
            if each.accepted < each.emitted
            for token in each.detail.draft_tokens
            if token.kept is False
        ]
        shown = [token for step in state.emitted for token in step.step.tokens]
        assert rejected
        assert rejected == [t.token for t in shown if t.source == "refused"]
    # Both processes of an overlapped answer tell what happened in their caches.
    assert set(state.caches) == set(trace.header.caches)
    grown = [record.event for record in trace.records if record.kind == "grow"]
    assert {event.cache for event in grown} == set(state.caches)
    blocks = [block for _, block in grown[0].fresh]
    assert blocks == [*range(len(blocks))], "each answer begins with block 0"
    assert not state.caches["target"].branches


def test_a_failed_run_leaves_its_trace(reasoner, tmp_path):
    answer = reasoner.run(QUESTION, detailed=True, mode="lr", **SHORT)
    file = tmp_path / "t.jsonl"
    with suppress(KeyboardInterrupt), saving(file, answer):
        next(iter(answer))
        raise KeyboardInterrupt
    trace = read_trace(file)
    end = trace.records[-1].event
    assert isinstance(end, Ended) and not end.done
    assert "KeyboardInterrupt" in end.why
    assert trace.stats == stats_of(answer.trace.events)
    assert trace.stats.steps > 0


# The file


@pytest.mark.parametrize(
    "tokens, pieces",
    [
        ([0], ["a"]),
        ([1], ["\ufffd"]),
        ([1, 2, 0], ["", "€", "a"]),
        ([1, 0], ["", "\ufffda"]),
        ([], []),
    ],
)
def test_pieces_joined_are_the_text(tokens, pieces):
    texts = [b"a", b"\xe2\x82", b"\xac"]
    assert pieces_of(tokens, texts.__getitem__) == pieces


def changed(number, **values):
    """The lines of a trace with other values in one line."""
    lines = list(trace_lines(scripted()))
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | values)
    return lines


@pytest.mark.parametrize(
    "broken, noun",
    [
        ([], "empty"),
        (["{}"], "line 1"),
        (["[1]"], "line 1"),
        (changed(1, version=2), "version 2"),
        (changed(1, depth="deep"), "depth"),
        (changed(1, texts=None), "line 1"),
        (changed(2, node="root"), "line 2: .*node"),
        (changed(4, time="now"), "line 4"),
        (changed(4, event="telepathy"), "telepathy"),
        (["{torn" if n == 3 else line for n, line in enumerate(changed(1))], "line 4"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(broken, noun):
    with pytest.raises(TraceError, match=noun):
        parse_trace(broken)


def test_the_command_checks_a_trace(tmp_path, cli):
    file = tmp_path / "t.jsonl"
    write_trace(file, scripted())
    assert "width 2" in cli(f"trace {file}").out
    lines = file.read_text("utf-8").splitlines()
    file.write_text("\n".join([*lines[:9], lines[9][:20]]), "utf-8")  # killed writing
    assert len(read_trace(file).records) == 8
    assert "cut short" in cli(f"trace {file}").out


def test_reading_needs_no_torch():
    program = (
        "import sys, lr.commands.trace, lr.watch.trace.file; "
        "assert 'torch' not in sys.modules"
    )
    assert python("-c", program).returncode == 0
