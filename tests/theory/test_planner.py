"""The planner against brute force and against the clock; the paper's tables, fitted;
GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from lr.rng import mix64
from lr.spec.protocol import Schedule
from lr.theory.acceptance import beta_width_acceptance, width_acceptance
from lr.theory.calibration import Calibration, exactly
from lr.theory.distributions import BetaSiblings
from lr.theory.domain import DomainError
from lr.theory.hybrid import best_split
from lr.theory.paper import (
    DATASETS,
    TABLE_1,
    TABLE_3,
    WIDTHS,
    fit_speedups,
    fit_width,
    paper_calibration,
)
from lr.theory.planner import PLAIN, compare, pass_time, plan, share_from, simulated
from lr.theory.predicted import siblings
from lr.theory.synchronous import lr_sync_cycle_speedup, sd_speedup


def world(c1: float = 0.2, lookup: bool = True, **changes: float) -> Calibration:
    """A target step of one token takes 1, a draft step c1, further rows and verdicts
    nothing.

    `lookup`: draft tokens are free. `changes`: of the paper's R1 pair on GSM8K.
    """
    free = dict.fromkeys(("target_row", "target_token", "verdict"), exactly(0.0))
    given = {name: exactly(value) for name, value in changes.items()}
    found = replace(paper_calibration(), draft_first=exactly(c1), lookup=lookup)
    return replace(found, **{**free, **given})


def test_table_1_fitted() -> None:
    """A fit: c = 0.20, v = 0.28 (R1) and c = 0.41, v = 0.22 (Qwen3) explain the seven
    speedups to 0.09; v = 0 explains none of them.
    """
    for pair, c, v, r_squared in (
        ("r1", 0.199, 0.284, 0.914),
        ("qwen3", 0.406, 0.217, 0.753),
    ):
        found = fit_speedups(TABLE_1[pair])
        assert (found.c, found.v, found.r_squared) == pytest.approx(
            (c, v, r_squared), abs=1e-3
        )
        alpha, printed = (
            np.array(TABLE_1[pair].acceptance),
            np.array(TABLE_1[pair].lookahead),
        )
        assert np.array(found.predicted) == pytest.approx(printed, abs=0.09)
        needed = (
            1 / printed - (1 - alpha)
        ) / alpha  # c that S1 needs with v = 0, per data set
        assert np.ptp(needed) > 0.2


def test_the_fit_finds_the_least_squares() -> None:
    """Against a grid around it."""
    found = fit_speedups(TABLE_1["r1"])
    alpha, printed = (
        np.array(TABLE_1["r1"].acceptance),
        np.array(TABLE_1["r1"].lookahead),
    )

    def error(c: float, v: float) -> float:
        return float(np.sum((1 / ((1 + v) * (1 - alpha) + c * alpha) - printed) ** 2))

    best = error(found.c, found.v)
    assert all(
        error(found.c + dc, found.v + dv) > best
        for dc in (-0.01, 0, 0.01)
        for dv in (-0.01, 0, 0.01)
        if dc or dv
    )


def test_table_3_needs_correlated_siblings() -> None:
    """Beta fits to 0.02; independence is off by up to 0.3, and by more the more
    alternatives there are.
    """
    for row, p, q in zip(
        TABLE_3, (0.35, 0.28, 0.36, 0.23), (0.20, 0.205, 0.41, 0.274), strict=True
    ):
        found = fit_width(row)
        assert (found.p, found.q) == pytest.approx((p, q), abs=6e-3)
        assert found.predicted == pytest.approx(row.acceptance, abs=0.02)
        independent = np.array(
            [width_acceptance(row.acceptance[0], w) for w in WIDTHS]
        ) - np.array(row.acceptance)
        assert np.all(np.diff(independent[:3]) > 0) and independent.max() > 0.15
        assert 1.38 < found.base_time < 1.44 and 0.008 < found.per_row < 0.014


def test_siblings_of_a_calibration() -> None:
    """Beta(p, q) has mean alpha1, and gives the second chance that was measured."""
    p, q = siblings(0.6, 0.2)
    assert p / (p + q) == pytest.approx(0.6)
    assert beta_width_acceptance(p, q, 2) == pytest.approx(0.6 + 0.4 * 0.2)
    p, q = siblings(0.6, 0.6)
    assert beta_width_acceptance(p, q, 2) == pytest.approx(
        width_acceptance(0.6, 2), abs=1e-5
    )


def test_siblings_that_are_all_alike_are_drawn_at_their_rate() -> None:
    """Greedy ones are. For smaller p and q the standard library draws 0 half of the
    time."""
    alike = BetaSiblings(*siblings(0.86, 0.0))
    drawn = fmean(alike.equivalent(0, mix64(i), mix64(-i)) for i in range(4000))
    assert drawn == pytest.approx(0.86, abs=0.025)


@pytest.mark.parametrize("budget", [4, 8, 16])
def test_with_a_budget_of_rows_alone_the_plan_is_the_best_split(budget: int) -> None:
    """Where tokens cannot help (alpha2 = 0), sync only, W = 1: the best number of
    drafts by trying all of them.
    """
    found = world(alpha1=0.7, c1=0.15, alpha2=0.0, second_chance=0.0)
    sync = [
        p
        for p in plan(found, budget).plans
        if p.schedule is Schedule.SYNC and p.width == 1 and p.depth and not p.tokens
    ]
    best = max(sync, key=lambda p: p.speedup)
    tried = {g: float(lr_sync_cycle_speedup(0.7, g, 0.15)) for g in range(1, budget)}
    assert best.depth == max(tried, key=tried.__getitem__)
    assert best.speedup == pytest.approx(tried[best.depth])
    assert best.speedup == pytest.approx(
        best_split(0.7, 0.0, 0.15, 0.1, budget, "sync").speedup
    )


def test_plans_fit_the_budget_and_are_in_order() -> None:
    for budget in (1, 2, 5, 16, 40):
        advice = plan(paper_calibration(), budget)
        assert all(p.positions <= budget for p in advice.plans)
        assert list(advice.plans) == sorted(advice.plans, key=lambda p: -p.speedup)
    assert plan(paper_calibration(), 1).best is PLAIN


def test_predicted_plans_run_as_fast_as_predicted() -> None:
    """Free batches: the closed form is exact and the clock agrees within its error
    (2000 steps, 6 standard errors: about 12 %).
    """
    found = world(alpha1=0.7, c1=0.15, alpha2=0.5, second_chance=0.3)
    kinds = {
        (p.schedule, p.width): p
        for p in reversed(plan(found, 12).plans)
        if p.depth and p.width <= 2
    }
    assert len(kinds) == 6
    for best in kinds.values():
        assert simulated(found, best) == pytest.approx(best.speedup, rel=0.12)


def test_when_not_to_speculate() -> None:
    """Drafts that are never accepted, or that cost as much as the target's: plain
    decoding."""
    assert plan(world(alpha1=0.0, alpha2=0.0, second_chance=0.0), 16).best is PLAIN
    useless = plan(
        world(alpha1=0.3, c1=0.98, alpha2=0.05, lookup=False, second_chance=0.0), 16
    )
    assert useless.best is PLAIN
    assert (
        plan(world(alpha1=0.0, alpha2=0.8, second_chance=0.0), 16).best.depth == 0
    )  # tokens alone


def test_when_width_pays() -> None:
    """Independent alternatives in free batches pay; alternatives that are all alike
    never do."""
    assert plan(world(alpha1=0.5, second_chance=0.5, alpha2=0.0), 64).width_gain > 1.05
    assert plan(world(alpha1=0.5, second_chance=0.0, alpha2=0.0), 64).width_gain < 1.001


def test_the_runner_up_is_of_another_kind() -> None:
    advice = plan(paper_calibration(), 16)
    best, second = advice.plans[0], advice.runner_up
    assert (best.schedule, best.width, best.tokens > 0) != (
        second.schedule,
        second.width,
        second.tokens > 0,
    )
    assert second.speedup <= best.speedup
    assert "depth" in best.name and PLAIN.name == "plain decoding"


@pytest.mark.parametrize("pair", TABLE_1)
def test_calibrations_from_the_paper(pair: str) -> None:
    for dataset, acceptance, tokens in zip(
        DATASETS, TABLE_1[pair].acceptance, TABLE_1[pair].tokens, strict=True
    ):
        found = paper_calibration(pair, dataset)
        assert found.alpha1.value == acceptance
        assert sd_speedup(found.alpha2.value, 8, 0.0) == pytest.approx(tokens, abs=1e-9)
        assert "fitted" in found.conditions
    for wrong in (("r2", "GSM8K"), (pair, "MNIST")):
        with pytest.raises(DomainError):
            paper_calibration(*wrong)


def test_gpus() -> None:
    """s = 0.1: 4 GPUs take 0.325 of the time. A useless draft is not worth a GPU; a
    good one beside 7 of 8 is.
    """
    assert pass_time(4) == pytest.approx(0.325) and pass_time(1, 0.3) == 1.0
    assert share_from(1, 4, 1 / 0.325) == pytest.approx(0.1)
    assert share_from(2, 8, pass_time(2, 0.25) / pass_time(8, 0.25)) == pytest.approx(
        0.25
    )
    useless = compare(world(alpha1=0.0, alpha2=0.0, second_chance=0.0), 16, 4)
    assert not useless.speculate and useless.all_for_target == pytest.approx(1 / 0.325)
    assert useless.with_speculation == pytest.approx(1 / pass_time(3))
    good = compare(world(alpha1=0.9, c1=0.05, alpha2=0.0), 16, 8, calibrated_on=4)
    assert good.speculate and math.isclose(
        good.left_for_target, pass_time(4) / pass_time(7)
    )
    for call in (
        lambda: compare(world(), 16, 1),
        lambda: share_from(4, 2, 1.5),
        lambda: share_from(1, 4, 9.0),
    ):
        with pytest.raises(DomainError):
            call()
