"""The law of an answer, by exploring the scheduler: which verifiers are lossless."""

from functools import cache, partial
from math import exp

import pytest
from token_kit import pair as models_of

from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.verifiers.base import ExactVerifier
from lr.theory.step_law import (
    explore,
    largest_difference,
    logs,
    step_law,
    write,
)
from lr.types import Finish, Verdict

LIMITS = Limits(max_tokens=3, max_step_tokens=2)
PLAIN = SchedulerConfig(LIMITS, depth=0)
P, Q = map(cache, models_of("random", 0, 2))
CONFIGS = [
    SchedulerConfig(LIMITS, Schedule.SYNC, depth=2),
    SchedulerConfig(LIMITS, Schedule.PAPER, depth=2),
    SchedulerConfig(LIMITS, Schedule.DEPTH, depth=2),
    SchedulerConfig(LIMITS, Schedule.SYNC, depth=1, width=2),
    SchedulerConfig(LIMITS, Schedule.DEPTH, depth=1, width=2),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_an_exact_verifier_emits_the_targets_law(config):
    verifier = ExactVerifier()
    plain = step_law(verifier, P, Q, PLAIN)
    assert sum(plain.values()) == pytest.approx(1, abs=1e-12)
    assert largest_difference(step_law(verifier, P, Q, config), plain) < 1e-12
    assert largest_difference(step_law(verifier, Q, Q, PLAIN), plain) > 1e-3


def chances(ratio):
    accepted = min(1.0, ratio)
    return {Verdict(True, "x"): accepted, Verdict(False, "x"): 1 - accepted}


def log_ratio(text, step):
    """log p / q of a step."""
    return sum(logs(P, text, step)) - sum(logs(Q, text, step))


def one_ratio(pair):
    """min(1, p / q) of the draft step."""
    return chances(exp(log_ratio(pair.prefix, pair.draft)))


def metropolis(pair):
    """That ratio over the one of the target's own step: one move of Metropolis and
    Hastings from a draw of the target, which keeps the target's law."""
    own = log_ratio(pair.prefix, pair.target_step)
    return chances(exp(log_ratio(pair.prefix, pair.draft) - own))


@pytest.mark.parametrize("config", CONFIGS[:3])
def test_a_ratio_of_both_steps_is_lossless_and_of_one_is_not(config):
    plain = step_law(ExactVerifier(), P, Q, PLAIN)
    assert largest_difference(step_law(metropolis, P, Q, config), plain) < 1e-12
    assert largest_difference(step_law(one_ratio, P, Q, config), plain) > 1e-3


def residual(text, rejected):
    """(p - q)+ over all steps; a cut draft step is never accepted, so it covers nothing
    of p."""
    limit = LIMITS.step_limit(len(text))
    p, q = (explore(partial(write, model, text, limit)) for model in (P, Q))
    left = {
        step: chance - (step.finish is Finish.BOUNDARY) * min(chance, q[step])
        for step, chance in p.items()
    }
    return {step: weight / sum(left.values()) for step, weight in left.items()}


@pytest.mark.parametrize("schedule", Schedule)
def test_a_correction_from_the_residual_makes_one_ratio_lossless(schedule):
    config = SchedulerConfig(LIMITS, schedule, depth=2, needs_target_step=False)
    plain = step_law(ExactVerifier(), P, Q, PLAIN)
    law = step_law(one_ratio, P, Q, config, residual)
    assert largest_difference(law, plain) < 1e-12
    assert largest_difference(step_law(one_ratio, P, Q, config), plain) > 1e-3
