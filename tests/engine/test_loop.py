"""The scheduler on real (random) models: the end-to-end oracle, and nothing is left
behind.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_kit import QUESTIONS, ask, emitted, plain, require_clean, toy_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from lr.spec.verifiers.base import ExactVerifier
from lr.types import Role

ENGINE = toy_engine()
SCHEDULES = ("sync", "paper", "depth")
MATCH = {"mode": "lr+sd", "drafter": "ngram", "acceptance": "match"}


@settings(max_examples=40, deadline=None)
@given(
    schedule=st.sampled_from(SCHEDULES),
    depth=st.integers(1, 6),
    width=st.integers(1, 3),
    k=st.sampled_from([0, 1, 3, 6]),
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 999),
    draft_forwards=st.sampled_from([1, 3, 20]),
    rows=st.sampled_from([None, 1, 3]),
    coupling=st.sampled_from(["independent", "shared"]),
)
def test_exact_verification_emits_plain_decoding(
    schedule: str,
    depth: int,
    width: int,
    k: int,
    temperature: float,
    seed: int,
    draft_forwards: int,
    rows: int | None,
    coupling: str,
) -> None:
    """The end-to-end oracle: token for token, whatever the schedule, the width, the
    token level and the pace of the draft."""
    changes: dict[str, Any] = {"temperature": temperature, "seed": seed}
    token_level: dict[str, Any] = MATCH | {"num_speculative_tokens": k} if k else {}
    answer = ask(
        ENGINE,
        verifier=ExactVerifier(),
        schedule=schedule,
        depth=min(depth, 3) if width > 1 else depth,
        width=width,
        draft_forwards=draft_forwards,
        max_target_rows=rows,
        coupling=coupling,
        **changes,
        **token_level,
    )
    steps = emitted(answer)
    assert [step.step for step in steps] == plain(ENGINE, **changes)
    assert [step.index for step in steps] == list(range(len(steps)))


@pytest.mark.parametrize("mode", ["ar", "lr"])
def test_stopping_early_gives_everything_back(mode: str) -> None:
    engine = toy_engine(endless=True)
    roles = [Role.TARGET] if mode == "ar" else list(Role)
    for num_steps in range(4):
        answers = [ask(engine, question, mode=mode) for question in QUESTIONS]
        serving = engine.serve(answers, concurrency=2)
        for _ in range(num_steps):
            next(serving)
        serving.close()
        assert not any(answer.nodes for answer in answers)
        if num_steps:
            assert [len(engine.runners[role].idle) for role in roles] == [1] * len(
                roles
            )
            require_clean(engine, roles)


def test_a_stopped_answer_leaves_the_others_alone() -> None:
    engine = toy_engine(endless=True)
    alone = emitted(ask(engine, QUESTIONS[1]))
    answers = [ask(engine, question) for question in QUESTIONS[:2]]
    for answer, _ in engine.serve(answers, concurrency=2):
        answers[0].stopped = answer is answers[0]
    assert len(answers[0].steps) < 4
    assert answers[1].emitted == alone
    require_clean(engine)


def test_alternatives_have_their_own_noise() -> None:
    for coupling in ("shared", "independent"):
        answer = ask(ENGINE, coupling=coupling)
        plan = answer.draft_plan()
        streams = [plan.stream(3, sibling) for sibling in range(4)]
        assert len(set(streams)) == 4
        target = answer.role_stream(Role.TARGET).fold_in(3)
        assert (streams[0] == target) == (coupling == "shared")
