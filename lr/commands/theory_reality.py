"""`lr theory reality`: predicted speedups beside measured ones, for every way of decoding, with one
refinement of the twin at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from lr.commands.models import ModelChoice
from lr.commands.show import console
from lr.errors import SettingError
from lr.types import require

if TYPE_CHECKING:
    from lr.commands.calibrate import Calibrate
    from lr.reasoner import Reasoner
    from lr.theory.calibration import Calibration
    from lr.theory.observe import Answered, Seen
    from lr.theory.reality import Compared, Way

NOTES = """formula: the closed form. Then the simulated twin, one refinement more in every column: chains that end, recorded step lengths,
batches that are not free, the judge's time, the reading of draft steps, one thread for both models; answers: with the steps, verdicts
and accepted tokens of these very answers. off: last prediction against measurement. ±: standard error over problems."""


@dataclass(frozen=True)
class TheoryReality:
    """Compare what a calibration predicts with what the models do, on other problems than those it
    was made from.
    """

    calibration: Path | None = None
    """A file that `lr calibrate --output` wrote, of the same models on the same machine. None:
    calibrate in the same run, a training problem before every measured one, so that what the
    machine does meanwhile meets both alike."""
    save_calibration: Path | None = None
    """Write the calibration that was made in the same run to this file."""
    problems: int = 16
    """How many held-out problems to solve, in every way."""
    depths: tuple[int, ...] = (1, 2, 4, 8)
    """Lookahead depths."""
    tokens: tuple[int, ...] = (1, 2, 4)
    """Drafted tokens of token-level speculation alone."""
    inner: int = 4
    """Drafted tokens where both are combined; 0: leave that out."""
    schedules: tuple[Literal["sync", "paper", "depth"], ...] = ("sync", "depth")
    """Schedules to try."""
    driver: Literal["lockstep", "overlapped"] = "lockstep"
    """overlapped: the draft in a process of its own; the clock on the wall, and a twin in which the
    models share no thread. Wants a machine with idle cores, and a calibration by the same clock."""
    seed: int = 2
    """Same seed: same answers."""
    clock: Literal["auto", "cpu", "wall"] = "auto"
    """As in `lr calibrate`."""
    json: Path | None = None
    """Also write every figure to this file."""
    figure: Path | None = None
    """Also draw them: to this file and its twin, PNG and SVG. Needs matplotlib (the extra
    `plot`).
    """
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        from lr.lab.bench.report import conditions, write_json
        from lr.theory.calibration import Calibration
        from lr.theory.reality import ladder_of

        self._check()
        given = None if self.calibration is None else Calibration.load(self.calibration)
        rows, found = self._compare(self.models.load(needs_draft=True), given)
        out = console()
        out.print(_table(rows, ladder_of(self.driver)))
        out.print(NOTES, style="dim")
        document = {
            "calibration": found.name,
            "same_run": given is None,
            "driver": self.driver,
            "conditions": conditions(),
            "rows": [_row(row) for row in rows],
        }
        if self.save_calibration is not None:
            self.save_calibration.write_text(found.to_json(), encoding="utf-8")
        if self.json is not None:
            write_json(document, self.json)
        if self.figure is not None:
            from lr.theory.drawing import draw_reality

            for path in draw_reality(document, self.figure):
                out.print(f"drawn: {path}")

    def ways(self) -> list[Way]:
        """Everything that is compared with plain decoding."""
        from lr.spec.schedule import Schedule
        from lr.theory.reality import Way

        tokens = [Way(tokens=k) for k in self.tokens]
        steps = [
            Way(Schedule(schedule), depth) for schedule in self.schedules for depth in self.depths
        ]
        both = [Way(way.schedule, way.depth, self.inner) for way in steps if self.inner]
        return [*tokens, *steps, *both]

    def _compare(
        self, reasoner: Reasoner, given: Calibration | None
    ) -> tuple[list[Compared], Calibration]:
        from lr.lab.bench.report import conditions
        from lr.theory.reality import Compared, Way, ladder_of, ratio_with_error

        every = [Way(), *self.ways()]
        calibrate = self._calibrate()
        training = calibrate.asked()
        seen: list[Seen] = []
        self._run(
            reasoner, 0, every[-1]
        )  # warm up: the first run pays for allocation, and for a second process
        spent: dict[Way, list[float]] = {way: [] for way in every}
        answers: dict[Way, list[Answered]] = {way: [] for way in every}
        shown = Console(stderr=True)
        numbers = range(self.problems)
        for number in track(
            numbers, "measuring", console=shown, transient=True, disable=not shown.is_terminal
        ):
            if given is None:
                seen.append(calibrate.see(reasoner, training[number]))
            turn = number % len(every)  # ways take turns in going first
            for way in every[turn:] + every[:turn]:
                seconds, answered = self._run(reasoner, number, way)
                spent[way].append(seconds / answered.steps)
                answers[way].append(answered)
        found = calibrate.estimate(reasoner, seen, conditions()) if given is None else given
        rows, ladder = [], ladder_of(self.driver)
        for way in every[1:]:
            measured, error = ratio_with_error(spent[every[0]], spent[way])
            predicted = way.predictions(found, (answers[way], answers[every[0]]), ladder=ladder)
            rows.append(Compared(way, measured, error, predicted))
        return rows, found

    def _calibrate(self) -> Calibrate:
        from lr.commands.calibrate import Calibrate

        return Calibrate(problems=self.problems, clock=self._clock(), models=self.models)

    def _clock(self) -> Literal["auto", "cpu", "wall"]:
        """Two processes have no processor time in common."""
        return "wall" if self.driver == "overlapped" else self.clock

    def _run(self, reasoner: Reasoner, number: int, way: Way) -> tuple[float, Answered]:
        """One problem, one way: seconds, and what came out (answers may differ in length by
        chance).
        """
        from lr.commands.calibrate import clock_for, timed
        from lr.theory.observe import Answered
        from lr.tiny.language import Split, problem

        mode = {(0, 0): "ar", (0, 1): "sd", (1, 0): "lr", (1, 1): "lr+sd"}[
            way.depth > 0, way.tokens > 0
        ]
        options: dict[str, Any] = {"mode": mode, "drafter": "draft"}
        options |= (
            {"depth": way.depth, "schedule": way.schedule.value, "driver": self.driver}
            if way.depth
            else {}
        )
        options |= {"num_speculative_tokens": way.tokens} if way.tokens else {}
        question, clock = problem(Split.TEST, number).question, clock_for(self._clock(), reasoner)
        events = timed(reasoner, question, clock, seed=self.seed, max_tokens=400, **options)
        return events[-1][0], Answered.of(events)

    def _check(self) -> None:
        least = 4 if self.calibration is None else 2
        why = (
            "for intervals of the calibration"
            if self.calibration is None
            else "for a standard error"
        )
        require(self.problems >= least, "problems", self.problems, f"at least {least}, {why}")
        unused = self.save_calibration is not None and self.calibration is not None
        require(
            not unused,
            "save_calibration",
            str(self.save_calibration),
            "none beside --calibration: none is made then",
        )
        for name in ("json", "figure", "save_calibration"):
            path = getattr(self, name)
            if path is not None and not path.parent.is_dir():
                raise SettingError(
                    f"{name} is {str(path)!r}, but there is no folder {path.parent}; create it first."
                )
        if self.figure is not None:
            from lr.theory.drawing import require_matplotlib

            require_matplotlib()


def _row(row: Compared) -> dict[str, Any]:
    return asdict(row) | {"way": row.way.name, "gap": row.gap}


def _table(rows: Sequence[Compared], ladder: Sequence[str]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, title="speedup over plain decoding", title_justify="left"
    )
    table.add_column("way", no_wrap=True)
    for column in ("formula", *ladder, "answers", "measured", "±", "off"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        figures = [f"{x:.2f}" for x in (*row.predicted, row.measured, row.error)]
        table.add_row(row.way.name, *figures, f"{row.gap:+.1%}")
    return table
