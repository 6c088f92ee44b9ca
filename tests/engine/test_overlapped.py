"""The overlapped driver emits what lockstep emits, whatever the timing, and gives every
block back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from engine_kit import (
    QUESTIONS,
    ToyDraft,
    Trouble,
    ask,
    emitted,
    require_clean,
    toy_engine,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from lr.engine.engine import Engine
from lr.engine.side import DraftSide
from lr.engine.worker import DraftWorker
from lr.spec.protocol import Draft, Emit, NodeId
from lr.spec.verifiers.base import ExactVerifier
from lr.spec.write import StepWriter
from lr.trace import ForwardPass, Trace
from lr.types import EmittedStep, Finish, Origin, Role, Step

SCHEDULES = ("sync", "paper", "depth")
MATCH = {"mode": "lr+sd", "drafter": "ngram", "acceptance": "match"}
OVERLAPPED = {"driver": "overlapped"}


@pytest.fixture(scope="module")
def process() -> Iterator[Engine]:
    with closing(toy_engine(worker=DraftWorker(ToyDraft()))) as engine:
        yield engine


@pytest.fixture(scope="module")
def thread() -> Iterator[Engine]:
    worker = DraftWorker(ToyDraft(), as_thread=True)
    with closing(toy_engine(worker=worker)) as engine:
        yield engine


@settings(max_examples=25, deadline=None)
@given(
    schedule=st.sampled_from(SCHEDULES),
    depth=st.integers(1, 5),
    width=st.integers(1, 3),
    token_level=st.sampled_from([{}, MATCH]),
    temperature=st.sampled_from([0.0, 0.8, 1.1]),
    seed=st.integers(0, 999),
    rows=st.sampled_from([None, 2]),
    coupling=st.sampled_from(["independent", "shared"]),
)
def test_the_output_is_that_of_lockstep(
    process: Engine, width: int, depth: int, token_level: dict[str, Any], **changes: Any
) -> None:
    """Tokens, origins, verdicts and rejected rivals."""
    changes["max_target_rows"] = changes.pop("rows")
    changes |= token_level
    changes |= {"width": width, "depth": min(depth, 3) if width > 1 else depth}
    expected = emitted(ask(process, **changes))
    assert emitted(ask(process, **OVERLAPPED, **changes)) == expected


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_slow_draft_changes_nothing(schedule: str) -> None:
    """The worker sleeps at random before every forward: more than the target's forward
    takes, and much more."""
    changes: dict[str, Any] = {"schedule": schedule, "depth": 3, "seed": 8}
    expected = emitted(ask(toy_engine(), **changes))
    for delay in (0.002, 0.02):
        worker = DraftWorker(ToyDraft(Trouble(delay)), as_thread=True)
        with closing(toy_engine(worker=worker)) as slow:
            assert emitted(ask(slow, **OVERLAPPED, **changes)) == expected


@pytest.mark.parametrize("stop_after", [0, 1, 3])
def test_stopping_early_leaves_nothing_to_the_next_answer(
    thread: Engine, stop_after: int
) -> None:
    """The worker is strict: it would not answer again after a loop that left something
    in its cache."""
    answers = [ask(thread, question, **OVERLAPPED) for question in QUESTIONS]
    serving = thread.serve(answers, concurrency=2)
    for _ in range(stop_after):
        next(serving)
    serving.close()
    assert emitted(ask(thread, **OVERLAPPED)) == emitted(ask(thread))
    require_clean(thread)


def test_the_next_step_is_written_before_it_is_asked_for() -> None:
    """It is the very step that would have been written, it is not written twice, there
    are never more branches than the window allows, and a correction drops it."""
    engine = toy_engine(endless=True)
    answer = ask(engine, depth=3)
    plan = answer.question.draft_plan()
    nodes = [NodeId(0, index) for index in range(5)]
    runner = engine.runners[Role.DRAFT].lend(200)
    config = answer.question.writer_config(Role.DRAFT)
    writer = StepWriter(config, runner, engine.codec.token_bytes)

    def written(side: DraftSide) -> Step:
        while side.writer.busy:
            side.writer.poll()
        [finished] = side.take()
        return finished.step

    def ask_for(side: DraftSide, index: int) -> None:
        side.carry_out(Draft(nodes[index], (nodes[index + 1],), 14))

    asked = DraftSide(writer, Trace(), plan)
    expected = []
    for index in range(3):
        ask_for(asked, index)
        expected.append(written(asked))
    assert all(step.finish is Finish.BOUNDARY for step in expected)
    early = DraftSide(writer, Trace(), plan)
    ask_for(early, 0)
    assert written(early) == expected[0]
    for index in (1, 2):
        early.go_on()
        ask_for(early, index)  # it is being written already
        assert written(early) == expected[index]
    early.go_on()
    assert not writer.busy  # the window is full
    correction = EmittedStep(0, Step((5,), Finish.BOUNDARY), Origin.CORRECTION)
    early.carry_out(Emit(correction, (), nodes[0], NodeId(1, 1)))
    assert list(early.branches) == [NodeId(1, 1)]
    for side in (asked, early):
        side.end()
    engine.runners[Role.DRAFT].take_back(runner)
    require_clean(engine, [Role.DRAFT])


def test_the_worker_reads_a_prompt_once(thread: Engine) -> None:
    """Every later forward of the draft is a short one, even if all is rejected."""
    answer = ask(
        thread, "abcde" * 20, Never(), depth=1, max_step_tokens=10, **OVERLAPPED
    )
    emitted(answer)
    rows = [
        event.tokens
        for _, event in answer.trace.events
        if isinstance(event, ForwardPass) and event.role is Role.DRAFT
    ]
    assert rows[0] == len(answer.question.prompt) - 1
    assert max(rows[1:]) < 30  # a few steps of the target at most


class Never(ExactVerifier):
    """Rejects everything."""

    def judge(self, pairs):  # type: ignore[no-untyped-def]
        return [type(v)(aligned=False, why="never") for v in super().judge(pairs)]


def test_the_trace_shows_both_at_work_at_the_same_time(process: Engine) -> None:
    """Events of both sides stand in the order of their times, and a forward of the
    draft falls into one of the target."""
    for seed in range(20):
        answer = ask(process, seed=seed, max_tokens=60, **OVERLAPPED)
        emitted(answer)
        times = [time for time, _ in answer.trace.events]
        assert times == sorted(times)
        spans: dict[Role, list[tuple[float, float]]] = {role: [] for role in Role}
        for time, event in answer.trace.events:
            if isinstance(event, ForwardPass):
                spans[event.role].append((time - event.seconds, time))
        for draft_start, draft_end in spans[Role.DRAFT]:
            for start, end in spans[Role.TARGET]:
                if max(draft_start, start) < min(draft_end, end):
                    return
    pytest.fail("in 20 answers no forward of the draft overlapped one of the target")
