"""The overlapped driver emits what lockstep emits, whatever the timing, and gives every
block back.
"""

from contextlib import closing
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_kit import (
    QUESTIONS,
    ToyDraft,
    Trouble,
    ask,
    emitted,
    random_options,
    require_clean,
    toy_engine,
)

from lr.engine.side import DraftSide
from lr.engine.worker import DraftWorker
from lr.spec.protocol import Draft, NodeId
from lr.spec.write import StepWriter
from lr.trace import ForwardPass, Trace
from lr.types import Role

OVERLAPPED = {"driver": "overlapped"}


@pytest.fixture(scope="module")
def process():
    with closing(toy_engine(worker=DraftWorker(ToyDraft()))) as engine:
        yield engine


@pytest.fixture(scope="module")
def thread():
    worker = DraftWorker(ToyDraft(), as_thread=True)
    with closing(toy_engine(worker=worker)) as engine:
        yield engine


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_output_is_that_of_lockstep(process, seed):
    """Tokens, origins, verdicts and rejected rivals."""
    modes = ["lr", "lr+sd"]
    options = random_options(Random(seed), mode=modes, driver=["lockstep"])
    expected = emitted(ask(process, **vars(options)))
    assert emitted(ask(process, **vars(options) | OVERLAPPED)) == expected


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
def test_a_slow_draft_changes_nothing(schedule):
    """The worker sleeps at random before every forward: more than the target's forward
    takes, and much more."""
    changes = {"schedule": schedule, "depth": 3, "seed": 8}
    expected = emitted(ask(toy_engine(), **changes))
    for delay in (0.002, 0.02):
        worker = DraftWorker(ToyDraft(Trouble(delay)), as_thread=True)
        with closing(toy_engine(worker=worker)) as slow:
            assert emitted(ask(slow, **OVERLAPPED, **changes)) == expected


@pytest.mark.parametrize("stop_after", [0, 1, 3])
@pytest.mark.parametrize("options", [{"mode": "ar"}, {}, OVERLAPPED], ids=str)
def test_stopping_early_leaves_nothing_to_the_next_answer(thread, stop_after, options):
    """The worker is strict: it would not answer again after a loop that left something
    in its cache."""
    answers = [ask(thread, question, **options) for question in QUESTIONS]
    serving = thread.serve(answers, concurrency=2)
    for _ in range(stop_after):
        next(serving)
    serving.close()
    begun = [answer for answer in answers if hasattr(answer, "target_side")]
    assert bool(begun) == (stop_after > 0)
    assert not any(answer.target_side.branches for answer in begun)
    require_clean(thread)
    assert emitted(ask(thread, **OVERLAPPED)) == emitted(ask(thread))


def test_a_stopped_answer_leaves_the_others_alone():
    engine = toy_engine(endless=True)
    alone = emitted(ask(engine, QUESTIONS[1]))
    answers = [ask(engine, question) for question in QUESTIONS[:2]]
    for answer, _ in engine.serve(answers, concurrency=2):
        answers[0].stopped = answer is answers[0]
    assert len(answers[0].steps) < 4
    assert answers[1].emitted == alone
    require_clean(engine)


def test_a_step_written_ahead_is_the_one_that_is_asked_for():
    """It is written once, and there are never more branches than the window allows."""
    engine = toy_engine(endless=True)
    answer = ask(engine, depth=3)
    nodes = [NodeId(0, index) for index in range(5)]
    runner = engine.runners[Role.DRAFT].lend(200)
    config = answer.question.writer_config(Role.DRAFT)
    writer = StepWriter(config, runner, engine.codec.token_bytes)

    def written(ahead):
        side = DraftSide(writer, Trace(), answer.question.draft_plan())
        steps = []
        for index in range(3):
            if ahead:
                side.go_on()
            side.carry_out(Draft(nodes[index], (nodes[index + 1],), 14))
            while writer.busy:
                writer.poll()
            steps += [finished.step for finished in side.collect()]
        side.go_on()
        assert not writer.busy  # the window is full
        side.end()
        return steps

    steps = written(ahead=True)
    assert steps == written(ahead=False) and len(steps) == 3
    engine.runners[Role.DRAFT].put_back(runner)
    require_clean(engine, [Role.DRAFT])


def test_the_trace_shows_both_at_work_at_the_same_time(process):
    """Events of both sides stand in the order of their times, and a forward of the
    draft falls into one of the target."""
    for seed in range(20):
        answer = ask(process, seed=seed, max_tokens=60, **OVERLAPPED)
        emitted(answer)
        times = [time for time, _ in answer.trace.events]
        assert times == sorted(times)
        spans = {role: [] for role in Role}
        for time, event in answer.trace.events:
            if isinstance(event, ForwardPass):
                spans[event.role].append((time - event.seconds, time))
        for draft_start, draft_end in spans[Role.DRAFT]:
            for start, end in spans[Role.TARGET]:
                if max(draft_start, start) < min(draft_end, end):
                    return
    pytest.fail("in 20 answers no forward of the draft overlapped one of the target")
