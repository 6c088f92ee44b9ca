"""Bars and curves for reports and experiments. It wants matplotlib (the extra `plot`). Read next:
`lab/viz/style.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from lr.lab.viz.style import INK, figure, require_matplotlib, write

__all__ = ["Bars", "Lanes", "Panel", "Points", "draw", "require_matplotlib"]

LETTER, LINE, GAP = 0.0185, 0.045, 0.02
"""Width and height of a small letter, and its distance from a point, in shares of the axes."""
COLOURS = ("#0066aa", "#c44e00", "#3a7d2c", "#7a4ea3", "#886600", "#555555")


@dataclass(frozen=True)
class Bars:
    """One panel of bars. `intervals` are (low, high) per bar, None where there is none; `line` a
    value to compare with.
    """

    title: str
    names: Sequence[str]
    values: Sequence[float]
    intervals: Sequence[tuple[float, float] | None] = ()
    line: float | None = None
    percent: bool = False


@dataclass(frozen=True)
class Points:
    """One panel of points or curves: per series its name and its (x, y, label) points; `joined`
    draws a line through them.
    """

    title: str
    x: str
    y: str
    series: Sequence[tuple[str, Sequence[tuple[float, float, str]]]]
    joined: bool = False
    line: float | None = None
    diagonal: bool = False


@dataclass(frozen=True)
class Lanes:
    """One panel of horizontal lanes; per lane its spans (begin, end)."""

    title: str
    x: str
    lanes: Mapping[str, Sequence[tuple[float, float]]]


Panel = Bars | Points | Lanes


def draw(panels: Sequence[Panel], path: Path, title: str = "") -> list[Path]:
    """Draw panels side by side to `path` with its ending replaced by .png and by .svg; returns
    both.
    """
    with figure(4.6 * len(panels), 3.8, size=9) as made:
        for axes, panel in zip(
            made.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            if isinstance(panel, Bars):
                _bars(axes, panel)
            elif isinstance(panel, Lanes):
                _lanes(axes, panel)
            else:
                _points(axes, panel)
        if title:
            made.suptitle(title, fontsize=10)
        return write(made, path)


def _bars(axes: Any, panel: Bars) -> None:
    places = range(len(panel.names))
    values = [0.0 if math.isnan(value) else value for value in panel.values]
    axes.bar(places, values, color=[COLOURS[place % len(COLOURS)] for place in places], width=0.6)
    for place, interval in enumerate(panel.intervals):
        if interval is not None and not math.isnan(interval[0]):
            middle = values[place]
            error = [[max(0.0, middle - interval[0])], [max(0.0, interval[1] - middle)]]
            axes.errorbar(place, middle, yerr=error, color=INK, capsize=3, lw=1)
    form = "{:.0%}" if panel.percent else "{:.2f}"
    for place, value in enumerate(panel.values):
        text = "none" if math.isnan(value) else form.format(value)
        axes.annotate(
            text,
            (place, 0),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color="white",
            fontsize=8,
        )
    if panel.line is not None:
        axes.axhline(panel.line, color=INK, lw=1, ls=":")
    axes.set_xticks(
        list(places),
        panel.names,
        rotation=30 if len(panel.names) > 4 else 0,
        ha="right" if len(panel.names) > 4 else "center",
    )
    axes.set_title(panel.title, fontsize=9)
    axes.grid(axis="x", visible=False)


def _points(axes: Any, panel: Points) -> None:
    for place, (name, points) in enumerate(panel.series):
        colour = COLOURS[place % len(COLOURS)]
        xs, ys = [point[0] for point in points], [point[1] for point in points]
        axes.plot(
            xs, ys, color=colour, marker="o", ms=4, ls="-" if panel.joined else "", label=name
        )
    if panel.line is not None:
        axes.axhline(panel.line, color=INK, lw=1, ls=":")
    if panel.diagonal:
        axes.plot([0, 1], [0, 1], color=INK, lw=1, ls=":")
    _labels(axes, panel)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_title(panel.title, fontsize=9)
    if len(panel.series) > 1:
        axes.legend(fontsize=8)


def _labels(axes: Any, panel: Points) -> None:
    """Write every label beside its point; where something stands already, on the other side or some
    lines off. Shares of the axes.
    """
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    marked = [
        ((x - x0) / (x1 - x0), (y - y0) / (y1 - y0), label, COLOURS[place % len(COLOURS)])
        for place, (_, points) in enumerate(panel.series)
        for x, y, label in points
        if label
    ]
    taken = [(x - GAP / 2, x + GAP / 2, y) for x, y, _, _ in marked]
    for x, y, label, colour in marked:
        width = LETTER * len(label)
        for line, side in product((0, -1, 1, -2, 2, -3, 3, -4, 4), ("left", "right")):
            start, middle = x + (GAP if side == "left" else -GAP), y + LINE * line
            begin = start if side == "left" else start - width
            inside = begin > 0 and begin + width < 1 and LINE / 2 < middle < 1 - LINE / 2
            if inside and all(
                begin > b or begin + width < a or abs(middle - other) >= LINE
                for a, b, other in taken
            ):
                break
        taken.append((begin, begin + width, middle))
        axes.text(
            start,
            middle,
            label,
            transform=axes.transAxes,
            ha=side,
            va="center",
            fontsize=7,
            color=colour,
        )


def _lanes(axes: Any, panel: Lanes) -> None:
    for place, (name, spans) in enumerate(panel.lanes.items()):
        bars = [(begin, end - begin) for begin, end in spans]
        axes.broken_barh(
            bars, (place - 0.35, 0.7), facecolors=COLOURS[place % len(COLOURS)], label=name
        )
    axes.set_yticks(range(len(panel.lanes)), list(panel.lanes))
    axes.set(xlabel=panel.x)
    axes.set_title(panel.title, fontsize=9)
    axes.grid(axis="y", visible=False)
