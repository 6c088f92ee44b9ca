"""Bars, curves and lanes for reports and experiments. Needs matplotlib (the extra `plot`). Read
next: `lab/viz/style.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr.lab.viz.plots import write_labels
from lr.lab.viz.style import INK, SERIES, figure, write


@dataclass(frozen=True)
class Bars:
    """One panel of bars. `intervals` are (low, high) per bar, None if there is none; `line` a value
    to compare with."""

    title: str
    names: Sequence[str]
    values: Sequence[float]
    intervals: Sequence[tuple[float, float] | None] = ()
    line: float | None = None
    percent: bool = False

    def draw(self, axes: Any) -> None:
        places = range(len(self.names))
        heights = [0.0 if math.isnan(value) else value for value in self.values]
        axes.bar(places, heights, color=[_colour(place) for place in places], width=0.6)
        for place, interval in enumerate(self.intervals):
            if interval is not None and not math.isnan(interval[0]):
                below, above = heights[place] - interval[0], interval[1] - heights[place]
                error = [[max(0.0, below)], [max(0.0, above)]]
                axes.errorbar(place, heights[place], yerr=error, color=INK, capsize=3, lw=1)
        form = "{:.0%}" if self.percent else "{:.2f}"
        for place, value in enumerate(self.values):
            text = "none" if math.isnan(value) else form.format(value)
            axes.annotate(
                text, (place, 0), xytext=(0, 3), textcoords="offset points", ha="center",
                color="white", fontsize=8,
            )  # fmt: skip
        turned = {"rotation": 30, "ha": "right"} if len(self.names) > 4 else {}
        axes.set_xticks(list(places), self.names, **turned)
        axes.grid(axis="x", visible=False)


@dataclass(frozen=True)
class Points:
    """One panel of points or curves: per series its name and its points; `joined` draws a line
    through them, `diagonal` one from (0, 0) to (1, 1); `labels` stand beside the first points."""

    title: str
    x: str
    y: str
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    joined: bool = False
    line: float | None = None
    diagonal: bool = False
    labels: Sequence[str] = ()

    def draw(self, axes: Any) -> None:
        style = "-" if self.joined else ""
        for place, (name, points) in enumerate(self.series):
            look = {"color": _colour(place), "marker": "o", "ms": 4, "ls": style, "label": name}
            axes.plot(*zip(*points, strict=True), **look)
        if self.diagonal:
            axes.plot([0, 1], [0, 1], color=INK, lw=1, ls=":")
        for _, points in self.series[:1]:
            write_labels(axes, points, self.labels)
        axes.set(xlabel=self.x, ylabel=self.y)
        if len(self.series) > 1:
            axes.legend(fontsize=8)


@dataclass(frozen=True)
class Lanes:
    """One panel of horizontal lanes; per lane its spans (begin, end)."""

    title: str
    x: str
    lanes: Mapping[str, Sequence[tuple[float, float]]]
    line: None = None

    def draw(self, axes: Any) -> None:
        for place, (name, spans) in enumerate(self.lanes.items()):
            widths = [(begin, end - begin) for begin, end in spans]
            axes.broken_barh(widths, (place - 0.35, 0.7), facecolors=_colour(place), label=name)
        axes.set_yticks(range(len(self.lanes)), list(self.lanes))
        axes.set(xlabel=self.x)
        axes.grid(axis="y", visible=False)


Panel = Bars | Points | Lanes


def draw(panels: Sequence[Panel], path: Path, title: str = "") -> list[Path]:
    """Draw panels side by side to `path`, as .png and as .svg; returns both paths."""
    with figure(4.6 * len(panels), 3.8, size=9) as made:
        for axes, panel in zip(
            made.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            panel.draw(axes)
            if panel.line is not None:
                axes.axhline(panel.line, color=INK, lw=1, ls=":")
            axes.set_title(panel.title, fontsize=9)
        if title:
            made.suptitle(title, fontsize=10)
        return write(made, path)


def _colour(place: int) -> str:
    return SERIES[place % len(SERIES)]
