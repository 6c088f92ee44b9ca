"""Real models whose acceptance is drawn: what comes out follows the rates, whatever the
driver."""

from __future__ import annotations

import math

import pytest
import torch

from lr import Reasoner
from lr.engine.runner import ModelRunner
from lr.measure.bench.synthetic import (
    INSTRUCTIONS,
    STEPS,
    TOKENS,
    Synthetic,
    SyntheticAnswer,
    SyntheticRule,
    SyntheticVerifier,
    kept_at,
)
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.result import Result
from lr.rng import Stream
from lr.spec.proposal import Draws, Proposal
from lr.theory.distributions import Constant, Resampled
from lr.types import Role

FIXED = Synthetic(0.5, 0.5, Constant(7), Constant(5))


@pytest.fixture(scope="module")
def reasoner() -> Reasoner:
    return Reasoner(
        "dummy:tiny-draft", "dummy:tiny-draft", "exact", dtype=torch.float32
    )


def answer(
    reasoner: Reasoner,
    synthetic: Synthetic,
    verifier: SyntheticVerifier | None = None,
    **changes: object,
) -> Result:
    settings = {"mode": "lr", "max_tokens": 160, "drafter": "ngram"} | changes
    options = GenerateOptions(**settings)  # type: ignore[arg-type]
    judge = verifier or SyntheticVerifier(synthetic)
    return SyntheticAnswer(reasoner.engine, "x" * 20, options, judge).finish()


def chance_of(successes: int, trials: int, p: float) -> float:
    """Two-sided probability bound of so large a deviation (Hoeffding)."""
    return 2 * math.exp(-2 * trials * (successes / trials - p) ** 2)


def test_steps_are_as_long_as_the_synthetic_says(reasoner: Reasoner) -> None:
    result = answer(reasoner, FIXED)
    lengths = {(step.author, len(step.tokens)) for step in result.steps[:-1]}
    assert lengths == {(Role.TARGET, 7), (Role.DRAFT, 5)}
    assert len(result.tokens) == 160


@pytest.mark.parametrize("rate", [0.24, 0.8])
@pytest.mark.parametrize("size", [STEPS, TOKENS])
def test_the_kept_share_of_any_number_of_places_is_near_the_rate(
    rate: float, size: int
) -> None:
    for seed in range(100):
        stream, num_kept = Stream.root(seed), 0
        for place in range(5 * size):
            deviation = abs(num_kept - place * rate)
            assert deviation < (1 if place % size == 0 else 1 + size / 4)
            num_kept += kept_at(stream, rate, size, place)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_steps_are_accepted_as_the_synthetic_says(
    reasoner: Reasoner, alpha: float
) -> None:
    synthetic = Synthetic(alpha, 0.0, Constant(2), Constant(2))
    stats = answer(reasoner, synthetic).stats
    assert abs(stats.accepted - alpha * stats.judged) < 3 * (0 < alpha < 1) + 1e-9


def test_tokens_are_accepted_as_the_synthetic_says(reasoner: Reasoner) -> None:
    synthetic = Synthetic(0.5, 0.7, Constant(60), Constant(60))
    settings = {"mode": "sd", "num_speculative_tokens": 4, "max_tokens": 400}
    rounds = answer(reasoner, synthetic, **settings).stats.rounds
    assert chance_of(rounds.accepted, rounds.tried, 0.7) > 1e-6


def test_the_answer_does_not_depend_on_the_driver(reasoner: Reasoner) -> None:
    synthetic = Synthetic(0.6, 0.6, Resampled((3.0, 8.0, 11.0)), Resampled((2.0, 9.0)))
    with reasoner:
        lockstep, overlapped = (
            answer(reasoner, synthetic, driver=driver, temperature=0.6)
            for driver in ("lockstep", "overlapped")
        )
    assert lockstep.tokens == overlapped.tokens


def test_the_judge_reads_and_decides_nothing(reasoner: Reasoner) -> None:
    model = load_model("dummy:tiny-judge", dtype=torch.float32)
    passes: list[tuple[int, int]] = []
    runner = ModelRunner(
        model, num_blocks=64, observer=lambda b, n, _: passes.append((b, n))
    )
    result = answer(reasoner, FIXED, SyntheticVerifier(FIXED, runner))
    assert sum(branches for branches, _ in passes) >= result.stats.judged > 0
    # The instructions are read with the first pairs and stay.
    assert passes[0][1] > passes[0][0] * len(INSTRUCTIONS)
    assert all(tokens < rows * len(INSTRUCTIONS) for rows, tokens in passes[1:])
    assert result.tokens == answer(reasoner, FIXED).tokens


def test_the_rule_has_its_law() -> None:
    rule, proposal = SyntheticRule(0.7), Proposal.chain((1, 2, 3))
    outcomes = rule.outcomes(torch.eye(4), proposal)
    counts = [0] * 4
    for seed in range(4000):
        draws = [Draws(Stream.root(seed), 0)]
        [decision] = rule.verify(torch.eye(4), [proposal], draws)
        counts[len(decision.nodes)] += 1
        assert decision.token == len(decision.nodes)  # the target's own draw there
    for outcome, count in zip(outcomes, counts, strict=True):
        assert chance_of(count, 4000, outcome.probability) > 1e-6
