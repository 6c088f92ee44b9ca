"""Planned depth (ours): the planner of `lr plan`, applied to the acceptance seen in
this answer.

    lr calibrate --output mine.json
    lr generate --variant "planned(calibration='mine.json', budget=32)"

Costs are those of the calibration. The acceptance starts with the calibrated rate,
which counts as much as `PRIOR` judged steps, and adds the steps judged in this answer.
It is rounded to 1/20, so there are few plans; each is made when first needed.
`calibration="paper"` uses the paper's tables, for GPUs. `tokens=True`, for mode lr+sd,
lets the planner also set the number of draft tokens within the budget.

One extension point: a controller, a new one for each answer. It uses counts, never
times. In schedules without a barrier it does not change the emitted steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from lr.spec.protocol import Schedule
from lr.spec.variant import Controller, StepStats, Variant
from lr.theory.calibration import Calibration, exactly
from lr.theory.paper import paper_calibration
from lr.theory.planner import Plan, plan
from lr.types import require

PRIOR = 10  # judged steps that the calibrated acceptance is worth
DEEPEST = 16


class Planned(Controller):
    """Depth and draft tokens from the `best` plan for the acceptance so far."""

    def __init__(self, best: Callable[[float], Plan], expected: float) -> None:
        self.best, self.expected = best, expected

    def plan(self, stats: StepStats) -> Plan:
        rate = (stats.accepted + PRIOR * self.expected) / (stats.judged + PRIOR)
        return self.best(round(20 * rate) / 20)

    def depth(self, stats: StepStats) -> int:
        """At least 1, since without drafts no acceptance is seen."""
        return min(DEEPEST, max(1, self.plan(stats).depth))

    def tokens(self, stats: StepStats) -> int | None:
        return self.plan(stats).tokens or None


def planned(
    *, calibration: str = "paper", budget: int = 16, tokens: bool = False
) -> Variant:
    """Use the depth that the planner advises within `budget` token positions per target
    pass."""
    require(1 <= budget <= 64, "budget", budget, "1 to 64 token positions")
    paper = calibration == "paper"
    found = (
        paper_calibration("r1", "GSM8K")
        if paper
        else Calibration.load(Path(calibration))
    )

    @cache
    def best(rate: float) -> Plan:
        plans = plan(replace(found, alpha1=exactly(rate)), budget).plans
        fitting = [
            p
            for p in plans
            if p.depth and p.width == 1 and p.schedule is Schedule.DEPTH
        ]
        return next((p for p in fitting if tokens or not p.tokens), Plan())

    expected = found.alpha1.value
    return Variant(
        controller=lambda: Planned(best, expected), settings={"depth": DEEPEST}
    )
