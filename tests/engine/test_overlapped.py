"""The overlapped driver emits what lockstep emits, whatever the timing, and gives every
block back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overlapped_kit import ByTokens, Setting, Trouble, all_is_back, parts
from spec_kit import PIECES, answered, decode_plainly, random_model

from lr.engine.drafts import LocalDrafts
from lr.engine.loop import Loop
from lr.engine.request import Request
from lr.engine.runner import ModelRunner
from lr.engine.worker import DraftWorker
from lr.spec.protocol import Limits, NodeId, Schedule, SchedulerConfig
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.verifiers.base import ExactVerifier, Verifier
from lr.spec.write import StepWriter
from lr.trace import ForwardPass, StepWritten, Trace
from lr.types import Coupling, EmittedStep, Finish, Role, Step, Verdict

TARGET, DRAFT = random_model(0), random_model(2)
PROMPTS = [[5, 6, 7], [8, 9], [6, 5, 8, 7, 9, 6]]


@pytest.fixture(scope="module")
def process() -> Iterator[DraftWorker]:
    with closing(DraftWorker(parts(DRAFT), patience=60)) as worker:
        yield worker


@pytest.fixture(scope="module")
def thread() -> Iterator[DraftWorker]:
    with closing(DraftWorker(parts(DRAFT), as_thread=True, patience=60)) as worker:
        yield worker


def lockstep(
    setting: Setting,
    config: SchedulerConfig,
    prompts: list[list[int]],
    verifier: Verifier,
) -> list[list[EmittedStep]]:
    target, trace = setting.target(), Trace()
    runner = ModelRunner(DRAFT, num_blocks=setting.num_blocks, block_size=4)
    draft = StepWriter(setting.writing(), runner, PIECES.__getitem__)
    chains = [
        Request(
            p,
            LookaheadScheduler(config),
            target,
            LocalDrafts(draft, trace),
            setting.streams(target, p),
            trace,
        )
        for p in prompts
    ]
    for _ in answered(Loop(target, draft, verifier, 8), chains):
        pass
    assert draft.runner.cache.pool.num_used == 0  # type: ignore[attr-defined]
    return [chain.emitted for chain in chains]


@settings(max_examples=25, deadline=None)
@given(
    schedule=st.sampled_from(Schedule),
    depth=st.integers(1, 5),
    width=st.integers(1, 3),
    k=st.sampled_from([0, 3]),
    temperature=st.sampled_from([0.0, 0.8, 1.1]),
    seed=st.integers(0, 999),
    rows=st.sampled_from([None, 2]),
    coupling=st.sampled_from(Coupling),
)
def test_the_output_is_that_of_lockstep(
    process: DraftWorker,
    schedule: Schedule,
    depth: int,
    width: int,
    k: int,
    temperature: float,
    seed: int,
    rows: int | None,
    coupling: Coupling,
) -> None:
    """Whole `EmittedStep`s are equal: tokens, origins, verdicts, rejected rivals."""
    setting = Setting(TARGET, temperature, seed, k, coupling)
    config = SchedulerConfig(
        Limits(40, 12), schedule, min(depth, 3) if width > 1 else depth, width, rows
    )
    expected = lockstep(setting, config, PROMPTS[:1], ByTokens())
    assert setting.run(process, config, PROMPTS[:1], ByTokens()) == expected


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_exact_verification_emits_plain_decoding(
    process: DraftWorker, schedule: Schedule, temperature: float
) -> None:
    """The end-to-end oracle."""
    setting = Setting(TARGET, temperature, seed=5, k=2)
    limits = Limits(60, 12)
    [emitted] = setting.run(
        process, SchedulerConfig(limits, schedule, 4, 2), PROMPTS[:1], ExactVerifier()
    )
    plain = Setting(TARGET, temperature, seed=5).target()
    plain.stream = setting.streams(plain, PROMPTS[0]).target
    assert [e.step for e in emitted] == [
        e.step for e in decode_plainly(PROMPTS[0], plain, limits)
    ]


def test_the_next_step_is_written_before_it_is_asked_for() -> None:
    """It is the very step that would have been written, and it is not written twice;
    what nobody asks for is given back with the step that it follows.
    """
    setting = Setting(TARGET, temperature=0.8, endless=True)
    target = setting.target()
    streams = setting.streams(target, PROMPTS[0])

    def side(ahead: Limits | None) -> LocalDrafts:
        runner = ModelRunner(DRAFT, num_blocks=100, block_size=4)
        made = LocalDrafts(
            StepWriter(setting.writing(), runner, PIECES.__getitem__), Trace()
        )
        made.open(NodeId(0, 0), PROMPTS[0], replace(streams, ahead=ahead))
        return made

    def ask(drafts: LocalDrafts, index: int) -> Step:
        """The step to node 0:index + 1."""
        parent, child = NodeId(0, index), NodeId(0, index + 1)
        drafts.draft(parent, 12, [child], {})
        return written(drafts)

    def written(drafts: LocalDrafts) -> Step:
        while drafts.writer.busy:
            drafts.writer.poll()
        [one] = drafts.take()
        return one.step

    plain, early = side(None), side(Limits(200, 12))
    expected = [ask(plain, index) for index in range(4)]
    assert all(step.finish is Finish.BOUNDARY for step in expected[:3])

    assert ask(early, 0) == expected[0]
    for index in (1, 2):
        early.write_ahead()
        assert written(early) == expected[index]
    early.write_ahead()
    assert not early.writer.busy  # two are enough
    assert [event for _, event in early.trace.events] == [
        event for _, event in plain.trace.events
    ][:1]
    parent, child = NodeId(0, 1), NodeId(0, 2)
    early.draft(parent, 12, [child], {})
    assert not early.writer.busy and not early.take()
    assert [event for _, event in early.trace.events] == [
        event for _, event in plain.trace.events
    ][:2]
    early.write_ahead()
    early.close(parent)  # and with it the steps that it leads to, asked for or not
    early.close(child)
    assert not early.writer.busy
    early.end()
    assert not early.writer.runner.cache.pool.num_used  # type: ignore[attr-defined]


@pytest.mark.parametrize("delay", [0.002, 0.02])
@pytest.mark.parametrize("schedule", Schedule)
def test_a_slow_draft_changes_nothing(schedule: Schedule, delay: float) -> None:
    """The worker sleeps at random before every forward: more than the target's forward
    takes, and much more.
    """
    config = SchedulerConfig(Limits(50, 14), schedule, 3, 2)
    expected = lockstep(Setting(TARGET, seed=8), config, PROMPTS, ByTokens())
    for seed in range(2):
        slow = parts(DRAFT, Trouble(delay, seed))
        with closing(DraftWorker(slow, as_thread=True, patience=60)) as worker:
            assert (
                Setting(TARGET, seed=8).run(worker, config, PROMPTS, ByTokens())
                == expected
            )


@pytest.mark.parametrize("schedule", Schedule)
def test_problems_do_not_influence_each_other(
    thread: DraftWorker, schedule: Schedule
) -> None:
    config, setting = (
        SchedulerConfig(Limits(50, 14), schedule, 3),
        Setting(TARGET, seed=4, k=2),
    )
    together = setting.run(thread, config, PROMPTS, ByTokens())
    assert together == [
        setting.run(thread, config, [prompt], ByTokens())[0] for prompt in PROMPTS
    ]


def test_two_runs_at_once_share_a_worker(thread: DraftWorker) -> None:
    """Step by step in turns: each emits what it emits alone."""
    config, settings_ = (
        SchedulerConfig(Limits(60, 14)),
        [Setting(TARGET, seed=seed) for seed in (1, 2)],
    )
    alone = [
        setting.run(thread, config, PROMPTS[:1], ByTokens())[0] for setting in settings_
    ]
    begun = [
        setting.begin(thread, config, PROMPTS[:1], ByTokens()) for setting in settings_
    ]
    runs = [answered(driver, chains) for driver, chains in begun]
    outputs: list[list[EmittedStep]] = [[], []]
    while any(runs[i] is not None and advance(runs[i], outputs[i]) for i in (0, 1)):
        pass
    for i in (0, 1):
        outputs[i] += [emitted for _, emitted in runs[i]]
    assert outputs == alone
    assert all(all_is_back(loop, settings_[0].writing()) for loop, _ in begun)


def advance(
    run: Iterator[tuple[Request, EmittedStep]], output: list[EmittedStep]
) -> bool:
    for _, emitted in run:
        output.append(emitted)
        return True
    return False


def test_many_rounds_leave_the_worker_as_it_was(thread: DraftWorker) -> None:
    """Rejections and late cancellations by the hundred; one cache in the worker all
    along, empty at the end (`Setting.run`).
    """
    setting = Setting(TARGET, temperature=1.3, seed=1, endless=True)
    [emitted] = setting.run(
        thread,
        SchedulerConfig(Limits(450, 8), Schedule.DEPTH, 3, 2),
        PROMPTS[:1],
        ByTokens(),
    )
    assert len(emitted) > 50
    assert len({e.origin for e in emitted}) > 1


@pytest.mark.parametrize("after", [0, 1, 4])
def test_stopping_early_gives_everything_back(thread: DraftWorker, after: int) -> None:
    driver, chains = Setting(TARGET, seed=3, endless=True).begin(
        thread, SchedulerConfig(Limits(60, 14)), PROMPTS, ByTokens()
    )
    steps = answered(driver, chains)
    for _ in range(after):
        next(steps)
    steps.close()
    assert all_is_back(driver, Setting(TARGET).writing())


def test_the_worker_reads_a_prompt_once(thread: DraftWorker) -> None:
    """A rejected draft leaves what it has read to the node that it began from: every
    later forward of the draft is a short one.
    """
    prompt = [5, 6, 7, 8, 9] * 20
    setting = Setting(TARGET, seed=6, endless=True)
    driver, chains = setting.begin(
        thread, SchedulerConfig(Limits(60, 10), depth=1), [prompt], Never()
    )
    for _ in answered(driver, chains):
        pass
    rows = [
        e.tokens
        for _, e in chains[0].trace.events
        if isinstance(e, ForwardPass) and e.role is Role.DRAFT
    ]
    assert all_is_back(driver, setting.writing())
    assert len(chains[0].emitted) > 3
    assert rows[0] == len(prompt)
    assert max(rows[1:]) < len(prompt) / 2  # a few steps of the target at most


class Never(ByTokens):
    """Rejects everything."""

    def judge(self, pairs):  # type: ignore[no-untyped-def]
        return [Verdict(aligned=False, why="never") for _ in pairs]


def test_the_trace_shows_both_at_work_at_the_same_time(process: DraftWorker) -> None:
    """Events of both sides stand in the order of their times, and a forward of the
    draft falls into one of the target.
    """
    spans = []
    for seed in range(20):
        driver, chains = Setting(TARGET, seed=seed, endless=True).begin(
            process, SchedulerConfig(Limits(60, 14)), PROMPTS, ByTokens()
        )
        for _ in answered(driver, chains):
            pass
        events = chains[0].trace.events
        assert [when for when, _ in events] == sorted(when for when, _ in events)
        assert any(
            isinstance(e, StepWritten) and e.role is Role.DRAFT for _, e in events
        )
        spans += overlaps(events)
        if spans:
            return
    assert spans, "in 20 runs no forward of the draft overlapped one of the target"


def overlaps(events: list) -> list[float]:
    """Seconds for which a forward of the draft and one of the target went on at the
    same time, one number per pair.
    """
    spans = {
        role: [
            (when - e.seconds, when)
            for when, e in events
            if isinstance(e, ForwardPass) and e.role is role
        ]
        for role in Role
    }
    both = [
        (min(a[1], b[1]) - max(a[0], b[0]))
        for a in spans[Role.DRAFT]
        for b in spans[Role.TARGET]
    ]
    return [seconds for seconds in both if seconds > 0]
