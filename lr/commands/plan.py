"""`lr plan`: from what a pair of models can do to how they should be run, and whether a draft is
worth its GPUs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lr.commands.show import console
from lr.errors import SettingError
from lr.types import require

if TYPE_CHECKING:
    from lr.theory.calibration import Calibration
    from lr.theory.gpus import Comparison
    from lr.theory.planner import Advice, Plan


@dataclass(frozen=True)
class PlanRun:
    """Choose schedule, depth, width and draft tokens for a pair of models within a budget of token
    positions per target pass.
    """

    from_: Annotated[str, tyro.conf.arg(name="from")] = "paper"
    """A file that `lr calibrate --output` wrote, or `paper`: the paper's tables (mostly fitted, see
    docs/theory.md).
    """
    budget: int = 16
    """M: token positions per target pass, target rows times (draft tokens + 1)."""
    pair: Literal["r1", "qwen3"] = "r1"
    """With `paper`: which pair of models of Table 1."""
    dataset: str = "GSM8K"
    """With `paper`: which data set of Table 1."""
    gpus: int | None = None
    """Also compare with the same GPUs given wholly to the target's tensor parallelism."""
    calibrated_on: int = 1
    """How many GPUs the target had when it was calibrated."""
    for_draft: int = 1
    """How many of the GPUs draft and judge take."""
    serial: float = 0.1
    """The share of a target pass that more GPUs do not make faster. An assumption; measure
    yours.
    """
    json: Path | None = None
    """Also write the plans to this file."""

    def run(self) -> None:
        from lr.lab.bench.report import write_json
        from lr.theory.gpus import Machine, compare
        from lr.theory.planner import plan, simulated

        require(self.budget >= 1, "budget", self.budget, "a whole number >= 1")
        require(self.budget <= 256, "budget", self.budget, "at most 256: every choice is tried")
        if self.json is not None and not self.json.parent.is_dir():
            raise SettingError(
                f"json is {str(self.json)!r}, but there is no folder {self.json.parent}; create it first."
            )
        found = self._calibration()
        comparison = None
        if self.gpus is not None:
            machine = Machine(self.gpus, self.calibrated_on, self.for_draft, self.serial)
            comparison = compare(found, self.budget, machine)
        advice = plan(found, self.budget)
        shown = [(title, one, simulated(found, one)) for title, one in _chosen(advice)]
        out = console()
        out.print(_table(found, self.budget, shown))
        out.print(*_sentences(found, advice), sep="\n")
        if comparison is not None:
            out.print(_on_gpus(comparison, self.gpus or 0))
        if self.json is not None:
            write_json(_document(found, self.budget, shown, comparison), self.json)

    def _calibration(self) -> Calibration:
        from lr.theory.calibration import Calibration
        from lr.theory.from_paper import paper_calibration

        if self.from_ == "paper":
            return paper_calibration(self.pair, self.dataset)
        return Calibration.load(Path(self.from_))


def _chosen(advice: Advice) -> list[tuple[str, Plan]]:
    """The best, the runner-up, and the best of every kind."""
    kinds = {
        "best": advice.best,
        "runner-up": advice.runner_up,
        "lookahead alone": advice.best_of(lookahead=True, tokens=False),
        "tokens alone": advice.best_of(lookahead=False, tokens=True),
        "width > 1": max(
            (p for p in advice.plans if p.width > 1), key=lambda p: p.speedup, default=None
        ),
    }
    return [(title, one) for title, one in kinds.items() if one is not None]


def _sentences(found: Calibration, advice: Advice) -> list[str]:
    """What the figures mean."""
    from lr.theory.planner import PLAIN

    lines = []
    if advice.best is PLAIN:
        lines.append("Do not speculate: nothing that fits is predicted to gain 2 %.")
    elif not advice.best.depth:
        lines.append("Lookahead does not pay here; token-level speculation alone does.")
    if advice.width_gain > 0:
        gain = advice.width_gain - 1
        pays = "pays" if gain > 0.01 else "does not pay"
        lines.append(
            f"More than one alternative per position {pays}: {gain:+.1%} at best (W > 1 against W = 1)."
        )
    if found.alpha1.value <= found.c1.value:
        lines.append(
            "alpha1 <= c1: synchronous lookahead costs more than it gains, at every depth."
        )
    return lines


def _on_gpus(comparison: Comparison, gpus: int) -> str:
    best = comparison.advice.best
    verdict = "speculate" if comparison.speculate else "give them all to the target"
    return (
        f"{gpus} GPUs, relative to plain decoding as calibrated: all for the target {comparison.all_for_target:.2f}; beside a draft "
        f"{comparison.left_for_target:.2f} plain, {comparison.with_speculation:.2f} with {best.name}. So: {verdict}."
    )


def _table(found: Calibration, budget: int, shown: list[tuple[str, Plan, float]]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, title=f"{found.name}; M = {budget}", title_justify="left"
    )
    table.add_column("")
    table.add_column("plan", no_wrap=True)
    for column in ("rows", "positions", "predicted", "simulated"):
        table.add_column(column, justify="right", no_wrap=True)
    for title, one, clock in shown:
        table.add_row(
            title, one.name, str(one.rows), str(one.positions), f"{one.speedup:.2f}", f"{clock:.2f}"
        )
    return table


def _document(
    found: Calibration,
    budget: int,
    shown: list[tuple[str, Plan, float]],
    comparison: Comparison | None,
) -> dict[str, Any]:
    plans = [
        asdict(one) | {"schedule": one.schedule.value, "title": title, "simulated": clock}
        for title, one, clock in shown
    ]
    document: dict[str, Any] = {"calibration": found.name, "budget": budget, "plans": plans}
    if comparison is not None:
        document["gpus"] = {
            "all_for_target": comparison.all_for_target,
            "left_for_target": comparison.left_for_target,
            "with_speculation": comparison.with_speculation,
            "speculate": comparison.speculate,
        }
    return document
