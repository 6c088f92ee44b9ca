"""The law of an answer, by exploring the scheduler: which verifiers are lossless, and
what a verdict that keeps tokens emits."""

from collections import defaultdict
from functools import cache, partial
from math import exp

import pytest
from law_kit import pair as models_of
from toy_kit import OneByOne

from lr.kvcache.branch import common_length
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.verifiers.base import ExactVerifier, Requires
from lr.theory.step_law import (
    STEP_END,
    draw_step,
    explore,
    largest_difference,
    logs,
    step_law,
)
from lr.types import Finish, Step, Verdict

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


class KeepsWhatIsCommon(OneByOne, ExactVerifier):
    """Exact, and the target continues after the tokens on which both agree."""

    def verdict(self, pair):
        draft, target = pair.draft_step.tokens, pair.target_step.tokens
        keep = 0 if draft == target else common_length(draft, target)
        return Verdict(draft == target, "x", keep=keep)


@pytest.mark.parametrize("verifier", [ExactVerifier(), KeepsWhatIsCommon()])
@pytest.mark.parametrize("config", CONFIGS)
def test_an_exact_verifier_emits_the_targets_law(config, verifier):
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
    return chances(exp(log_ratio(pair.prefix, pair.draft_step)))


def metropolis(pair):
    """That ratio over the one of the target's own step: one move of Metropolis and
    Hastings from a draw of the target, which keeps the target's law."""
    own = log_ratio(pair.prefix, pair.target_step)
    return chances(exp(log_ratio(pair.prefix, pair.draft_step) - own))


@pytest.mark.parametrize("config", CONFIGS[:3])
def test_a_ratio_of_both_steps_is_lossless_and_of_one_is_not(config):
    plain = step_law(ExactVerifier(), P, Q, PLAIN)
    assert largest_difference(step_law(metropolis, P, Q, config), plain) < 1e-12
    assert largest_difference(step_law(one_ratio, P, Q, config), plain) > 1e-3


def residual(text, rejected):
    """(p - q)+ over all steps; a cut draft step is never accepted, so it covers nothing
    of p."""
    limit = LIMITS.step_limit(len(text))
    p, q = (explore(partial(draw_step, model, text, limit)) for model in (P, Q))
    left = {
        step: chance - (step.finish is Finish.BOUNDARY) * min(chance, q[step])
        for step, chance in p.items()
    }
    return {step: weight / sum(left.values()) for step, weight in left.items()}


@pytest.mark.parametrize("schedule", Schedule)
def test_a_correction_from_the_residual_is_lossless(schedule):
    config = SchedulerConfig(LIMITS, schedule, depth=2, needs_target_step=False)
    plain = step_law(ExactVerifier(), P, Q, PLAIN)
    law = step_law(one_ratio, P, Q, config, residual)
    assert largest_difference(law, plain) < 1e-12
    assert largest_difference(step_law(one_ratio, P, Q, config), plain) > 1e-3


class KeepsTheFirst(OneByOne):
    """Keeps the first token of every draft step that it rejects."""

    name = "keeps the first"

    def __init__(self, requires):
        self.requires = requires

    def verdict(self, pair):
        same = pair.draft_step == pair.own_step
        keep = 0 if same else min(1, len(pair.draft_step.tokens) - 1)
        return Verdict(same, "x", keep=keep)


STEPS = [(0,), (1, 0), (1, 1, 0), (1, 1, 1)]  # of at most three tokens; the last is cut


def chance_of(model, tokens):
    """The probability of a first step."""
    return exp(sum(logs(model, (), Step(tokens, Finish.BOUNDARY))))


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("alone", [False, True])
def test_what_is_kept_is_the_drafts_and_the_rest_the_targets(schedule, alone):
    """Against the sum over all draft steps, written down by hand."""
    expected = defaultdict(float)
    for draft in STEPS:
        keep = 0 if draft == STEPS[-1] else min(1, len(draft) - 1)
        after = {s: chance_of(P, s) for s in STEPS if s[:keep] == draft[:keep]}
        for step, weight in after.items():
            expected[step] += chance_of(Q, draft) * weight / sum(after.values())
    requires = Requires.NOTHING if alone else Requires.TARGET_STEP
    limits = Limits(max_tokens=3, max_step_tokens=3)
    config = SchedulerConfig(limits, schedule, depth=1, needs_target_step=not alone)
    first_step = defaultdict(float)
    for text, chance in step_law(KeepsTheFirst(requires), P, Q, config).items():
        end = text.index(STEP_END) + 1 if STEP_END in text else 3
        first_step[text[:end]] += chance
    assert sum(first_step.values()) == pytest.approx(1, abs=1e-12)
    assert largest_difference(first_step, expected) < 1e-12
    plain = {step: chance_of(P, step) for step in STEPS}
    assert largest_difference(first_step, plain) > 1e-3
