"""Variants on the simulated clock: closed forms where there are some, and what cannot
be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lr.commands.theory import Theory
from lr.errors import SettingError
from lr.spec.protocol import Place, WorkKind
from lr.spec.variant import StepStats, Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.theory.asynchronous import lr_async_speedup
from lr.theory.formula_vs_simulation import Point, rate
from lr.types import Role, Step, Verdict
from lr.variants.choosers import BestScore
from lr.variants.clock import rows_of, simulated

AT = Point(alpha=0.7, c=0.1, k=3, steps=1500)


class Alone(Verifier):
    """Needs no step of the target."""

    name, requires = "alone", Requires.NOTHING

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [Verdict(True, "never asked here") for _ in pairs]


class One:
    """Looks one step ahead, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[StepStats] = []

    def depth(self, stats: StepStats) -> int:
        self.told.append(stats)
        return 1


class Never:
    """Leaves every step to the target."""

    def who_writes(self, index: int, previous: Step | None) -> Role:
        return Role.TARGET


def speed(variant: Variant, at: Point = AT) -> tuple[float, float]:
    found = rate(simulated(variant, at)[1])
    return found.value, found.error


def test_without_parts_it_is_the_method() -> None:
    value, error = speed(Variant())
    assert abs(value - float(lr_async_speedup(0.7, 3, 0.1, "depth"))) < 5 * error


def test_its_own_costs_count() -> None:
    """Each step: a draft step, its score, and with 1 - alpha a step of the target."""
    settings, costs = {"depth": 1, "schedule": "sync"}, {"score": 0.25, "draft": 0.15}
    value, error = speed(Variant(Alone(), settings=settings, costs=costs))
    assert abs(value - 1 / (0.15 + 0.25 + 0.3)) < 5 * error
    dear, error = speed(
        Variant(Alone(), settings=settings, costs={**costs, "target": 2.0})
    )
    assert abs(dear - 1 / (0.15 + 0.25 + 0.6)) < 5 * error


def test_a_controller_is_told_of_every_step_and_heeded() -> None:
    one = One()
    value = speed(Variant(controller=one))  # the first step is looked at 3 ahead
    assert value[0] == pytest.approx(speed(Variant(), replace(AT, k=1))[0], rel=1e-2)
    assert value[0] < 0.9 * speed(Variant())[0]
    assert [stats.steps for stats in one.told[:4]] == [1, 2, 3, 4]
    assert all(stats.accepted <= stats.judged for stats in one.told)
    assert {stats.draft_entropy for stats in one.told} == {
        None
    }  # there are no distributions
    assert speed(Variant(controller=lambda question: One())) == value


class Narrow(One):
    """One step ahead, and one alternative."""

    def tokens(self, stats: StepStats) -> int | None:
        raise AssertionError("there are no rounds here")

    def width(self, stats: StepStats) -> int | None:
        return 1


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
def test_a_controllers_width_is_heeded(schedule: str) -> None:
    """One alternative each, but for what began before the controller was asked."""
    at = replace(AT, steps=800)
    settings = {"width": 3, "depth": 1, "schedule": schedule}
    for control, width in ((One(), 3), (Narrow(), 1)):
        outcome = simulated(Variant(controller=control, settings=settings), at)[1]
        places = (
            len(outcome.stages) if schedule == "sync" else outcome.steps
        )  # no bonus there
        assert abs(outcome.workers[WorkKind.DRAFT].begun - width * places) <= 6
    alone = simulated(Variant(settings=settings | {"width": 1}), at)[1]
    narrow = simulated(Variant(controller=Narrow(), settings=settings), at)[1]
    assert narrow.acceptance == pytest.approx(alone.acceptance, abs=0.1)


def test_what_a_controller_goes_without_is_said() -> None:
    [(_, plain), (_, said)] = rows_of(["adaptive(most=2, width=2)"], AT)
    assert not plain and "without its may_follow" in said[0]
    assert "without `tokens`, since a step has one token here and entropies" in said[1]


def test_a_router_and_a_chooser_decide() -> None:
    assert speed(Variant(router=Never())) == pytest.approx((1.0, 0.0))
    shown: list[Any] = []

    @dataclass(frozen=True)
    class Watching(BestScore):
        def choose(self, place: Place) -> Any:
            shown.append(super().choose(place))
            assert len(place.pairs) == len(place.verdicts)
            return shown[-1]

    settings = {"width": 3, "depth": 1, "schedule": "sync"}
    simulated(Variant(Alone(), chooser=Watching(), settings=settings), AT)
    assert {0, 1, 2, None} <= set(shown)


def test_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        SettingError, match=r"Variant\.costs is 'judgment', expected one of judge"
    ):
        simulated(Variant(costs={"judgment": 1.0}), AT)
    with pytest.raises(SettingError, match="time >= 0"):
        simulated(Variant(costs={"judge": -1.0}), AT)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        cells[0]: (cells, said) for cells, said in rows_of(["best_of", "lossless"], AT)
    }
    assert list(rows) == ["lr", "best_of", "lossless"]
    assert rows["best_of"][0][-1] == "0.05" and not rows["best_of"][1]
    assert "without its corrector" in rows["lossless"][1][0]
    Theory(variant=("narrowing",), at=Point(steps=400)).run()
    assert "narrowing" in capsys.readouterr().out
    with pytest.raises(SettingError, match="works on tokens"):
        rows_of(["traversal"], AT)
