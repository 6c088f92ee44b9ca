"""Real models whose acceptance is drawn: what comes out follows the rates, whatever the
driver."""

import json
import math

import pytest
import torch
from synthetic import (
    DRAWN,
    DRAWN_STEPS,
    DRAWN_TOKENS,
    INSTRUCTIONS,
    Synthetic,
    SyntheticReasoner,
    kept_at,
    main,
)

from lr import Reasoner
from lr.engine.verifiers import VerifierChoice
from lr.rng import Stream
from lr.spec.variant import Variant
from lr.theory.distributions import Constant, Resampled
from lr.types import Role

FIXED = Synthetic(0.5, 0.5, Constant(7))


@pytest.fixture(scope="module")
def reasoner():
    return Reasoner(
        "dummy:tiny-draft", "dummy:tiny-draft", "exact", dtype=torch.float32
    )


def answer(reasoner, synthetic, **changes):
    settings = {"mode": "lr", "max_tokens": 160, "drafter": "ngram"} | changes
    return SyntheticReasoner(reasoner, synthetic).generate("x" * 20, **settings)


def test_steps_are_as_long_as_the_synthetic_says(reasoner):
    result = answer(reasoner, FIXED)
    lengths = {(step.author, len(step.tokens)) for step in result.steps[:-1]}
    assert lengths == {(Role.TARGET, 7), (Role.DRAFT, 7)}
    assert len(result.tokens) == 160


@pytest.mark.parametrize("rate", [0.24, 0.8])
@pytest.mark.parametrize("size", [DRAWN_STEPS, DRAWN_TOKENS])
def test_the_kept_share_of_places_is_near_the_rate(rate, size):
    for seed in range(100):
        stream, num_kept = Stream.root(seed), 0
        for place in range(5 * size):
            deviation = abs(num_kept - place * rate)
            assert deviation < (1 if place % size == 0 else 1 + size / 4)
            num_kept += kept_at(stream, rate, size, place)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_steps_are_accepted_as_the_synthetic_says(reasoner, alpha):
    synthetic = Synthetic(alpha, 0.0, Constant(2))
    stats = answer(reasoner, synthetic).stats
    assert abs(stats.accepted - alpha * stats.judged) < 3 * (0 < alpha < 1) + 1e-9


def test_tokens_are_accepted_as_the_synthetic_says(reasoner):
    synthetic = Synthetic(0.5, 0.7, Constant(60))
    settings = {"mode": "sd", "num_speculative_tokens": 4, "max_tokens": 400}
    rounds = answer(reasoner, synthetic, **settings).stats.rounds
    # Hoeffding: a deviation so large has at most this probability.
    deviation = rounds.accepted / rounds.tried - 0.7
    assert 2 * math.exp(-2 * rounds.tried * deviation**2) > 1e-6


def test_the_answer_does_not_depend_on_the_driver(reasoner):
    synthetic = Synthetic(0.6, 0.6, Resampled((3.0, 8.0, 11.0)))
    with reasoner:
        lockstep, overlapped = (
            answer(reasoner, synthetic, driver=driver, temperature=0.6)
            for driver in ("lockstep", "overlapped")
        )
    assert lockstep.tokens == overlapped.tokens


def test_the_judge_reads_and_decides_nothing(reasoner):
    choice = VerifierChoice("judge", reasoner.codec, "dummy:tiny-judge")
    judge = choice.build(reasoner.engine.target_model)
    passes = []
    judge.prefixes.runner.observer = lambda b, n, _: passes.append((b, n))
    drawn = answer(reasoner, FIXED)
    result = answer(reasoner, FIXED, variant=Variant(verifier=judge))
    assert sum(branches for branches, _ in passes) >= result.stats.judged > 0
    # The instructions are read with the first pairs and stay.
    assert passes[0][1] > passes[0][0] * len(INSTRUCTIONS)
    assert all(tokens < rows * len(INSTRUCTIONS) for rows, tokens in passes[1:])
    assert result.tokens == drawn.tokens


def test_models_without_weights_are_timed_like_others(tmp_path, capsys):
    words = f"--output {tmp_path} --work {tmp_path} --problems 2 --accepted 1 1 "
    words += "--model dummy:tiny-target --draft_model dummy:tiny-draft "
    words += "--verifier exact --prompt_tokens 20 --max_tokens 24 --step_tokens 6"
    main(words.split())
    assert "steps accepted with 1.00" in capsys.readouterr().out
    content = json.loads((tmp_path / "speedup.json").read_text())
    rows = content["rows"]
    assert [row["way"] for row in rows] == list(DRAWN)
    plain, tokens, steps, both = rows
    assert plain["tokens/pass"] == 1.0 and plain["right"] is None
    assert tokens["tokens kept"] == both["tokens kept"] == 1.0
    assert steps["steps kept"] > 0.7, "all but the step that the length cuts"
