"""The scheduler on real (random) models: the end-to-end oracle, many problems at once,
and the survivor law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_kit import KitWriter, answered, decode_plainly, random_model, writer

from lr.engine.drafts import LocalDrafts, Streams
from lr.engine.loop import Loop
from lr.engine.request import Request
from lr.rng import Stream
from lr.spec.acceptance import MatchRule
from lr.spec.drafters import LookupDrafter
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.token_sd import Speculation
from lr.spec.verifiers.base import ExactVerifier, Pair, Verifier
from lr.trace import Trace
from lr.types import Coupling, EmittedStep, Role, Verdict

MODELS = [random_model(seed) for seed in range(4)]
PROMPTS = [[5, 6, 7], [8, 9], [6, 5, 8, 7, 9, 6]]


class ByContent(Verifier):
    """Accepts by a coin that depends on the pair's tokens alone."""

    name = "by content"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [
            Verdict(hash((p.prefix, p.draft.tokens)) % 3 > 0, "by content")
            for p in pairs
        ]


def writers(
    temperature: float, seed: int, k: int = 0, **how: object
) -> tuple[KitWriter, KitWriter]:
    target = writer(Role.TARGET, MODELS[0], temperature=temperature, seed=seed, **how)
    draft = writer(Role.DRAFT, MODELS[2], temperature=temperature, seed=seed, **how)
    for made in (target, draft):
        speculation = Speculation(LookupDrafter(2, 1), MatchRule(), k) if k else None
        made.config = replace(made.config, speculation=speculation)
    return target, draft


def chain(
    config: SchedulerConfig,
    target: KitWriter,
    draft: KitWriter,
    prompt: list[int],
    coupling: Coupling,
) -> Request:
    streams = Streams(
        target.stream.fold_in(str(prompt)), draft.stream.fold_in(str(prompt)), coupling
    )
    trace = Trace()
    return Request(
        prompt,
        LookaheadScheduler(config),
        target,
        LocalDrafts(draft, trace),
        streams,
        trace,
    )


def run(
    config: SchedulerConfig,
    prompts: list[list[int]],
    verifier: Verifier,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    k: int = 0,
    draft_forwards: int = 8,
    coupling: Coupling = Coupling.INDEPENDENT,
) -> list[list[EmittedStep]]:
    target, draft = writers(temperature, seed, k, num_blocks=900)
    chains = [chain(config, target, draft, prompt, coupling) for prompt in prompts]
    for _ in answered(Loop(target, draft, verifier, draft_forwards), chains):
        pass
    for made in (target, draft):
        assert made.live == []
        assert made.runner.cache.pool.num_used == 0  # type: ignore[attr-defined]
    return [c.emitted for c in chains]


def plain(
    prompt: list[int], limits: Limits, temperature: float, seed: int
) -> list[EmittedStep]:
    target, _ = writers(temperature, seed)
    target.stream = target.stream.fold_in(str(prompt))
    return list(decode_plainly(prompt, target, limits))


@settings(max_examples=40, deadline=None)
@given(
    schedule=st.sampled_from(Schedule),
    depth=st.integers(1, 6),
    width=st.integers(1, 3),
    k=st.sampled_from([0, 1, 3, 6]),
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 999),
    draft_forwards=st.sampled_from([1, 3, 20]),
    rows=st.sampled_from([None, 1, 3]),
    coupling=st.sampled_from(Coupling),
)
def test_exact_verification_emits_plain_decoding(
    schedule: Schedule,
    depth: int,
    width: int,
    k: int,
    temperature: float,
    seed: int,
    draft_forwards: int,
    rows: int | None,
    coupling: Coupling,
) -> None:
    """The end-to-end oracle: token for token, whatever the schedule, the width, the
    token level and the pace of the draft.
    """
    limits = Limits(40, 12)
    config = SchedulerConfig(
        limits, schedule, min(depth, 3) if width > 1 else depth, width, rows
    )
    [emitted] = run(
        config,
        PROMPTS[:1],
        ExactVerifier(),
        temperature=temperature,
        seed=seed,
        k=k,
        draft_forwards=draft_forwards,
        coupling=coupling,
    )
    expected = plain(PROMPTS[0], limits, temperature, seed)
    assert [e.step for e in emitted] == [e.step for e in expected]
    assert [e.index for e in emitted] == list(range(len(emitted)))


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_paper_and_depth_emit_the_same_at_every_depth_and_pace(
    width: int, seed: int
) -> None:
    outputs = [
        run(
            SchedulerConfig(Limits(50, 14), schedule, depth, width),
            PROMPTS[:1],
            ByContent(),
            temperature=1.1,
            seed=seed,
            draft_forwards=forwards,
        )
        for schedule in (Schedule.PAPER, Schedule.DEPTH)
        for depth, forwards in ((1, 8), (2, 1), (4, 3))
    ]
    assert all(
        [e.step for e in output[0]] == [e.step for e in outputs[0][0]]
        for output in outputs
    )


@pytest.mark.parametrize("schedule", Schedule)
def test_problems_do_not_influence_each_other(schedule: Schedule) -> None:
    """One driver, three chains in the same forwards: each emits what it emits alone, in
    any order.
    """
    config = SchedulerConfig(Limits(50, 14), schedule, 3)
    together = run(config, PROMPTS, ByContent(), temperature=1.1, seed=4, k=2)
    assert together == [
        run(config, [prompt], ByContent(), temperature=1.1, seed=4, k=2)[0]
        for prompt in PROMPTS
    ]
    assert together[::-1] == run(
        config, PROMPTS[::-1], ByContent(), temperature=1.1, seed=4, k=2
    )


def test_stopping_early_gives_everything_back() -> None:
    target, draft = writers(1.1, 3)
    chains = [
        chain(
            SchedulerConfig(Limits(60, 14), depth=4),
            target,
            draft,
            p,
            Coupling.INDEPENDENT,
        )
        for p in PROMPTS
    ]
    steps = answered(Loop(target, draft, ByContent(), 8), chains)
    next(steps)
    steps.close()
    assert target.live == draft.live == []
    assert target.runner.cache.pool.num_used == draft.runner.cache.pool.num_used == 0


def test_hundreds_of_rounds_leave_the_pool_as_it_was() -> None:
    """Not only is nothing held: the ids that the pool will hand out next are the same,
    and what is held never grows.
    """
    target, draft = writers(1.1, 3)
    pools = [made.runner.cache.pool for made in (target, draft)]  # type: ignore[attr-defined]
    rounds, most = 0, 0
    config = SchedulerConfig(Limits(90, 3), depth=3, width=2)
    while rounds < 300:
        one = chain(config, target, draft, [5, 6 + rounds % 3], Coupling.INDEPENDENT)
        for _ in answered(Loop(target, draft, ByContent(), 8), [one]):
            rounds += 1
            most = max(most, *(pool.num_used for pool in pools))
        assert [pool.num_used for pool in pools] == [0, 0]
    for pool in pools:
        assert sorted(pool.allocate(pool.num_blocks)) == list(range(pool.num_blocks))
        for block in range(pool.num_blocks):
            assert pool.drop(block)
    assert most < 120


def test_alternatives_have_their_own_noise() -> None:
    streams = Streams(Stream.root(1), Stream.root(2), Coupling.SHARED)
    states = {streams.of_draft(3, sibling).state for sibling in range(4)}
    assert len(states) == 4
    assert streams.of_draft(3, 0) == streams.target.fold_in(3)
    apart = Streams(Stream.root(1), Stream.root(2))
    assert apart.of_draft(3, 0) != apart.target.fold_in(3)
