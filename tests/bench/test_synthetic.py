"""Real models whose acceptance is drawn: what comes out follows the rates, whatever the driver."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest
import torch

from lr import Reasoner
from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.lab.bench.synthetic import (
    INSTRUCTIONS,
    Synthetic,
    SyntheticDrafter,
    SyntheticRule,
    SyntheticRun,
    SyntheticVerifier,
)
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.result import Result
from lr.rng import Stream
from lr.spec.acceptance import Draws, Proposal
from lr.theory.calibration import Calibration, exactly
from lr.theory.distributions import Constant, Resampled
from lr.theory.paper import paper_calibration
from lr.types import Role

FIXED = Synthetic(0.5, 0.5, Constant(7), Constant(5))


@pytest.fixture(scope="module")
def reasoner() -> Reasoner:
    return Reasoner("dummy:tiny-draft", "dummy:tiny-draft", "exact", dtype=torch.float32)


def replay(
    reasoner: Reasoner,
    synthetic: Synthetic,
    verifier: SyntheticVerifier | None = None,
    **changes: object,
) -> Result:
    options = GenerateOptions(**{"mode": "lr", "max_tokens": 400, "drafter": "ngram", **changes})  # type: ignore[arg-type]
    judge = verifier or SyntheticVerifier(synthetic)
    return SyntheticRun(reasoner.engine, judge, "x" * 20, options).finish()


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
        segmenter, count = make(lambda token: b""), 1
        while not segmenter.feed(first if count == 1 else 99):
            count += 1
        assert count == segmenter.length(first)
        seen.add(count)
    assert seen == {1, 3, 9}


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_steps_are_accepted_as_the_synthetic_says(reasoner: Reasoner, alpha: float) -> None:
    synthetic = Synthetic(alpha, 0.0, Constant(2), Constant(2))
    stats = replay(reasoner, synthetic, max_tokens=400 if 0 < alpha < 1 else 60).stats
    if 0 < alpha < 1:
        assert chance_of(stats.accepted, stats.judged, alpha) > 1e-6
    else:
        assert stats.step_acceptance == alpha


@pytest.mark.parametrize("mode", ["sd", "lr+sd"])
def test_tokens_are_accepted_as_the_synthetic_says(reasoner: Reasoner, mode: str) -> None:
    synthetic = Synthetic(0.5, 0.7, Constant(60), Constant(60))
    rounds = replay(
        reasoner, synthetic, mode=mode, num_speculative_tokens=4, max_tokens=400
    ).stats.rounds
    assert rounds.conditional_acceptance is not None
    assert chance_of(rounds.accepted, rounds.tried, 0.7) > 1e-6


def test_a_draft_model_guesses_in_earnest_and_the_synthetic_decides(reasoner: Reasoner) -> None:
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
        model, num_blocks=64, observer=lambda branches, tokens, _: seen.append((branches, tokens))
    )
    verifier = SyntheticVerifier(FIXED, runner)
    result = replay(reasoner, FIXED, verifier, max_tokens=100)
    assert seen[0] == (1, INSTRUCTIONS)
    assert sum(branches for branches, _ in seen[1:]) >= result.stats.judged > 0
    assert (
        result.tokens == replay(reasoner, FIXED, max_tokens=100).tokens
    )  # it costs; it does not decide
    for branch in verifier.head:
        runner.close(branch)
    assert runner.cache.pool.num_used == 0


def test_the_rule_has_its_law() -> None:
    rule, proposal = SyntheticRule(0.7), Proposal.chain((1, 2, 3))
    outcomes = rule.outcomes(torch.eye(4), proposal)
    assert [o.probability for o in outcomes] == pytest.approx([0.3, 0.21, 0.147, 0.343])
    counts = [0] * 4
    for seed in range(4000):
        [decision] = rule.verify(torch.eye(4), [proposal], [Draws(Stream.root(seed), 0)])
        counts[len(decision.nodes)] += 1
        assert decision.token == len(
            decision.nodes
        )  # the target's own draw at the place where it stops
    for outcome, count in zip(outcomes, counts, strict=True):
        assert chance_of(count, 4000, outcome.probability) > 1e-6


def test_the_drafter_always_finds_k() -> None:
    assert SyntheticDrafter(10).found(8, 3).tokens == (9, 0, 1)
    assert len(SyntheticDrafter(10).found(8, 0)) == 0


def test_synthetices_from_the_paper_and_from_a_calibration() -> None:
    paper = Synthetic.of_calibration(paper_calibration("qwen3", "GSM8K"))
    assert paper.alpha1 == 0.50 and 0 < paper.alpha2 < 1
    assert "assumed" in str(paper.facts()["target_lengths"])
    found = paper_calibration("r1", "AIME24")
    measured = Calibration(
        **{**vars(found), "alpha1": exactly(0.25), "target_lengths": (3, 5), "draft_lengths": (2,)}
    )
    synthetic = Synthetic.of_calibration(measured)
    assert (synthetic.alpha1, synthetic.target, synthetic.draft) == (
        0.25,
        Resampled((3.0, 5.0)),
        Resampled((2.0,)),
    )
    with pytest.raises(SettingError, match=r"alpha1 is 1.5"):
        Synthetic(1.5, 0.5)
    assert synthetic.segmenter(Role.DRAFT)(lambda token: b"").length(4) == 2
