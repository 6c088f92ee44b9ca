"""The variants end to end on random checkpoints, and the extension points they stand
on: router, controller, a segmenter of one's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoner_kit import write_checkpoint
from scheduler_kit import RandomScript, run_and_check

from lr.errors import ProtocolError, SettingError
from lr.reasoner import Reasoner
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.segmenters import FixedSegmenter
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Requires
from lr.spec.verifiers.named import RandomVerifier, ScoreVerifier
from lr.spec.write import Segmenter
from lr.trace import ForwardPass, Stats, StepWritten
from lr.types import Origin, Role, Step
from lr.variants.confidence_cascade import confidence_cascade
from lr.variants.specreason import TargetFirst, specreason
from lr.watch.scripted import ScriptedRun, newest, shuffled

QUESTION = "How many coins does Ann have?"
HOW = {"segmenter": "fixed", "segment_tokens": 6, "max_tokens": 96, "temperature": 1.0}


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Reasoner:
    folder = tmp_path_factory.mktemp("checkpoints")
    target, draft = (
        write_checkpoint(folder / "target", seed=1, layers=2),
        write_checkpoint(folder / "draft", seed=2),
    )
    return Reasoner(target, draft, "exact", dtype=torch.float64)


def score_of(variant: Variant) -> ScoreVerifier:
    assert isinstance(variant.verifier, ScoreVerifier)
    variant.verifier.least_mass = 0.0  # random models never mean to answer with a digit
    return variant.verifier


def steps_written(result, role: Role) -> list[Step]:  # type: ignore[no-untyped-def]
    return [
        e.step
        for _, e in result.trace.events
        if isinstance(e, StepWritten) and e.role is role
    ]


@pytest.mark.parametrize("threshold", [3.0, 5.0, 7.0])
@pytest.mark.parametrize("depth", [1, 3])
def test_specreason_accepts_from_the_threshold_on_and_else_the_target_writes(
    reasoner: Reasoner, threshold: float, depth: int
) -> None:
    variant = specreason(reasoner, scorer="digits", threshold=threshold)
    assert not score_of(variant).requires & Requires.TARGET_STEP
    result = reasoner.generate(
        QUESTION, variant=variant, depth=depth, schedule="sync", **HOW
    )
    judged = [step for step in result.steps if step.verdict is not None]
    assert len(judged) > 8
    for step in judged:
        assert step.verdict is not None and step.verdict.score is not None
        assert (step.origin is Origin.ACCEPTED) == (step.verdict.score >= threshold)
    own = [step.tokens for step in result.steps if step.origin is not Origin.ACCEPTED]
    assert [step.tokens for step in steps_written(result, Role.TARGET)] == own, (
        "no target step beside an accepted one"
    )


def test_specreason_extremes_are_the_draft_alone_and_the_target_alone(
    reasoner: Reasoner,
) -> None:
    variant = specreason(reasoner, scorer="digits", threshold=0)
    score_of(variant)
    result = reasoner.generate(
        QUESTION, variant=variant, depth=1, schedule="sync", **HOW
    )
    assert {step.origin for step in result.steps} == {Origin.ACCEPTED}
    assert not steps_written(result, Role.TARGET)
    mute = specreason(reasoner, scorer="digits")
    score_of(mute).least_mass = 1.0  # no answer is a score: every step is rejected
    result = reasoner.generate(QUESTION, variant=mute, depth=1, schedule="sync", **HOW)
    assert Origin.ACCEPTED not in {step.origin for step in result.steps}
    assert result.tokens == reasoner.generate(QUESTION, mode="ar", **HOW).tokens


def test_specreason_leaves_the_first_steps_to_the_target(reasoner: Reasoner) -> None:
    variant = specreason(reasoner, scorer="digits", threshold=0, first_steps=3)
    score_of(variant)
    result = reasoner.generate(
        QUESTION, variant=variant, depth=1, schedule="sync", **HOW
    )
    origins = [step.origin for step in result.steps]
    assert (
        origins == [Origin.TARGET] * 3 + [Origin.ACCEPTED] * (len(origins) - 3)
        and len(origins) > 4
    )


def test_the_cascade_asks_the_target_only_where_the_draft_is_unsure(
    reasoner: Reasoner,
) -> None:
    variant = confidence_cascade(
        reasoner, scorer="digits", low=2.0, high=4.96, threshold=5.7
    )
    cascade = variant.verifier
    cheap, expensive = cascade.cheap, cascade.expensive  # type: ignore[union-attr]
    asked: dict[str, list[object]] = {"cheap": [], "expensive": []}
    for name, verifier in (("cheap", cheap), ("expensive", expensive)):
        verifier.least_mass = 0.0
        verifier.judge = watch(verifier.judge, asked[name])
    result = reasoner.generate(
        QUESTION, variant=variant, depth=1, schedule="sync", **HOW
    )
    doubts = [verdict for verdict in asked["cheap"] if 2.0 < verdict.score < 4.96]
    assert 0 < len(doubts) == len(asked["expensive"]) < len(asked["cheap"])
    judged = [step for step in result.steps if step.verdict is not None]
    for step in judged:
        assert step.verdict is not None and step.verdict.score is not None
        least = 4.96 if "is sure" in step.verdict.why else 5.7
        assert (step.origin is Origin.ACCEPTED) == (step.verdict.score >= least)
    own = [step.tokens for step in result.steps if step.origin is not Origin.ACCEPTED]
    assert [step.tokens for step in steps_written(result, Role.TARGET)] == own


def watch(judge: Callable, seen: list[object]) -> Callable:  # type: ignore[type-arg]
    def watched(pairs: list) -> list:  # type: ignore[type-arg]
        verdicts = judge(pairs)
        seen.extend(verdicts)
        return verdicts

    return watched


def test_a_draft_that_is_always_sure_costs_no_target_forward_at_all(
    reasoner: Reasoner,
) -> None:
    variant = confidence_cascade(reasoner, scorer="digits", high=0.0)
    variant.verifier.cheap.least_mass = 0.0  # type: ignore[union-attr]
    result = reasoner.generate(
        QUESTION, variant=variant, depth=1, schedule="sync", **HOW
    )
    assert {step.origin for step in result.steps} == {Origin.ACCEPTED}
    forwards = [
        e
        for _, e in result.trace.events
        if isinstance(e, ForwardPass) and e.role is Role.TARGET
    ]
    assert sum(e.tokens for e in forwards) <= len(result.prompt) + len(result.tokens)


def test_a_cascade_needs_a_draft() -> None:
    with pytest.raises(SettingError, match="the draft is None"):
        confidence_cascade(Reasoner(draft=None))


# The extension points themselves


class EveryOther:
    """The draft tries the even steps only."""

    def who_writes(self, index: int, previous: Step | None) -> Role:
        return Role.DRAFT if index % 2 == 0 else Role.TARGET


class Zigzag:
    """Depths in turn; notes what it was told."""

    def __init__(self) -> None:
        self.seen: list[Stats] = []

    def depth(self, stats: Stats) -> int:
        self.seen.append(stats)
        return (3, 0, 99, 1, -5)[len(self.seen) % 5]


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
@pytest.mark.parametrize(
    "variant", [Variant(router=EveryOther()), Variant(controller=Zigzag())]
)
def test_exact_lookahead_stays_plain_decoding(
    reasoner: Reasoner, schedule: str, variant: Variant
) -> None:
    how = {**HOW, "coupling": "shared"}
    plain = reasoner.generate(QUESTION, mode="ar", **how)
    ahead = reasoner.generate(
        QUESTION, variant=variant, depth=4, schedule=schedule, **how
    )
    assert ahead.tokens == plain.tokens
    if variant.router is not None:
        assert all(
            step.origin in (Origin.TARGET, Origin.BONUS) for step in ahead.steps[1::2]
        )
        assert all(step.verdict is not None for step in ahead.steps[:-1:2])


def test_a_controller_hears_of_every_step(reasoner: Reasoner) -> None:
    control = Zigzag()
    result = reasoner.generate(
        QUESTION, variant=Variant(controller=control), depth=3, **HOW
    )
    assert [stats.steps for stats in control.seen] == [
        n + 1 for n in range(len(result.steps))
    ]


def test_a_controller_that_gives_up_stops_the_drafts(reasoner: Reasoner) -> None:
    class GiveUp:
        def depth(self, stats: Stats) -> int:
            return 0

    verifier = RandomVerifier(0.0, 0)
    result = reasoner.generate(
        QUESTION, variant=Variant(verifier, controller=GiveUp()), depth=2, **HOW
    )
    assert {step.origin for step in result.steps[4:]} == {Origin.TARGET}
    assert result.stats.drafted < len(result.steps)


def test_a_segmenter_of_ones_own(reasoner: Reasoner) -> None:
    def fours(token_bytes: Callable[[int], bytes]) -> Segmenter:
        return FixedSegmenter(token_bytes, 4)

    result = reasoner.generate(
        QUESTION, variant=Variant(segmenter=fours), max_tokens=40, temperature=1.0
    )
    how = {
        "segmenter": "fixed",
        "segment_tokens": 4,
        "max_tokens": 40,
        "temperature": 1.0,
    }
    assert result.tokens == reasoner.generate(QUESTION, mode="ar", **how).tokens
    assert {len(step.tokens) for step in result.steps[:-1]} <= {4, 5}


def test_target_first() -> None:
    assert [TargetFirst(2).who_writes(i, None) for i in range(4)] == [
        Role.TARGET
    ] * 2 + [Role.DRAFT] * 2


CONFIGS = st.builds(
    SchedulerConfig,
    limits=st.builds(
        Limits, max_tokens=st.integers(1, 40), max_step_tokens=st.integers(1, 6)
    ),
    schedule=st.sampled_from(Schedule),
    depth=st.integers(1, 4),
    width=st.sampled_from([1, 2]),
    needs_target_step=st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(
    script=st.builds(RandomScript, seed=st.integers(0, 2**32)),
    config=CONFIGS,
    seed=st.integers(0, 2**32),
)
def test_a_router_keeps_the_output_independent_of_the_order(
    script: RandomScript, config: SchedulerConfig, seed: int
) -> None:
    config = replace(config, router=EveryOther())
    runs = [
        ScriptedRun(config, script, order)
        for order in (newest, shuffled(seed), shuffled(seed + 1))
    ]
    for run in runs:
        run_and_check(run, random.Random(seed))
        assert run.emitted == runs[0].emitted
        assert all(step.verdict is None for step in run.emitted if step.index % 2)


@settings(max_examples=200, deadline=None)
@given(
    script=st.builds(RandomScript, seed=st.integers(0, 2**32)),
    config=CONFIGS,
    seed=st.integers(0, 2**32),
)
def test_changing_depths_change_no_step(
    script: RandomScript, config: SchedulerConfig, seed: int
) -> None:
    """In the schedules without a barrier, whenever the depth changes; a synchronous
    cycle ends elsewhere, but the books stay in order.
    """
    if config.schedule is not Schedule.SYNC:
        still = ScriptedRun(config, script)
        still.run()
    run, chance = ScriptedRun(config, script, shuffled(seed)), random.Random(seed)
    while not run.done:
        run.step()
        run.scheduler.set_depth(chance.randint(1, 4))
        assert len(run.turns) < 10_000
    assert not run.work
    if config.schedule is not Schedule.SYNC:
        assert [(e.step, e.origin) for e in run.emitted] == [
            (e.step, e.origin) for e in still.emitted
        ]


def test_a_depth_that_cannot_be_is_refused() -> None:
    run = ScriptedRun(SchedulerConfig(Limits(9), Schedule.PAPER, 2), RandomScript(0))
    with pytest.raises(SettingError, match="depth is 0"):
        run.scheduler.set_depth(0)


def test_variants_are_short() -> None:
    folder = Path(__file__).parents[2] / "lr" / "variants"
    lengths = {
        path.name: len(path.read_text(encoding="utf-8").splitlines())
        for path in folder.glob("[a-z]*.py")
        if path.name
        not in ("loading.py", "clock.py")  # which load them, and simulate them
    }
    assert len(lengths) >= 9 and max(lengths.values()) <= 80, lengths


class OneAhead(SchedulerConfig):
    """Drafts at the root only, whatever the depth."""

    def drafts_at(self, level: int) -> bool:
        return level == 0


class Deadlock(SchedulerConfig):
    """The target never writes."""

    def targets_at(self, level: int) -> bool:
        return False

    def drafts_at(self, level: int) -> bool:
        return False


def test_a_schedule_of_ones_own(reasoner: Reasoner) -> None:
    """With exact verification every schedule gives the target's answer; this one looks
    one step ahead, so it needs at least as many passes of the target.
    """
    usual = reasoner.generate(QUESTION, mode="lr", depth=4, seed=3, **HOW)
    mine = reasoner.generate(
        QUESTION, mode="lr", depth=4, seed=3, variant=Variant(schedule=OneAhead), **HOW
    )
    assert mine.tokens == usual.tokens
    assert len(steps_written(mine, Role.DRAFT)) <= len(steps_written(usual, Role.DRAFT))
    with pytest.raises(
        ProtocolError, match="Deadlock allows neither drafts nor a target step"
    ):
        reasoner.generate(
            QUESTION, mode="lr", variant=Variant(schedule=Deadlock), **HOW
        )


@pytest.mark.parametrize("wrong", ["exact", RandomVerifier, object()])
def test_what_is_no_verifier_is_refused(reasoner: Reasoner, wrong: object) -> None:
    with pytest.raises(SettingError, match="verifier"):
        reasoner.generate(QUESTION, variant=Variant(verifier=wrong))  # type: ignore[arg-type]
