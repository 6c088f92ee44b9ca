"""The stepper without a terminal: forward and back, to a rejection, forced verdicts and
what-ifs, on scripts and on the tiny models.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stepper_kit import QUESTION, live_session, script_session, tiny_reasoner

from lr.spec.protocol import Limits, SchedulerConfig
from lr.watch.scripted import ScriptedRun, TextScript
from lr.watch.stepper.live import LiveSource
from lr.watch.stepper.session import Session
from lr.watch.stepper.sources import (
    FORCED,
    ScriptSource,
    StepperError,
    written_steps,
)
from lr.watch.stepper.view import token_rows
from lr.watch.trace.replay import trace_of
from lr.watch.trace.state import state_at


@pytest.fixture
def live(request: pytest.FixtureRequest) -> Iterator[Session]:
    session = live_session(getattr(request, "param", "lr"))
    yield session
    session.close()


def text(session: Session, side: int = 0) -> str:
    return session.sides[side].state.text


def test_what_is_seen_follows_from_the_events() -> None:
    session = script_session()
    side = session.sides[0]
    while session.go("next"):
        assert side.state == state_at(side.trace, side.place)
    assert side.over and text(session) == "A.b.C.D$"


def test_back_undoes_next() -> None:
    session = script_session(width=2)
    side, places = session.sides[0], [0]
    while session.go("next"):
        places.append(side.place)
    for place in reversed(places[:-1]):
        assert session.go("back") and side.place == place
    assert not session.go("back")
    again = [side.place for _ in places[1:] if session.go("next")]
    assert again == places[1:], "the second time nothing is made anew"


def test_to_the_next_rejection_and_the_next_step() -> None:
    session = script_session()
    assert session.go("rejection")
    last = session.sides[0].last
    assert last is not None and last.kind == "judged" and last.data["node"] == "0:2"
    session.to(0)
    assert session.go("step") and text(session) == "A."
    assert session.go("step") and text(session) == "A.b."
    assert session.sides[0].state.root == "2:2", "the new root is there at once"
    session.go("rejection")
    assert session.sides[0].over, (
        "there was one only, and its correction does not count again"
    )


def test_a_step_that_is_cut_is_a_rejection_without_a_verdict() -> None:
    config = SchedulerConfig(Limits(50), depth=1)
    session = Session(
        ScriptSource(lambda: ScriptedRun(config, TextScript(["a.", "b$"], ["A", "B$"])))
    )
    assert session.go("rejection")
    last = session.sides[0].happened
    assert (
        last is not None and last.kind == "emit" and last.data["origin"] == "correction"
    )


def test_a_forced_verdict_changes_the_text_and_is_marked() -> None:
    session = script_session()
    session.go("verdict")
    assert session.due(session.active) == ["0:1"]
    assert FORCED in session.force(False)
    session.go("end")
    assert text(session) == "a.b.C.D$"
    first = session.sides[0].state.emitted[0]
    assert (
        first.verdict is not None
        and first.verdict["why"] == f"{FORCED}; else aligned: the same"
    )
    assert len(session.sides) == 1, (
        "the verdict had not been given, so nothing was rewritten"
    )


def test_forcing_in_the_past_opens_a_what_if() -> None:
    session = script_session()
    session.go("end")
    session.to(0)
    session.go("verdict")
    said = session.force(False)
    assert "made anew" in said and [side.name for side in session.sides] == ["A", "B"]
    session.go("end")
    assert text(session, 0) == "A.b.C.D$" and text(session, 1) == "a.b.C.D$"
    session.move("B")
    session.to(0)
    session.go("verdict")
    session.force(True)  # the what-if of the what-if takes its place
    session.go("end")
    assert len(session.sides) == 2 and text(session, 1) == "A.b.C.D$"


def test_a_fork_of_a_fork_keeps_what_was_forced_before_it() -> None:
    session = script_session()
    session.go("verdict")
    session.force(False)
    session.go("step")
    session.go("step")
    session.go("back")  # a decision lies behind: side B is made anew from the beginning
    session.fork()
    session.go("end")
    assert text(session, 1) == text(session, 0) == "a.b.C.D$"


def test_a_live_run_made_anew_keeps_what_was_forced_before_it(live: Session) -> None:
    live.go("verdict")
    live.force(False)
    live.go("step")
    live.go("step")
    live.go("back")
    assert "made anew" in live.fork()
    live.go("end")
    forced = [
        [
            one.data["node"]
            for one in side.records
            if one.kind == "judged" and FORCED in one.data["verdict"]["why"]
        ]
        for side in live.sides
    ]
    assert len(forced[0]) == 1 and forced[1] == forced[0]
    assert text(live, 0) == text(live, 1)


def test_a_run_made_anew_does_not_decide_beyond_its_place() -> None:
    session = script_session()
    session.go("end")
    side = session.sides[0]
    emit = next(one.number for one in side.records if one.kind == "emit")
    session.to(
        emit
    )  # after the verdict, before the step that it decides: in the middle of a piece of work
    assert side.records[emit - 1].kind == "judged"
    session.fork()
    made = session.sides[1]
    assert (
        made.place < emit
        and made.place == len(made.records)
        and not any(one.kind in ("judged", "emit") for one in made.records)
    )
    assert made.records == side.records[: made.place]


def test_what_cannot_be_forced_is_said() -> None:
    session = script_session()
    with pytest.raises(StepperError, match="no verdict is due here"):
        session.force(True)
    session.go("verdict")
    with pytest.raises(
        StepperError, match="no verdict on 0:7 is due here; due are: 0:1"
    ):
        session.force(True, "0:7")
    with pytest.raises(StepperError, match="there is no side 'B'"):
        session.move("B")


@pytest.mark.parametrize("mode", ["lr", "lr+sd"])
def test_live_steps_are_the_events_of_lockstep(mode: str) -> None:
    options = {
        "mode": mode,
        "depth": 3,
        "temperature": 0.6,
        "seed": 1,
        "max_tokens": 60,
    }
    run = tiny_reasoner().run(QUESTION, detailed=True, **options)
    run.finish()
    source = LiveSource(tiny_reasoner(), QUESTION, options)
    while source.advance():
        pass
    expected = trace_of(run)
    assert written_steps(expected.records) == written_steps(source.records)
    assert len(source.records) == len(expected.records)


@pytest.mark.parametrize("live", ["lr", "lr+sd"], indirect=True)
def test_a_fork_computes_nothing_and_copies_nothing(live: Session) -> None:
    live.go("verdict")
    source = live.active.source
    assert isinstance(source, LiveSource)
    used = [runner.cache.pool.num_used for _, runner, _ in source.runners]
    held = {
        name: cache.owners_by_block()
        for name, cache in live.active.state.caches.items()
    }
    assert "nothing was computed or copied" in live.fork()
    assert [runner.cache.pool.num_used for _, runner, _ in source.runners] == used
    a, b = live.sides
    assert b.records[: a.place] == a.records[: a.place]
    assert {record.kind for record in b.records[a.place :]} == {
        "fork",
        "hold",
        "close",
    }, "no forward, no growth"
    for name, cache in b.state.caches.items():
        assert {block: len(who) for block, who in cache.owners_by_block().items()} == {
            block: len(who) for block, who in held[name].items()
        }
        for _, runner, recorder in source.runners:
            if recorder.cache == name:
                for block, who in held[name].items():
                    assert runner.cache.pool.refcount(block) == 2 * len(who)


@pytest.mark.parametrize("live", ["lr", "lr+sd"], indirect=True)
def test_both_sides_go_on_alike_until_a_verdict_differs(live: Session) -> None:
    live.go("verdict")
    live.fork()
    live.go("end")
    assert text(live, 0) == text(live, 1) and live.sides[1].over
    steps = [
        [
            (r.data["role"], r.data["node"], r.data["step"])
            for r in side.records
            if r.kind == "written"
        ]
        for side in live.sides
    ]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("live", ["lr", "lr+sd"], indirect=True)
def test_a_forced_what_if_parts_from_the_other_side(live: Session) -> None:
    live.go("verdict")
    state = live.active.state
    node = live.due(live.active)[0]
    live.fork()
    live.force(False, node)
    live.go("end")
    assert text(live, 0) != text(live, 1)
    forced = [
        one
        for one in live.sides[1].records
        if one.kind == "judged" and FORCED in one.data["verdict"]["why"]
    ]
    assert [one.data["node"] for one in forced] == [node]
    assert not any(
        one.kind == "judged" and FORCED in one.data["verdict"]["why"]
        for one in live.sides[0].records
    )
    place = state.nodes[node].index - 1
    whole = [[one.step.text for one in side.state.emitted] for side in live.sides]
    assert whole[0][:place] == whole[1][:place], "nothing before it has changed"
    assert live.drop() and not live.drop()


@pytest.mark.parametrize("live", ["lr", "lr+sd"], indirect=True)
def test_forks_in_the_middle_give_all_blocks_back(live: Session) -> None:
    source = live.active.source
    assert isinstance(source, LiveSource)
    for _ in range(4):
        live.go("verdict")
        live.fork()
        live.go("next")
        live.move("A")
    live.close()
    assert [runner.cache.pool.num_used for _, runner, _ in source.runners] == [0] * len(
        source.runners
    )


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize("live", ["lr+sd"], indirect=True)
def test_the_tokens_of_a_node_are_those_of_its_step(live: Session, role: str) -> None:
    live.go("verdict")
    side = live.active
    child = side.state.nodes[live.due(side)[0]]
    node, step = (
        (child.name, child.draft)
        if role == "draft"
        else (child.parent or "", side.state.nodes[child.parent or ""].target)
    )
    assert step is not None
    kept = [
        row
        for row in token_rows(side, role, node)
        if row[5] in ("", "✓ stays", "✓ after the draft tokens")
    ]
    pieces = [row[0] for row in kept][: len(step.tokens)]
    assert "".join(pieces) == step.text
    for _, came, p, q, accept, _ in kept:
        assert p is not None and 0 < p <= 1
        if came == "proposed":
            assert q is not None and accept == pytest.approx(
                min(1.0, p / q), abs=1e-5
            ), "rule reject"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "ar"}, "no draft steps"),
        ({"mode": "sd"}, "no draft steps"),
        ({"driver": "overlapped"}, "only 'lockstep'"),
    ],
)
def test_what_cannot_be_stepped_live_is_said(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(StepperError, match=message):
        live_session(**options)
