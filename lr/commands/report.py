"""`lr report`: runs side by side, and what has to be said beside the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lr.commands.show import console
from lr.errors import SettingError

if TYPE_CHECKING:
    from lr.lab.eval.report import Row


@dataclass(frozen=True)
class Report:
    """Compare runs: accuracy with intervals, speedup paired by problem, acceptance. Reads the
    official tool's folders too.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders that lr run, or the official tool, has written."""
    baseline: str | None = None
    """The run to compare with, by its folder or its mode. None: the first in mode ar."""
    json: Path | None = None
    """Also write the numbers to this file."""
    markdown: Path | None = None
    """Also write the table to this file."""
    figure: Path | None = None
    """Also draw accuracy and speed as bars: to this file and its twin, PNG and SVG. Needs
    matplotlib (the extra `plot`).
    """

    def run(self) -> None:
        from lr.lab.eval.grading import Grader
        from lr.lab.eval.report import choose_baseline, make_row, read_run
        from lr.lab.eval.tables import document, markdown

        if not self.runs:
            raise SettingError(
                "no run was named; give the folders that lr run has written, such as: lr report runs/*."
            )
        for path in (self.json, self.markdown, self.figure):
            if path is not None and not path.parent.is_dir():
                raise SettingError(
                    f"there is no folder {path.parent} for {path.name}; create it first."
                )
        if self.figure is not None:
            from lr.lab.eval.figure import require_matplotlib

            require_matplotlib()
        with Grader() as grader:
            runs = [read_run(path, grader) for path in self.runs]
        baseline = choose_baseline(runs, self.baseline)
        rows = [make_row(run, baseline) for run in runs]
        show(rows)
        if self.json is not None:
            self.json.write_text(json.dumps(document(rows), indent=1) + "\n", encoding="utf-8")
        if self.markdown is not None:
            self.markdown.write_text(markdown(rows), encoding="utf-8")
        if self.figure is not None:
            for path in draw_rows(rows, self.figure):
                console(stderr=True).print(f"drawn: {path}")


def show(rows: Sequence[Row]) -> None:
    """The table and its notes, on standard output."""
    from lr.lab.eval.tables import HEADS, LEGEND, cells, notes

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    filled = [
        place for place in range(len(HEADS)) if place < 4 or any(cells(row)[place] for row in rows)
    ]
    for place in filled:
        table.add_column(
            HEADS[place].replace(" ", "\n"),
            justify="left" if place < 2 else "right",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(cells(row)[place] for place in filled))
    out = console()
    out.width = max(out.width, 180) if not out.is_terminal else out.width
    out.print(table)
    for note in notes(rows):
        out.print(f"- {note}")
    out.print(LEGEND, style="dim")


def draw_rows(rows: Sequence[Row], path: Path) -> list[Path]:
    """Accuracy and speed, and speedups where there is a baseline."""
    from lr.lab.eval.figure import Bars, Panel, draw

    names = [row.mode if row.mode != "?" else row.name[:12] for row in rows]
    values = [math.nan if row.accuracy is None else row.accuracy for row in rows]
    panels: list[Panel] = [
        Bars(
            "right (95 % interval)",
            names,
            values,
            [row.accuracy_interval for row in rows],
            percent=True,
        ),
        Bars("tokens per second", names, [row.speed or math.nan for row in rows]),
    ]
    if any(row.speedup for row in rows):
        panels.append(
            Bars(
                "speedup (95 % interval)",
                names,
                [row.speedup or 1.0 for row in rows],
                [row.speedup_interval for row in rows],
                line=1.0,
            )
        )
    return draw(panels, path)
