"""Bars, curves and dots: one call each in a notebook, or panels side by side in a file
for reports and experiments.

    draw_bars({"p": (0.5, 0.5), "q": (0.8, 0.2)}, ("heads", "tails"))
    draw_curves({"sync": [(1, 1.0), (2, 1.4)]}, x="depth", y="speedup")
    draw_panels([Bars("right", ["ar", "lr"], [0.9, 0.8])], Path("report.png"))

The functions for notebooks return a matplotlib figure, which the notebook shows; `draw_panels`
writes files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr.watch.figures.style import COLOURS, INK, SERIES, figure, put, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, float]]


def draw_bars(
    series: Mapping[str, Sequence[float]],
    places: Sequence[str],
    *,
    y: str = "probability",
    who: Sequence[str | None] = (),
) -> Figure:
    """A group of bars per place, one bar per series, of height `series[name][place]`.
    `who`: the role of each series ("draft", "target"), None for no role."""
    roles = [*who, *[None] * len(series)]  # None: a colour of its own
    free_colours = iter(SERIES)
    width = 0.8 / len(series)  # of a bar; groups are 1 apart
    with figure(7.5, 2.6, size=9) as drawing:
        axes = drawing.subplots()
        for i, (name, values) in enumerate(series.items()):
            role = roles[i]
            colour = next(free_colours) if role is None else COLOURS[role]
            # the middles of the bars
            left = [group - 0.4 + (i + 0.5) * width for group in range(len(places))]
            heights = [float(value) for value in values]
            axes.bar(left, heights, width * 0.92, color=colour, label=name)
        axes.set_xticks(range(len(places)), list(places))
        axes.set_ylabel(y)
        axes.grid(axis="x", visible=False)
        if len(series) > 1:
            axes.legend(fontsize=8)
    return drawing


def draw_curves(
    curves: Mapping[str, Curve],
    *,
    x: str,
    y: str,
    points: Mapping[str, Curve] | None = None,
    **settings: Any,
) -> Figure:
    """Lines through `curves`, and markers at `points`: one panel of `Curves`, with its
    other `settings`."""
    lines = list(curves.items())
    markers = list((points or {}).items())
    panel = Curves("", x, y, lines, markers, **settings)
    with figure(7.5, 3.4, size=9) as drawing:
        axes = drawing.subplots()
        panel.draw(axes)
        axes.grid(axis="x", visible=False)
    return drawing


# Panels side by side


@dataclass(frozen=True)
class Bars:
    """One panel of bars. `intervals`: (low, high) per bar, or None; `line`: a
    horizontal line."""

    title: str
    names: Sequence[str]
    values: Sequence[float]
    intervals: Sequence[tuple[float, float] | None] = ()
    line: float | None = None

    def draw(self, axes: Any) -> None:
        positions = range(len(self.names))
        colours = [SERIES[i % len(SERIES)] for i in positions]
        # nothing was measured
        heights = [0.0 if math.isnan(value) else value for value in self.values]
        axes.bar(positions, heights, color=colours, width=0.6)
        for i, interval in enumerate(self.intervals):
            if interval is not None and not math.isnan(interval[0]):
                axes.plot([i, i], interval, color=INK, marker="_", linewidth=1)
        for i, value in enumerate(self.values):
            text = "none" if math.isnan(value) else f"{value:.2f}"
            # above the bar, beside its interval; upright if there are many
            style = {"rotation": 90} if len(self.values) > 8 else {}
            put(
                axes,
                i - 0.2,
                heights[i],
                text,
                8,
                INK,
                va="bottom",
                ha="center",
                **style,
            )
        turned = {"rotation": 30, "ha": "right"} if len(self.names) > 4 else {}
        # Of a longer name the middle is left out: it would take the room of the bars.
        names = [n if len(n) <= 42 else f"{n[:18]} … {n[-21:]}" for n in self.names]
        axes.set_xticks(positions, names, **turned)
        axes.grid(axis="x", visible=False)


@dataclass(frozen=True)
class Curves:
    """One panel: lines through `lines`, and markers at `points`. `errors` (half lengths
    of error bars) and `labels` belong to the last of `points`. `line`: a horizontal
    line; `ylim`: None for an automatic end."""

    title: str
    x: str
    y: str
    lines: Sequence[tuple[str, Curve]] = ()
    points: Sequence[tuple[str, Curve]] = ()
    errors: Sequence[float] = ()
    labels: Sequence[str] = ()
    line: float | None = None
    ylim: tuple[float | None, float | None] | None = None
    xscale: str = "linear"

    def draw(self, axes: Any) -> None:
        colours = cycle(SERIES)
        for number, (name, curve) in enumerate(self.lines):
            marker = "o" if len(curve) < 8 else ""  # a point alone is seen too
            style = {"color": next(colours), "label": name, "marker": marker, "ms": 4}
            width = max(
                1.4, 2.6 - 0.6 * number
            )  # a line below another is seen beside it
            axes.plot(*zip(*curve, strict=True), lw=width, **style)
        for number, (name, curve) in enumerate(self.points, start=1):
            colour = next(colours)
            is_last = number == len(self.points)  # errors belong to the last series
            bars = list(self.errors) if is_last and self.errors else None
            style = {"fmt": "o", "ms": 5, "capsize": 3, "color": colour, "label": name}
            axes.errorbar(*zip(*curve, strict=True), yerr=bars, **style)
        if self.points:
            _write_labels(axes, self.points[-1][1], self.labels)
        axes.set(xlabel=self.x, ylabel=self.y, xscale=self.xscale)
        if self.ylim is not None:
            axes.set_ylim(self.ylim)
        if len(self.lines) + len(self.points) > 1:
            axes.legend(fontsize=8, frameon=True, framealpha=1, edgecolor="none")


Panel = Bars | Curves


def draw_panels(panels: Sequence[Panel], path: Path, title: str = "") -> list[Path]:
    """Draw panels side by side to `path`, as .png and as .svg; returns both paths."""
    with figure(4.6 * len(panels), 3.8, size=9) as drawing:
        all_axes = drawing.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(all_axes, panels, strict=True):
            panel.draw(axes)
            if panel.line is not None:
                axes.axhline(panel.line, color=INK, lw=1, ls=":")
            axes.set_title(panel.title, fontsize=9)
        if title:
            drawing.suptitle(title, fontsize=10)
        return write(drawing, path)


def _write_labels(axes: Any, points: Curve, labels: Sequence[str]) -> None:
    """Write the labels beside their points, towards the middle. Points near each other
    share one list of labels."""
    spans = [max(values) - min(values) or 1 for values in zip(*points, strict=True)]
    lowest = [min(values) for values in zip(*points, strict=True)]
    lists: dict[tuple[float, float], list[str]] = {}  # by the first point of each list
    order = sorted(
        zip(points, labels, strict=False), key=lambda at: (at[0][0], -at[0][1])
    )
    for point, label in order:
        near = (
            (x, y)
            for x, y in lists
            if point[0] - x < spans[0] / 5 and abs(point[1] - y) < spans[1] / 12
        )
        lists.setdefault(next(near, point), []).append(label)
    for (x, y), words in lists.items():
        left = (x - lowest[0]) / spans[0] > 0.5
        style: dict[str, Any] = {
            "xytext": (-6 if left else 6, 0),
            "textcoords": "offset points",
        }
        style |= {"ha": "right" if left else "left", "va": "center", "fontsize": 8}
        axes.annotate("\n".join(words), (x, y), color=INK, **style)
