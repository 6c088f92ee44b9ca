"""The stepper without a terminal: forward and back, to a rejection, forced verdicts and
what-ifs, on scripts and on the tiny models.
"""

import pytest
from watch_kit import QUESTION, script_session, scripted, tiny_reasoner

from lr.spec.protocol import Drafted, Emit, Judged, Targeted
from lr.watch.stepper.live import LiveSource
from lr.watch.stepper.session import FORCED, Session, Source, StepperError, is_forced
from lr.watch.trace.file import trace_of
from lr.watch.trace.state import State, apply_event


def live_session(mode="lr", **options):
    chosen = {
        "mode": mode,
        "depth": 3,
        "temperature": 0.6,
        "seed": 1,
        "max_tokens": 60,
    } | options
    return Session(LiveSource(tiny_reasoner(), QUESTION, chosen))


BOTH = pytest.mark.parametrize("live", ["lr", "lr+sd"], indirect=True)


@pytest.fixture
def live(request):
    session = live_session(getattr(request, "param", "lr"))
    yield session
    session.close()


def written_steps(records):
    """What two runs of the same answer have in common, in order."""
    events = [record.event for record in records]
    return [e for e in events if isinstance(e, Drafted | Targeted | Emit | Judged)]


def text(session, side=0):
    return session.sides[side].state.text


def forced(side):
    """The nodes whose verdicts were forced."""
    events = [record.event for record in side.records]
    judged = [event for event in events if isinstance(event, Judged)]
    return [str(event.node) for event in judged if is_forced(event.verdict)]


def test_back_undoes_next_and_nothing_is_made_anew():
    session = script_session(width=2)
    side = session.sides[0]
    stops = [0]
    while session.go("next"):
        stops.append(side.place)
    for stop in reversed(stops[:-1]):
        assert session.go("back")
        assert side.place == stop
    assert not session.go("back")
    assert [side.place for _ in stops[1:] if session.go("next")] == stops[1:]


def test_to_the_next_rejection_and_the_next_step():
    session = script_session()
    side = session.sides[0]
    session.go("step")
    assert text(session) == "A."
    session.to(0)
    session.go("rejection")
    assert text(session) == "A.b."
    assert side.state.root == "2:2"  # the new root is there at once
    assert not side.over
    session.go("rejection")
    assert side.over  # there was one only


def test_a_forced_verdict_changes_the_text_and_is_marked():
    session = script_session()
    session.go("verdict")
    assert session.due(session.active) == ["0:1"]
    session.force(False)
    session.go("end")
    assert text(session) == "a.b.C.D$"
    verdict = session.sides[0].state.emitted[0].verdict
    assert verdict.why == f"{FORCED}; else aligned: the same"
    # The past stays as it was.
    while session.due(session.active) != ["0:1"]:
        session.go("back")
    with pytest.raises(StepperError, match="gone"):
        session.fork()
    with pytest.raises(StepperError, match="already"):
        session.force(True)


@pytest.mark.parametrize("mode", ["lr", "lr+sd"])
def test_live_steps_are_the_events_of_lockstep(mode):
    options = {"mode": mode, "depth": 3, "seed": 1, "max_tokens": 60}
    run = tiny_reasoner().run(QUESTION, detailed=True, **options)
    run.finish()
    source = LiveSource(tiny_reasoner(), QUESTION, options)
    state = State.begin(source.header)
    while source.advance():
        for record in source.records[state.number :]:
            apply_event(state, record)
        # The trace says who holds which block of the caches.
        for name, cache in state.caches.items():
            pool = source.runners[name].cache.pool
            counts = [cache.refcounts[block] for block in range(cache.total)]
            assert counts == [pool.refcount(block) for block in range(cache.total)]
    expected = trace_of(run)
    assert written_steps(expected.records) == written_steps(source.records)
    assert len(source.records) == len(expected.records)


@BOTH
def test_a_fork_computes_nothing_and_copies_nothing(live):
    live.go("verdict")
    source = live.active
    pools = {name: runner.cache.pool for name, runner in source.runners.items()}
    blocks = {name: pool.num_used for name, pool in pools.items()}
    held = {n: c.refcounts for n, c in live.active.state.caches.items()}
    live.fork()
    assert {name: pool.num_used for name, pool in pools.items()} == blocks
    a, b = live.sides
    assert b.records[: a.place] == a.records[: a.place]
    # No forward, no growth:
    kinds = {record.kind for record in b.records[a.place :]}
    assert kinds == {"fork", "hold", "close"}
    for name, cache in b.state.caches.items():
        assert cache.refcounts == held[name]
        for block, count in held[name].items():
            assert pools[name].refcount(block) == 2 * count


@BOTH
def test_a_what_if_goes_on_alike_until_a_verdict_is_forced(live):
    live.go("verdict")
    live.fork()
    live.go("step")
    # Without a forced verdict both sides go on alike.
    assert written_steps(live.sides[0].records) == written_steps(live.sides[1].records)
    live.move("B")
    live.go("verdict")
    node = live.due(live.active)[0]
    before = live.active.state.nodes[node].index - 1
    live.force(False, node)
    live.move("AB")
    live.go("end")
    assert text(live, 0) != text(live, 1)
    assert [forced(side) for side in live.sides] == [[], [node]]
    texts = [[step.step.text for step in side.state.emitted] for side in live.sides]
    assert texts[0][:before] == texts[1][:before]  # nothing before it has changed


@BOTH
def test_forks_in_the_middle_give_all_blocks_back(live):
    source = live.active
    for _ in range(4):
        live.go("verdict")
        live.fork()
        live.go("next")
        live.move("A")
    live.close()
    assert all(runner.cache.pool.num_used == 0 for runner in source.runners.values())


def test_a_recording_is_walked_and_not_changed():
    session = Session(Source(scripted()))
    session.go("verdict")
    with pytest.raises(StepperError, match="live"):
        session.force(False)
    assert len(session.sides) == 1
    session.go("rejection")
    assert not session.active.over
