"""`lr bench trace`: what writing a trace costs, in turns with the same answers without one."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lr.commands.models import ModelChoice
from lr.commands.show import console
from lr.types import require

GOAL = 0.03
"""A trace may cost this share of the tokens per second."""


@dataclass(frozen=True)
class BenchTrace:
    """Time answers with the trace off, on, and written to a file: every question in all three ways,
    one directly after the other.
    """

    modes: tuple[str, ...] = ("ar", "sd", "lr", "lr+sd")
    """The modes to measure, with driver lockstep."""
    overlapped: bool = True
    """Measure mode lr with driver overlapped, too."""
    problems: int = 6
    """How many held-out problems of the tiny language."""
    repeats: int = 3
    """How often each is answered in every way."""
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        from lr.lab.bench.report import conditions
        from lr.lab.bench.tracing import measure
        from lr.options import MODES
        from lr.tiny.language import Split, problem

        for mode in self.modes:
            require(mode in MODES, "modes", mode, f"names among {', '.join(MODES)}")
        require(self.problems >= 1, "problems", self.problems, "a whole number >= 1")
        turns = self.problems * self.repeats
        require(turns >= 2, "repeats", self.repeats, "enough for two turns, to have a spread")
        settings: dict[str, dict[str, Any]] = {mode: {"mode": mode} for mode in self.modes}
        if self.overlapped:
            settings["lr, overlapped"] = {"mode": "lr", "driver": "overlapped"}
        questions = [problem(Split.TEST, number).question for number in range(self.problems)]
        with (
            self.models.load(needs_draft=True) as reasoner,
            Progress(console=Console(stderr=True), transient=True) as bar,
            tempfile.TemporaryDirectory() as folder,
        ):
            task = bar.add_task("measuring", total=len(settings) * turns)
            place = Path(folder, "trace.jsonl")
            measured = measure(
                reasoner, questions, settings, self.repeats, place, lambda: bar.advance(task)
            )
        out = console()
        out.print(", ".join(f"{name} {value}" for name, value in conditions().items()))
        table = Table(
            box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title=f"{turns} turns per row"
        )
        for column in (
            "mode",
            "tokens/s, off",
            "on",
            "middle half",
            "on and file",
            "middle half",
            "events/token",
            "kB",
        ):
            table.add_column(column, justify="left" if column == "mode" else "right")
        for one in measured:
            on, file = one.spread("on"), one.spread("file")
            table.add_row(
                one.name,
                f"{one.tokens_per_second:.0f}",
                f"{on.median - 1:+.1%}",
                f"{on.low - 1:+.1%} to {on.high - 1:+.1%}",
                f"{file.median - 1:+.1%}",
                f"{file.low - 1:+.1%} to {file.high - 1:+.1%}",
                f"{one.per_token:.1f}",
                f"{one.size / turns / 1000:.0f}",
            )
        out.print(table)
        over = [one.name for one in measured if one.spread("on").median - 1 > GOAL]
        out.print(
            f"goal: on costs at most {GOAL:.0%}: "
            + (f"not met by {', '.join(over)}" if over else "met")
        )
