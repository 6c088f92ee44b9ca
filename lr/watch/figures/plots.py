"""Bars, curves and dots for notebooks, one call each; sliders, if the notebook has
them; and panels side by side in a file, for reports and experiments.

draw_bars({"p": (0.5, 0.5), "q": (0.8, 0.2)}, ("heads", "tails"), who=("target",
"draft"))
    draw_curves({"sync": [(1, 1.0), (2, 1.4)]}, x="depth", y="speedup")
    draw([Bars("right", ["ar", "lr"], [0.9, 0.8], percent=True)], Path("report.png"))

The functions for notebooks return a matplotlib figure, which the notebook shows; `draw`
writes files. Read next: `theory_figures.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr.watch.figures.style import COLOURS, GRID, INK, SERIES, figure, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOSE = (
    0.06  # Points closer than this (as a share of both axes) share one list of labels.
)
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
    roles = [*who, *[None] * len(series)]
    free = iter(SERIES)
    with figure(7.5, 2.6, size=9) as made:
        axes = made.subplots()
        width = 0.8 / len(series)
        for i, ((name, values), role) in enumerate(
            zip(series.items(), roles, strict=False)
        ):
            left = [place - 0.4 + (i + 0.5) * width for place in range(len(places))]
            colour = next(free) if role is None else COLOURS[role]
            axes.bar(
                left, [float(v) for v in values], width * 0.92, color=colour, label=name
            )
        axes.set_xticks(range(len(places)), list(places))
        axes.set_ylabel(y)
        axes.tick_params(labelsize=8)
        axes.grid(axis="x", visible=False)
        if len(series) > 1:
            axes.legend(fontsize=8)
    return made


def draw_waterfall(
    levels: Mapping[str, float], *, wholes: Sequence[str], x: str
) -> Figure:
    """From the first level to the last. The bars of `wholes` begin at 0; every other
    bar begins at the level above it and shows the difference. The dotted line is at
    1."""
    with figure(7.5, 0.32 * len(levels) + 0.6, size=9) as made:
        axes, before = made.subplots(), 0.0
        for row, (name, level) in enumerate(levels.items()):
            whole, down = name in wholes, level < before
            start, colour = (
                (0.0, SERIES[0]) if whole else (before, SERIES[1 if down else 2])
            )
            axes.barh(row, level - start, 0.7, left=start, color=colour)
            text = f" {level:.2f}" if whole else f" {level - before:+.2f}"
            axes.text(max(level, start), row, text, va="center", fontsize=8, color=INK)
            before = level
        axes.axvline(1, color=INK, linewidth=1, linestyle=":")
        axes.set_yticks(range(len(levels)), list(levels))
        axes.set(
            xlabel=x,
            ylim=(len(levels) - 0.4, -0.6),
            xlim=(0, 1.1 * max(levels.values())),
        )
        axes.grid(axis="y", visible=False)
    return made


def draw_curves(
    curves: Mapping[str, Curve],
    *,
    x: str,
    y: str,
    points: Mapping[str, Curve] | None = None,
    errors: Sequence[float] = (),
    labels: Sequence[str] = (),
    diagonal: bool = False,
) -> Figure:
    """Lines through `curves`, and markers at `points`.

    `errors` (half lengths of error bars) and `labels` have one entry per point of the
    last of `points`; close points share a list of labels. `diagonal`: draw a line from
    (0, 0) to (1, 1)."""
    lines, shown = list(curves.items()), list((points or {}).items())
    with figure(7.5, 3.4, size=9) as made:
        axes = made.subplots()
        panel = Curves(
            "", x, y, lines, shown, errors, labels, diagonal=diagonal, marked=False
        )
        panel.draw(axes)
        axes.tick_params(labelsize=8)
        axes.grid(axis="x", visible=False)
    return made


def draw_lines_of(
    make: Callable[..., Sequence[Any]], *, x: str, y: str, **values: float
) -> Figure:
    """The curves from `make(**values)`, each a label and its points
    (`theory_figures.py`)."""
    return draw_curves(dict(make(**values)), x=x, y=y)


def draw_field(rows: Sequence[Sequence[bool]], *, x: str, y: str) -> Figure:
    """A dark square for every true `rows[i][j]`, row 0 at the top: which query sees
    which key."""
    width, height = max(3.0, 0.3 * len(rows[0]) + 0.9), max(1.4, 0.3 * len(rows) + 0.8)
    with figure(width, height, size=9) as made:
        axes = made.subplots()
        for i, row in enumerate(rows):
            for j, seen in enumerate(row):
                axes.plot(j, i, "s", markersize=13, color=SERIES[0] if seen else GRID)
        axes.set(
            xlim=(-0.6, len(rows[0]) - 0.4),
            ylim=(len(rows) - 0.4, -0.6),
            xlabel=x,
            ylabel=y,
        )
        axes.set_xticks(range(len(rows[0])))
        axes.set_yticks(range(len(rows)))
        axes.tick_params(labelsize=8, length=0)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    return made


def with_sliders(
    draw: Callable[..., Figure], **ranges: tuple[float, float, float]
) -> Any:
    """`draw` with a slider per argument, given as (lowest, highest, initial). Without
    `ipywidgets` it is drawn once, at the initial values."""
    if find_spec("ipywidgets") is None:
        return draw(**{name: start for name, (_, _, start) in ranges.items()})
    widgets = import_module("ipywidgets")
    sliders = {}
    for name, (low, high, start) in ranges.items():
        how: dict[str, Any] = {"min": low, "max": high, "step": (high - low) / 20}
        how |= {"description": name, "continuous_update": False}
        sliders[name] = widgets.FloatSlider(start, **how)
    # `interactive` needs a function with a name
    return widgets.interactive(
        lambda **values: draw(**values), {"auto_display": True}, **sliders
    )


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
    percent: bool = False

    def draw(self, axes: Any) -> None:
        places = range(len(self.names))
        heights = [0.0 if math.isnan(value) else value for value in self.values]
        colours = [SERIES[place % len(SERIES)] for place in places]
        axes.bar(places, heights, color=colours, width=0.6)
        for place, interval in enumerate(self.intervals):
            if interval is not None and not math.isnan(interval[0]):
                below, above = (
                    heights[place] - interval[0],
                    interval[1] - heights[place],
                )
                error = [[max(0.0, below)], [max(0.0, above)]]
                axes.errorbar(
                    place, heights[place], yerr=error, color=INK, capsize=3, lw=1
                )
        form, how = (
            ".0%" if self.percent else ".2f",
            {"textcoords": "offset points", "fontsize": 8},
        )
        for place, value in enumerate(self.values):
            text = "none" if math.isnan(value) else format(value, form)
            axes.annotate(text, (place, 0), (0, 3), ha="center", color="white", **how)
        turned = {"rotation": 30, "ha": "right"} if len(self.names) > 4 else {}
        axes.set_xticks(list(places), self.names, **turned)
        axes.grid(axis="x", visible=False)


@dataclass(frozen=True)
class Curves:
    """One panel: lines through `lines`, with markers if `marked`, and markers alone at
    `points`. `errors` (half lengths of error bars) and `labels` belong to the last of
    `points`. `line`: a horizontal line; `diagonal`: a line from (0, 0) to (1, 1);
    `ylim`: None for an automatic end."""

    title: str
    x: str
    y: str
    lines: Sequence[tuple[str, Curve]] = ()
    points: Sequence[tuple[str, Curve]] = ()
    errors: Sequence[float] = ()
    labels: Sequence[str] = ()
    line: float | None = None
    diagonal: bool = False
    marked: bool = True
    ylim: tuple[float | None, float | None] | None = None

    def draw(self, axes: Any) -> None:
        all_, look = (
            [*self.lines, *self.points],
            {"marker": "o", "ms": 4} if self.marked else {},
        )
        for place, (name, curve) in enumerate(all_):
            xs, ys = zip(*curve, strict=True) if curve else ((), ())
            how = {"color": SERIES[place % len(SERIES)], "label": name}
            if place < len(self.lines):
                axes.plot(xs, ys, **how, **look)
            else:
                bars = (
                    list(self.errors)
                    if self.errors and place == len(all_) - 1
                    else None
                )
                axes.errorbar(xs, ys, yerr=bars, fmt="o", ms=5, capsize=3, **how)
        if self.points:
            write_labels(axes, self.points[-1][1], self.labels)
        if self.diagonal:
            axes.plot([0, 1], [0, 1], color=INK, lw=1, ls=":")
        axes.set(xlabel=self.x, ylabel=self.y)
        if self.ylim is not None:
            axes.set_ylim(self.ylim)
        if len(all_) > 1:
            axes.legend(fontsize=8, frameon=True, framealpha=1, edgecolor="none")


@dataclass(frozen=True)
class Lanes:
    """One panel of horizontal lanes: by role, the spans (begin, end)."""

    title: str
    x: str
    lanes: Mapping[str, Sequence[tuple[float, float]]]
    line: None = None

    def draw(self, axes: Any) -> None:
        for place, (name, spans) in enumerate(self.lanes.items()):
            widths = [(begin, end - begin) for begin, end in spans]
            role = COLOURS["verifier" if name == "judge" else name]
            axes.broken_barh(widths, (place - 0.35, 0.7), facecolors=role, label=name)
        axes.set_yticks(range(len(self.lanes)), list(self.lanes))
        axes.set(xlabel=self.x)
        axes.grid(axis="y", visible=False)


Panel = Bars | Curves | Lanes


def draw(panels: Sequence[Panel], path: Path, title: str = "") -> list[Path]:
    """Draw panels side by side to `path`, as .png and as .svg; returns both paths."""
    with figure(4.6 * len(panels), 3.8, size=9) as made:
        places = made.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(places, panels, strict=True):
            panel.draw(axes)
            if panel.line is not None:
                axes.axhline(panel.line, color=INK, lw=1, ls=":")
            axes.set_title(panel.title, fontsize=9)
        if title:
            made.suptitle(title, fontsize=10)
        return write(made, path)


def write_labels(axes: Any, points: Curve, labels: Sequence[str]) -> None:
    """Write the labels next to their points, towards the middle of the picture if there
    is room. Close points share one list, and lists do not overlap if that is
    possible."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    groups: list[
        tuple[float, float, list[str]]
    ] = []  # (across, up) as shares of both axes
    for (x, y), label in zip(points, labels, strict=False):
        across, up = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
        near = (
            g for g in groups if abs(across - g[0]) < CLOSE and abs(up - g[1]) < CLOSE
        )
        if found := next(near, None):
            found[2].append(label)
        else:
            groups.append((across, up, [label]))
    taken: list[Any] = []
    for across, up, words in groups:
        sides = [
            (r, t) for r in (across > 0.5, across <= 0.5) for t in (up > 0.5, up <= 0.5)
        ]
        for right, top in sides:
            text = axes.annotate(
                "\n".join(words), (across, up), xycoords="axes fraction", fontsize=8, color=INK,
                xytext=(-8 if right else 8, -6 if top else 6), textcoords="offset points",
                ha="right" if right else "left", va="top" if top else "bottom",
            )  # fmt: skip
            box = text.get_window_extent()
            if (right, top) == sides[-1] or not any(
                box.overlaps(other) for other in taken
            ):
                break
            text.remove()
        taken.append(box)
