"""Every counterexample fails the test that the real rules pass, by the amount the collection
states.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from acceptance_kit import EXACT, pair

from lr.lab import counterexamples as wrong
from lr.lab.counterexamples import Counterexample, bias, counterexamples, rounds_distribution
from lr.lab.exact import (
    certain_drafts,
    context_free,
    drawn_drafts,
    plain_distribution,
    round_distribution,
    total_variation,
)
from lr.spec.acceptance import ROOT
from lr.spec.rules import RULES, BlockRule, choose_rule

STATED = {
    "greedy draft, softmax q in the ratio": 0.302,
    "redraw from p after a rejection": 0.137,
    "unsure drafts dropped unverified": 0.092,
    "unwarped q in the ratio": 0.067,
    "a fresh target sample per candidate": 0.047,
}
"""Mean total variation over 200 random p and q, six tokens."""

DRAFTERS = {
    "drawn": partial(drawn_drafts, parents=(ROOT,)),
    "likeliest": partial(certain_drafts, parents=(ROOT,)),
    "likeliest three": partial(certain_drafts, parents=(ROOT,) * 3),
    "three without replacement": partial(drawn_drafts, parents=(ROOT,) * 3, replace=False),
}


def test_the_collection() -> None:
    assert [one.name for one in counterexamples()] == list(STATED)
    assert list(STATED.values()) == sorted(STATED.values(), reverse=True)
    assert not any(one.lossless for one in counterexamples())


@pytest.mark.parametrize("one", counterexamples(), ids=lambda one: one.name)
def test_bias_is_as_stated(one: Counterexample) -> None:
    assert bias(one) == pytest.approx(STATED[one.name], abs=5e-4)


@pytest.mark.parametrize("one", counterexamples(), ids=lambda one: one.name)
def test_fails_the_test_of_the_real_rules(one: Counterexample) -> None:
    """With a law that depends on the text, as in `test_acceptance_law.py`: off by far more than
    1e-12.
    """
    for seed in range(10):
        model, draft = pair("random", seed, 4)
        target = lambda text: one.warp(model(text))  # noqa: B023, E731
        error = (
            (
                round_distribution(one.rule, target, one.drafts(draft), 2)
                - plain_distribution(target, 2)
            )
            .abs()
            .max()
        )
        if float(error) > 1e-3:
            return
    raise AssertionError("looks right in ten random worlds")


@pytest.mark.parametrize("drafts", DRAFTERS)
@pytest.mark.parametrize("rule", RULES)
def test_the_same_measure_finds_nothing_wrong_with_the_real_rules(rule: str, drafts: str) -> None:
    if "three" in drafts and not choose_rule(rule).trees:
        return
    honest = Counterexample("honest", "", choose_rule(rule), DRAFTERS[drafts])
    assert bias(honest, cases=10) < EXACT


def test_one_fresh_sample_for_one_candidate_is_sample_matching() -> None:
    """The mistake begins with the second candidate."""
    one = Counterexample(
        "one", "", wrong.FreshSamplesRule(), partial(drawn_drafts, parents=wrong.ONE)
    )
    assert bias(one, cases=10) < EXACT


@pytest.mark.parametrize("rule", RULES)
def test_old_noise_in_a_new_round(rule: str) -> None:
    """A draft place that is drawn again with the same noise: harmless unless the rule looked behind
    the place where it stopped.
    """
    p = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    q = p.flip(0)
    right = plain_distribution(context_free(p), 4)
    assert (
        total_variation(rounds_distribution(choose_rule(rule), p, q, 4, reuse_noise=False), right)
        < EXACT
    )
    reused = total_variation(
        rounds_distribution(choose_rule(rule), p, q, 4, reuse_noise=True), right
    )
    assert (reused > 0.01) == choose_rule(rule).needs_fresh_noise
    assert reused == pytest.approx(7 / 108, abs=EXACT) if rule == BlockRule.name else reused < EXACT
