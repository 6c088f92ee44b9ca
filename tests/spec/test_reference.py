"""Algorithm 1 on real (random) models: what it emits, what it costs, and that it leaves nothing
behind.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_kit import EOS, PROMPT, all_released, random_model, rows_per_forward, tokens_of, writer

from lr.errors import OutOfBlocks
from lr.spec.reference import lookahead
from lr.spec.verifiers.base import Pair, Verifier
from lr.spec.verifiers.simple import ExactVerifier
from lr.spec.write import Limits, decode_plainly
from lr.trace import StepWritten, Trace, summarise
from lr.types import EmittedStep, Finish, Origin, Role, Verdict

MODELS = {seed: random_model(seed) for seed in range(4)}


class Scripted(Verifier):
    """A verifier that says what it is told, and remembers what it was asked."""

    name = "scripted"

    def __init__(self, answers: Sequence[bool]) -> None:
        self.answers = list(answers)
        self.asked: list[Pair] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked += pairs
        return [Verdict(self.answers.pop(0) if self.answers else True, "scripted") for _ in pairs]


@settings(max_examples=60, deadline=None)
@given(
    models=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    depth=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    max_step_tokens=st.integers(1, 12),
    ignore=st.booleans(),
)
def test_exact_verification_emits_plain_decoding(
    models: tuple[int, int],
    depth: int,
    seed: int,
    temperature: float,
    max_step_tokens: int,
    ignore: bool,
) -> None:
    """The end-to-end oracle: any depth, any draft, any limits, and at every temperature, because
    draws are keyed.
    """
    limits = Limits(60, max_step_tokens, ignore)
    how = {"temperature": temperature, "seed": seed}
    plain = writer(Role.TARGET, MODELS[models[0]], **how)
    expected = list(decode_plainly(PROMPT, plain, limits))
    target, draft = (
        writer(Role.TARGET, MODELS[models[0]], **how),
        writer(Role.DRAFT, MODELS[models[1]], **how),
    )
    emitted = list(lookahead(PROMPT, target, draft, ExactVerifier(), limits, depth))
    assert [e.step for e in emitted] == [e.step for e in expected]
    assert [e.index for e in emitted] == list(range(len(emitted)))
    assert all_released(plain, target, draft)


@pytest.mark.parametrize("depth", range(1, 7))
def test_greedy_with_the_targets_twin_as_draft_accepts_everything(depth: int) -> None:
    target, draft = writer(Role.TARGET, MODELS[1]), writer(Role.DRAFT, MODELS[1])
    limits = Limits(80, 6, ignore_half_sentence=False)
    emitted = list(lookahead(PROMPT, target, draft, ExactVerifier(), limits, depth))
    assert tokens_of(emitted) == tokens_of(
        decode_plainly(PROMPT, writer(Role.TARGET, MODELS[1]), limits)
    )
    uncut = [e for e in emitted if e.step.finish is not Finish.LENGTH]
    assert all(e.origin in (Origin.ACCEPTED, Origin.BONUS) for e in uncut)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_one_target_batch_per_cycle(depth: int) -> None:
    """Per cycle: one forward of the trunk, then decoding of at most g + 1 rows; the first of those
    forwards has all unfinished rows.
    """
    trace = Trace()
    target = writer(Role.TARGET, MODELS[0], temperature=1.5, trace=trace)
    draft = writer(Role.DRAFT, MODELS[2], temperature=1.5, trace=trace)
    limits = Limits(200, 40)
    emitted = list(lookahead(PROMPT, target, draft, Scripted([True, False] * 50), limits, depth))
    assert len(emitted) > 3
    events = [event for _, event in trace.events]
    forwards = rows_per_forward(trace, Role.TARGET)
    cycles: list[tuple[int, list[int]]] = []  # (drafts written, lengths of the target's steps)
    drafts, steps = 0, []
    for event in events:
        if not isinstance(event, StepWritten):
            continue
        if event.role is Role.DRAFT:
            if steps:
                cycles.append((drafts, steps))
                drafts, steps = 0, []
            drafts += 1
        else:
            steps.append(len(event.step.tokens))
    cycles.append((drafts, steps))
    for g, lengths in cycles:
        assert len(lengths) in (
            g,
            g + 1,
        )  # no row behind a draft that ends the text, was cut or used the budget up
        trunk, *decoding = forwards[: max(lengths)]
        assert trunk[0] == 1
        assert [rows for rows, _ in decoding] == [
            sum(length > t for length in lengths) for t in range(1, max(lengths))
        ]
        assert all(rows == tokens for rows, tokens in decoding)
        del forwards[: max(lengths)]
    assert not forwards


@pytest.fixture(scope="module")
def clean_seed() -> int:
    """A seed whose first cycle of depth 3 consists of seven steps that all end in a boundary, and
    that goes on after a rejection.
    """
    for seed in range(300):
        trace, _, _ = run_scripted(seed, [True] * 99)
        first = [event for _, event in trace.events if isinstance(event, StepWritten)][:7]
        roles = [w.role for w in first]
        whole = roles == [Role.DRAFT] * 3 + [Role.TARGET] * 4 and all(
            w.step.finish is Finish.BOUNDARY for w in first
        )
        if whole and len(run_scripted(seed, [True, False])[2].asked) > 3:
            return seed
    raise AssertionError("no such seed")


def run_scripted(seed: int, answers: Sequence[bool]) -> tuple[Trace, list[EmittedStep], Scripted]:
    trace, verifier = Trace(), Scripted(answers)
    target = writer(Role.TARGET, MODELS[0], temperature=1.2, seed=seed, trace=trace)
    draft = writer(Role.DRAFT, MODELS[2], temperature=1.2, seed=seed, trace=trace)
    return trace, list(lookahead(PROMPT, target, draft, verifier, Limits(150, 60), 3)), verifier


def test_a_cycle_of_three_drafts_has_four_target_rows_and_a_bonus(clean_seed: int) -> None:
    trace, emitted, verifier = run_scripted(clean_seed, [True] * 99)
    written = [event for _, event in trace.events if isinstance(event, StepWritten)]
    assert [e.origin for e in emitted[:4]] == [Origin.ACCEPTED] * 3 + [Origin.BONUS]
    assert emitted[3].verdict is None
    assert [e.step for e in emitted[:3]] == [w.step for w in written[:3]]
    assert emitted[3].step == written[6].step
    assert verifier.asked[1].prefix == (*PROMPT, *emitted[0].step.tokens)


def test_the_first_rejected_draft_is_replaced_and_later_ones_are_dropped(clean_seed: int) -> None:
    _, emitted, verifier = run_scripted(clean_seed, [True, False])
    assert [e.origin for e in emitted[:2]] == [Origin.ACCEPTED, Origin.CORRECTION]
    assert emitted[1].rejected == verifier.asked[1].draft
    assert emitted[1].step == verifier.asked[1].target
    assert verifier.asked[3].prefix == (
        *PROMPT,
        *tokens_of(emitted[:2]),
    )  # the next cycle starts behind the correction


class Broken(Verifier):
    name = "broken"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize("answer", [RuntimeError("no connection"), None, [], [True], "aligned"])
def test_a_broken_verifier_costs_rejections_never_the_run(answer: object) -> None:
    limits, reasons = Limits(60, 30), []
    for seed in range(4):
        target = writer(Role.TARGET, MODELS[0], temperature=1.2, seed=seed)
        draft = writer(Role.DRAFT, MODELS[2], temperature=1.2, seed=seed)
        emitted = list(lookahead(PROMPT, target, draft, Broken(answer), limits, 2))
        plain = writer(Role.TARGET, MODELS[0], temperature=1.2, seed=seed)
        assert tokens_of(emitted) == tokens_of(decode_plainly(PROMPT, plain, limits))
        reasons += [e.verdict.why for e in emitted if e.verdict is not None]
    assert any("verifier broken" in why for why in reasons)


def test_cut_steps_are_not_accepted_and_their_successor_is_not_drafted() -> None:
    target, draft = writer(Role.TARGET, MODELS[1]), writer(Role.DRAFT, MODELS[1])
    emitted = list(lookahead(PROMPT, target, draft, ExactVerifier(), Limits(12, 2), 3))
    for before, e in zip([None, *emitted[:-1]], emitted, strict=True):
        if e.step.finish is Finish.LENGTH:
            assert e.origin is not Origin.ACCEPTED
        if before is not None and before.step.finish is Finish.LENGTH:
            assert e.origin is Origin.TARGET


def test_nothing_follows_the_end_of_the_text() -> None:
    ended = 0
    for seed in range(30):
        target = writer(Role.TARGET, MODELS[0], temperature=1.2, seed=seed)
        draft = writer(Role.DRAFT, MODELS[2], temperature=1.2, seed=seed)
        emitted = list(lookahead(PROMPT, target, draft, Scripted([True] * 99), Limits(80, 40), 4))
        tokens = tokens_of(emitted)
        assert EOS not in tokens[:-1]
        assert len(tokens) <= 80
        ended += tokens[-1] == EOS
    assert ended > 5


@pytest.mark.parametrize("depth", [1, 3])
def test_the_token_budget_is_met_exactly(depth: int) -> None:
    for budget in range(1, 25):
        target, draft = writer(Role.TARGET, MODELS[3]), writer(Role.DRAFT, MODELS[3])
        emitted = list(lookahead(PROMPT, target, draft, ExactVerifier(), Limits(budget, 7), depth))
        tokens = tokens_of(emitted)
        assert len(tokens) == budget or tokens[-1] == EOS


def test_too_few_blocks_end_the_run_cleanly() -> None:
    target = writer(Role.TARGET, MODELS[0], num_blocks=4)
    draft = writer(Role.DRAFT, MODELS[2])
    with pytest.raises(OutOfBlocks, match="of 4 are free"):
        list(lookahead(PROMPT, target, draft, ExactVerifier(), Limits(100, 30), 4))
    assert all_released(target, draft)


def test_stopping_early_releases_everything() -> None:
    target, draft = writer(Role.TARGET, MODELS[0]), writer(Role.DRAFT, MODELS[2])
    run = lookahead(PROMPT, target, draft, ExactVerifier(), Limits(100, 10), 3)
    next(run)
    run.close()
    assert all_released(target, draft)


def test_accepted_over_judged_is_the_acceptance_rate() -> None:
    """THEORY 2b: drafts behind a rejection are not judged, so accepted / judged estimates alpha
    without bias.
    """
    trace = Trace()
    target = writer(Role.TARGET, MODELS[0], temperature=1.2, seed=5, trace=trace)
    draft = writer(Role.DRAFT, MODELS[2], temperature=1.2, seed=5, trace=trace)
    emitted = list(lookahead(PROMPT, target, draft, Scripted([True, False]), Limits(30, 30), 3))
    stats = summarise(trace)
    judged = [e for e in emitted if e.verdict is not None]
    assert stats.judged == len(judged)
    assert stats.accepted == sum(e.origin is Origin.ACCEPTED for e in emitted)
    assert stats.step_acceptance == stats.accepted / stats.judged
    assert stats.tokens == len(tokens_of(emitted))
