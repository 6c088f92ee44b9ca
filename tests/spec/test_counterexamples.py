"""Every counterexample fails the test that the real rules pass, by the amount the
collection states.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch
from acceptance_kit import EXACT, pair
from torch import Tensor

from lr.spec.acceptance import RULES, AcceptanceRule, BlockRule
from lr.spec.proposal import ROOT, Proposal
from lr.theory.counterexamples import Counterexample, bias, counterexamples
from lr.theory.exact import (
    certain_drafts,
    context_free,
    drawn_drafts,
    plain_distribution,
    round_distribution,
    total_variation,
)

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
    "three without replacement": partial(
        drawn_drafts, parents=(ROOT,) * 3, replace=False
    ),
}


@pytest.mark.parametrize("one", counterexamples(), ids=lambda one: one.name)
def test_bias_is_as_stated(one: Counterexample) -> None:
    assert bias(one) == pytest.approx(STATED[one.name], abs=5e-4)


@pytest.mark.parametrize("one", counterexamples(), ids=lambda one: one.name)
def test_fails_the_test_of_the_real_rules(one: Counterexample) -> None:
    """With a law that depends on the text, as in `test_acceptance_law.py`: off by far
    more than 1e-12.
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
def test_the_same_measure_finds_nothing_wrong_with_the_real_rules(
    rule: str, drafts: str
) -> None:
    if "three" in drafts and not RULES[rule]().trees:
        return
    honest = Counterexample("honest", "", RULES[rule](), DRAFTERS[drafts])
    assert bias(honest, cases=10) < EXACT


def rounds_distribution(
    rule: AcceptanceRule, p: Tensor, q: Tensor, length: int, *, reuse_noise: bool
) -> Tensor:
    """The distribution [v, ..., v] of the first `length` tokens of rounds of two
    drafts, where p and q [v] do not depend on the text.

    With `reuse_noise` the noise of a draft belongs to its place: a place that is
    drafted again, because the last round was cut before it, gets the same token. That
    is harmless for a rule that never used it, and biased for one that
    `needs_fresh_noise`.
    """
    v = len(p)
    total = torch.zeros([v] * length, dtype=torch.float64)
    rows = p.expand(3, v)

    def go_on(
        text: tuple[int, ...], weight: float, places: tuple[int, ...] | None
    ) -> None:
        if len(text) >= length:
            total[text[:length]] += weight
            return
        drafted = (
            product(range(v), repeat=2)
            if places is None
            else [places[len(text) : len(text) + 2]]
        )
        for drafts in drafted:
            drawn = 1.0 if places is not None else float(q[drafts[0]] * q[drafts[1]])
            for outcome in rule.outcomes(rows, Proposal.chain(drafts, q.expand(2, v))):
                for token, after in enumerate(outcome.next_probs().tolist()):
                    longer = (*text, *drafts[: len(outcome.nodes)], token)
                    go_on(longer, weight * drawn * outcome.probability * after, places)

    for places in product(range(v), repeat=length + 1) if reuse_noise else [None]:
        go_on((), 1.0 if places is None else float(q[list(places)].prod()), places)
    return total


@pytest.mark.parametrize("rule", RULES)
def test_old_noise_in_a_new_round(rule: str) -> None:
    """A draft place that is drawn again with the same noise: harmless unless the rule
    looked after the place where it stopped.
    """
    p = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    q = p.flip(0)
    right = plain_distribution(context_free(p), 4)
    assert (
        total_variation(
            rounds_distribution(RULES[rule](), p, q, 4, reuse_noise=False), right
        )
        < EXACT
    )
    reused = total_variation(
        rounds_distribution(RULES[rule](), p, q, 4, reuse_noise=True), right
    )
    assert (reused > 0.01) == RULES[rule]().needs_fresh_noise
    assert (
        reused == pytest.approx(7 / 108, abs=EXACT)
        if rule == BlockRule.name
        else reused < EXACT
    )
