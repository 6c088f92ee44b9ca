"""Real models whose acceptance is drawn: what comes out follows the rates, whatever the
driver."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest
import torch

from lr import Reasoner
from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.measure.bench.gpu import GpuPlan, time_modes
from lr.measure.bench.report import BenchWay
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
from lr.types import Origin, Role

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
    settings = {"mode": "lr", "max_tokens": 400, "drafter": "ngram"} | changes
    options = GenerateOptions(**settings)  # type: ignore[arg-type]
    judge = verifier or SyntheticVerifier(synthetic)
    return SyntheticAnswer(reasoner.engine, "x" * 20, options, judge).finish()


def chance_of(successes: int, trials: int, p: float) -> float:
    """Two-sided probability bound of so large a deviation (Hoeffding)."""
    return 2 * math.exp(-2 * trials * (successes / trials - p) ** 2)


def test_steps_are_as_long_as_the_synthetic_says(reasoner: Reasoner) -> None:
    result = answer(reasoner, FIXED, max_tokens=160)
    lengths = {(step.author, len(step.tokens)) for step in result.steps[:-1]}
    assert lengths == {(Role.TARGET, 7), (Role.DRAFT, 5)}
    assert len(result.tokens) == 160


def test_lengths_are_a_function_of_the_first_token() -> None:
    synthetic = replace(FIXED, target=Resampled((1.0, 3.0, 9.0)))
    make = pickle.loads(pickle.dumps(synthetic.segmenter(Role.TARGET)))

    def length(first: int, other: int) -> int:
        segmenter, count = make(lambda token: b""), 1
        while not segmenter.feed(first if count == 1 else other):
            count += 1
        return count

    lengths = [length(first, 98) for first in range(60)]
    assert lengths == [length(first, 99) for first in range(60)]
    assert set(lengths) == {1, 3, 9}


@pytest.mark.parametrize("rate", [0.24, 0.5, 0.8])
@pytest.mark.parametrize("size", [STEPS, TOKENS])
def test_the_kept_share_of_any_number_of_places_is_near_the_rate(
    rate: float, size: int
) -> None:
    for seed in range(100):
        stream, kept = Stream.root(seed), 0
        for place in range(5 * size):
            off = abs(kept - place * rate)
            assert off < (1 if place % size == 0 else 1 + size / 4)
            kept += kept_at(stream, rate, size, place)


def test_no_place_differs_and_neighbours_hardly_know_of_each_other() -> None:
    seeds, rate, length = 2000, 0.4, 3 * STEPS
    rows = [
        [kept_at(Stream.root(seed), rate, STEPS, place) for place in range(length)]
        for seed in range(seeds)
    ]
    for place in range(length):
        assert chance_of(sum(row[place] for row in rows), seeds, rate) > 1e-6
    pairs = [row[i] and row[i + 1] for row in rows for i in range(length - 1)]
    correlation = (sum(pairs) / len(pairs) - rate**2) / (rate * (1 - rate))
    assert -1 / (STEPS - 1) - 0.02 < correlation < 0.02


def test_steps_and_tokens_are_drawn_apart(reasoner: Reasoner) -> None:
    def origins(alpha2: float) -> list[Origin]:
        synthetic = Synthetic(0.5, alpha2, Constant(6), Constant(6))
        result = answer(reasoner, synthetic, mode="lr+sd", max_tokens=90)
        return [step.origin for step in result.steps]

    assert origins(0.1) == origins(0.9)
    assert {Origin.ACCEPTED, Origin.CORRECTION} <= set(origins(0.5))


def test_the_answers_of_a_way_keep_the_share_together() -> None:
    synthetic = Synthetic(0.45, 0.5, Constant(6), Constant(6))
    options = GenerateOptions(mode="lr", max_tokens=27, drafter="ngram")
    chosen = [BenchWay("ar", "ar"), BenchWay("lr", "lr"), BenchWay("again", "lr")]
    plan = GpuPlan(options, chosen, synthetic, (1,), prompt=20, repeats=5)
    verifier = SyntheticVerifier(synthetic)
    names = ("dummy:tiny-draft", "dummy:tiny-draft", verifier)
    with Reasoner(*names, dtype=torch.float32) as reasoner:
        _, lookahead, again = time_modes(reasoner, plan)
    drawn = 4 * plan.repeats  # each answer's fifth step is cut, and so rejected
    kept = sum(kept_at(verifier.stream, 0.45, STEPS, place) for place in range(drawn))
    assert lookahead.stats.accepted == again.stats.accepted == kept
    assert lookahead.stats.steps == 5 * plan.repeats
    assert abs(kept - 0.45 * drawn) < 3


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_steps_are_accepted_as_the_synthetic_says(
    reasoner: Reasoner, alpha: float
) -> None:
    synthetic = Synthetic(alpha, 0.0, Constant(2), Constant(2))
    stats = answer(reasoner, synthetic, max_tokens=200).stats
    assert abs(stats.accepted - alpha * stats.judged) < 3 * (0 < alpha < 1) + 1e-9


def test_tokens_are_accepted_as_the_synthetic_says(reasoner: Reasoner) -> None:
    """Of a drafter that always finds some, and of a draft model."""
    synthetic = Synthetic(0.5, 0.7, Constant(60), Constant(60))
    settings = {"mode": "sd", "num_speculative_tokens": 4}
    rounds = answer(reasoner, synthetic, **settings).stats.rounds
    assert chance_of(rounds.accepted, rounds.tried, 0.7) > 1e-6
    sure = replace(synthetic, alpha2=1.0)
    settings |= {"drafter": "draft", "max_tokens": 60}
    stats = answer(reasoner, sure, **settings).stats
    assert stats.draft_passes > 0 and stats.token_acceptance == 1
    with pytest.raises(SettingError, match="chains"):
        answer(reasoner, FIXED, mode="sd", drafter="tree")


def test_the_answer_does_not_depend_on_the_driver(reasoner: Reasoner) -> None:
    synthetic = Synthetic(0.6, 0.6, Resampled((3.0, 8.0, 11.0)), Resampled((2.0, 9.0)))
    with reasoner:
        one, other = (
            answer(reasoner, synthetic, driver=driver, temperature=0.6, max_tokens=200)
            for driver in ("lockstep", "overlapped")
        )
    assert one.tokens == other.tokens
    assert [step.origin for step in one.steps] == [step.origin for step in other.steps]


def test_the_judge_reads_and_decides_nothing(reasoner: Reasoner) -> None:
    model = load_model("dummy:tiny-judge", dtype=torch.float32)
    passes: list[tuple[int, int]] = []
    runner = ModelRunner(
        model, num_blocks=64, observer=lambda b, n, _: passes.append((b, n))
    )
    verifier = SyntheticVerifier(FIXED, runner)
    result = answer(reasoner, FIXED, verifier, max_tokens=100)
    assert passes[0] == (1, len(INSTRUCTIONS))
    assert sum(branches for branches, _ in passes[1:]) >= result.stats.judged > 0
    assert result.tokens == answer(reasoner, FIXED, max_tokens=100).tokens
    assert verifier.prefixes is not None
    verifier.prefixes.close()
    assert runner.cache.pool.num_used == 0


def test_the_rule_has_its_law() -> None:
    rule, proposal = SyntheticRule(0.7), Proposal.chain((1, 2, 3))
    outcomes = rule.outcomes(torch.eye(4), proposal)
    assert [o.probability for o in outcomes] == pytest.approx([0.3, 0.21, 0.147, 0.343])
    counts = [0] * 4
    for seed in range(4000):
        draws = [Draws(Stream.root(seed), 0)]
        [decision] = rule.verify(torch.eye(4), [proposal], draws)
        counts[len(decision.nodes)] += 1
        assert decision.token == len(decision.nodes)  # the target's own draw there
    for outcome, count in zip(outcomes, counts, strict=True):
        assert chance_of(count, 4000, outcome.probability) > 1e-6


def test_an_impossible_rate_is_refused() -> None:
    with pytest.raises(SettingError, match="alpha1"):
        Synthetic(1.5, 0.5)
