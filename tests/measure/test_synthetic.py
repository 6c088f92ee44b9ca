"""Real models whose acceptance is drawn: what comes out follows the rates, whatever the
driver."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from lr import Reasoner
from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.measure.bench.gpu import GpuPlan, Peaks, time_modes
from lr.measure.bench.report import BenchWay
from lr.measure.bench.synthetic import (
    INSTRUCTIONS,
    STEPS,
    TOKENS,
    Synthetic,
    SyntheticAnswer,
    SyntheticDrafter,
    SyntheticRule,
    SyntheticVerifier,
    kept_at,
)
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.result import Result
from lr.rng import Stream
from lr.spec.acceptance import Draws, Proposal
from lr.spec.token_sd import Context
from lr.theory.distributions import Constant, Resampled
from lr.theory.paper import paper_calibration
from lr.types import Origin, Role

FIXED = Synthetic(0.5, 0.5, Constant(7), Constant(5))


@pytest.fixture(scope="module")
def reasoner() -> Reasoner:
    return Reasoner(
        "dummy:tiny-draft", "dummy:tiny-draft", "exact", dtype=torch.float32
    )


def replay(
    reasoner: Reasoner,
    synthetic: Synthetic,
    verifier: SyntheticVerifier | None = None,
    **changes: object,
) -> Result:
    options = GenerateOptions(
        **{"mode": "lr", "max_tokens": 400, "drafter": "ngram", **changes}
    )
    judge = verifier or SyntheticVerifier(synthetic)
    return SyntheticAnswer(reasoner.engine, "x" * 20, options, judge).finish()


def chance_of(successes: int, trials: int, p: float) -> float:
    """Two-sided probability bound of so large a deviation (Hoeffding)."""
    return 2 * math.exp(-2 * trials * (successes / trials - p) ** 2)


def test_steps_are_as_long_as_the_synthetic_says(reasoner: Reasoner) -> None:
    result = replay(reasoner, FIXED, max_tokens=160)
    lengths = {(step.author, len(step.tokens)) for step in result.steps[:-1]}
    assert lengths == {(Role.TARGET, 7), (Role.DRAFT, 5)}
    assert len(result.tokens) == 160


def test_lengths_are_a_function_of_the_first_token() -> None:
    synthetic = replace(FIXED, target=Resampled((1.0, 3.0, 9.0)))
    make = pickle.loads(pickle.dumps(synthetic.segmenter(Role.TARGET)))
    seen = set()
    for first in range(60):
        counts = set()
        for other in (98, 99):
            segmenter, count = make(lambda token: b""), 1
            while not segmenter.feed(first if count == 1 else other):
                count += 1
            counts.add(count)
        assert len(counts) == 1
        seen |= counts
    assert seen == {1, 3, 9}


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
    assert {kept_at(Stream.root(1), whole, size, 7) for whole in (0.0, 1.0)} == {
        False,
        True,
    }


def test_no_place_differs_and_neighbours_hardly_know_of_each_other() -> None:
    seeds, rate, length = 3000, 0.4, 3 * STEPS
    rows = [
        [kept_at(Stream.root(seed), rate, STEPS, place) for place in range(length)]
        for seed in range(seeds)
    ]
    for place in range(length):
        assert chance_of(sum(row[place] for row in rows), seeds, rate) > 1e-6
    for lag in (1, 2, 3):
        pairs = [row[i] and row[i + lag] for row in rows for i in range(length - lag)]
        correlation = (sum(pairs) / len(pairs) - rate**2) / (rate * (1 - rate))
        assert -1 / (STEPS - 1) - 0.02 < correlation < 0.02
    longest = max(
        sum(1 for _ in run) for row in rows for kept, run in groupby(row) if kept
    )
    assert longest >= 5, "long runs are there too"


def test_steps_and_tokens_are_drawn_apart(reasoner: Reasoner) -> None:
    def origins(alpha2: float) -> list[Origin]:
        synthetic = Synthetic(0.5, alpha2, Constant(6), Constant(6))
        result = replay(reasoner, synthetic, mode="lr+sd", max_tokens=90)
        return [step.origin for step in result.steps]

    assert origins(0.1) == origins(0.5) == origins(0.9)
    assert {Origin.ACCEPTED, Origin.CORRECTION} <= set(origins(0.5))


def test_the_answers_of_a_way_keep_the_share_together(reasoner: Reasoner) -> None:
    synthetic = Synthetic(0.45, 0.5, Constant(6), Constant(6))
    options = GenerateOptions(
        mode="lr", max_tokens=27, drafter="ngram", temperature=0.6
    )
    ways = (
        BenchWay("ar", "ar", {}),
        BenchWay("lr", "lr", {}),
        BenchWay("lr, again", "lr", {}),
    )
    plan = GpuPlan(options, ways, synthetic, (1,), prompt=20, repeats=5)
    verifier = SyntheticVerifier(synthetic)
    lent = cast("Reasoner", SimpleNamespace(engine=reasoner.engine, verifier=verifier))
    _, lookahead, again = time_modes(lent, plan, (Peaks(1e9, 1e9),) * 2)
    drawn = 4 * plan.repeats  # each answer's fifth step is cut, and so rejected
    kept = sum(kept_at(verifier.stream, 0.45, STEPS, place) for place in range(drawn))
    assert lookahead.stats.accepted == again.stats.accepted == kept
    assert lookahead.stats.steps == 5 * plan.repeats and abs(kept - 0.45 * drawn) < 3


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_steps_are_accepted_as_the_synthetic_says(
    reasoner: Reasoner, alpha: float
) -> None:
    synthetic = Synthetic(alpha, 0.0, Constant(2), Constant(2))
    stats = replay(reasoner, synthetic, max_tokens=400 if 0 < alpha < 1 else 60).stats
    assert abs(stats.accepted - alpha * stats.judged) < 3 * (0 < alpha < 1) + 1e-9


@pytest.mark.parametrize("mode", ["sd", "lr+sd"])
def test_tokens_are_accepted_as_the_synthetic_says(
    reasoner: Reasoner, mode: str
) -> None:
    synthetic = Synthetic(0.5, 0.7, Constant(60), Constant(60))
    rounds = replay(
        reasoner, synthetic, mode=mode, num_speculative_tokens=4, max_tokens=400
    ).stats.rounds
    assert rounds.conditional_acceptance is not None
    assert chance_of(rounds.accepted, rounds.tried, 0.7) > 1e-6


def test_a_draft_model_drafts_in_earnest_and_the_synthetic_decides(
    reasoner: Reasoner,
) -> None:
    how = {"mode": "sd", "drafter": "draft", "max_tokens": 120}
    stats = replay(reasoner, Synthetic(0.5, 1.0, Constant(90)), **how).stats
    assert stats.draft_passes > 0 and stats.token_acceptance == 1
    with pytest.raises(SettingError, match="chains"):
        replay(reasoner, FIXED, mode="sd", drafter="tree")


def test_the_answer_does_not_depend_on_the_driver(reasoner: Reasoner) -> None:
    synthetic = Synthetic(0.6, 0.6, Resampled((3.0, 8.0, 11.0)), Resampled((2.0, 9.0)))
    with reasoner:
        one, other = (
            replay(reasoner, synthetic, driver=driver, temperature=0.6, max_tokens=200)
            for driver in ("lockstep", "overlapped")
        )
    assert one.tokens == other.tokens
    assert [step.origin for step in one.steps] == [step.origin for step in other.steps]


def test_the_judge_reads_and_gives_its_blocks_back(reasoner: Reasoner) -> None:
    model = load_model("dummy:tiny-judge", dtype=torch.float32)
    seen: list[tuple[int, int]] = []
    runner = ModelRunner(
        model,
        num_blocks=64,
        observer=lambda branches, tokens, _: seen.append((branches, tokens)),
    )
    verifier = SyntheticVerifier(FIXED, runner)
    result = replay(reasoner, FIXED, verifier, max_tokens=100)
    assert seen[0] == (1, len(INSTRUCTIONS))
    assert sum(branches for branches, _ in seen[1:]) >= result.stats.judged > 0
    assert (
        result.tokens == replay(reasoner, FIXED, max_tokens=100).tokens
    )  # it costs; it does not decide
    assert verifier.prefixes is not None
    verifier.prefixes.close()
    assert runner.cache.pool.num_used == 0


def test_the_rule_has_its_law() -> None:
    rule, proposal = SyntheticRule(0.7), Proposal.chain((1, 2, 3))
    outcomes = rule.outcomes(torch.eye(4), proposal)
    assert [o.probability for o in outcomes] == pytest.approx([0.3, 0.21, 0.147, 0.343])
    counts = [0] * 4
    for seed in range(4000):
        [decision] = rule.verify(
            torch.eye(4), [proposal], [Draws(Stream.root(seed), 0)]
        )
        counts[len(decision.nodes)] += 1
        assert decision.token == len(
            decision.nodes
        )  # the target's own draw at the place where it stops
    for outcome, count in zip(outcomes, counts, strict=True):
        assert chance_of(count, 4000, outcome.probability) > 1e-6


def test_the_drafter_always_finds_k() -> None:
    asked = [
        cast("Context", SimpleNamespace(tokens=[8], limit=limit)) for limit in (5, 0)
    ]
    one, none = SyntheticDrafter(10).propose(asked, 3)
    assert one.tokens == (9, 0, 1) and len(none) == 0


def test_synthetices_from_the_paper_and_from_a_calibration() -> None:
    paper = Synthetic.of_calibration(paper_calibration("qwen3", "GSM8K"))
    assert paper.alpha1 == 0.50 and 0 < paper.alpha2 < 1
    assert "assumed" in str(paper.facts()["target_lengths"])
    found = paper_calibration("r1", "AIME24")
    measured = replace(found, alpha1=0.25, target_lengths=(3, 5), draft_lengths=(2,))
    synthetic = Synthetic.of_calibration(measured)
    assert (synthetic.alpha1, synthetic.target, synthetic.draft) == (
        0.25,
        Resampled((3.0, 5.0)),
        Resampled((2.0,)),
    )
    with pytest.raises(SettingError, match=r"alpha1 is 1.5"):
        Synthetic(1.5, 0.5)
    segmenter = synthetic.segmenter(Role.DRAFT)(lambda token: b"")
    assert [segmenter.feed(4) for _ in range(2)] == [False, True]
