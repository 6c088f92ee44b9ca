"""Bars, curves and a field of dots for notebooks, each by one call and all in one style; and
sliders where the front end has them.

    draw_bars({"p": (0.5, 0.5), "q": (0.8, 0.2)}, places=("heads", "tails"))
    draw_curves({"sync": [(1, 1.0), (2, 1.4)]}, x="depth", y="speedup")

Figures of measurements that are written to files have their own modules (`lab/eval/figure.py`,
`theory/drawing.py`). It knows nothing of what it draws. Read next: `canvas.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lr.lab.viz.canvas import IDLE, INK, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b7791f", "#4a5568")
CLOSE = 0.06
"""Points nearer than this, as a share of both axes, share their labels' place."""
Points = Sequence[tuple[float, float]]


def draw_bars(
    series: Mapping[str, Sequence[float]], places: Sequence[str], *, y: str = "probability"
) -> Figure:
    """A group of bars per place, one bar in it per series: `series[name][i]` stands at
    `places[i]`.
    """
    figure, axes = canvas(7.5, 2.6)
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        left = [place - 0.4 + (i + 0.5) * width for place in range(len(places))]
        axes.bar(
            left,
            [float(value) for value in values],
            width * 0.92,
            color=PALETTE[i % len(PALETTE)],
            label=name,
        )
    axes.set_xticks(range(len(places)), list(places))
    axes.set_ylabel(y, fontsize=9)
    _finish(axes, len(series) > 1)
    return figure


def draw_curves(
    curves: Mapping[str, Points],
    *,
    x: str,
    y: str,
    points: Mapping[str, Points] | None = None,
    errors: Sequence[float] = (),
    labels: Sequence[str] = (),
    diagonal: bool = False,
) -> Figure:
    """Lines through `curves`, and marks without a line at `points`, in the colours of the palette
    one after the other.

    `errors`: half lengths of error bars and `labels`: words, one each per point of the last of
    `points`; neighbours share a list of words. `diagonal`: from (0, 0) to (1, 1).
    """
    figure, axes = canvas(7.5, 3.4)
    for i, (name, line) in enumerate(curves.items()):
        axes.plot(*zip(*line, strict=True), color=PALETTE[i % len(PALETTE)], label=name)
    marks = list((points or {}).items())
    for i, (name, dots) in enumerate(marks, len(curves)):
        bars = list(errors) if errors and name == marks[-1][0] else None
        xs, ys = zip(*dots, strict=True)
        colour = PALETTE[i % len(PALETTE)]
        axes.errorbar(xs, ys, yerr=bars, fmt="o", ms=5, capsize=3, color=colour, label=name)
    if marks:
        _label(axes, marks[-1][1], labels)
    if diagonal:
        axes.plot([0, 1], [0, 1], color=IDLE, linewidth=1, linestyle=":")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    _finish(axes, len(curves) + len(marks) > 1)
    return figure


def draw_lines_of(make: Callable[..., Sequence[Any]], *, x: str, y: str, **values: float) -> Figure:
    """The lines that `make(**values)` gives, each with a `label` and numbers `x` and `y` (such as
    those of `theory/curves.py`).
    """
    lines = {line.label: list(zip(line.x, line.y, strict=True)) for line in make(**values)}
    return draw_curves(lines, x=x, y=y)


def draw_field(rows: Sequence[Sequence[bool]], *, x: str, y: str) -> Figure:
    """A dot wherever `rows[i][j]` holds, row 0 at the top: who may look at whom."""
    figure, axes = canvas(max(3.0, 0.3 * len(rows[0]) + 0.9), max(1.4, 0.3 * len(rows) + 0.8))
    for i, row in enumerate(rows):
        for j, seen in enumerate(row):
            axes.plot(j, i, "s", markersize=13, color=PALETTE[0] if seen else "#edf2f7")
    axes.set(xlim=(-0.6, len(rows[0]) - 0.4), ylim=(len(rows) - 0.4, -0.6))
    axes.set_xticks(range(len(rows[0])))
    axes.set_yticks(range(len(rows)))
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8, length=0)
    axes.spines[:].set_visible(False)
    return figure


def with_sliders(draw: Callable[..., Figure], **ranges: tuple[float, float, float]) -> Any:
    """`draw` under a slider per argument, given as (lowest, highest, at first); without
    `ipywidgets`: drawn once, at the first values.
    """
    first = {name: start for name, (_, _, start) in ranges.items()}
    if find_spec("ipywidgets") is None:
        return draw(**first)
    widgets = import_module("ipywidgets")
    sliders = {
        name: widgets.FloatSlider(
            start,
            min=low,
            max=high,
            step=(high - low) / 20,
            description=name,
            continuous_update=False,
        )
        for name, (low, high, start) in ranges.items()
    }
    return widgets.interactive(draw, **sliders)


@dataclass
class _Labels:
    """Words that stand together, and where, as shares of both axes."""

    across: float
    up: float
    words: list[str]


def _label(axes: Axes, points: Points, labels: Sequence[str]) -> None:
    """Write the words beside their points: those of points close together below each other, towards
    the middle of the picture.
    """
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    groups: list[_Labels] = []
    for (x, y), label in zip(points, labels, strict=False):
        across, up = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
        near = next(
            (g for g in groups if abs(across - g.across) < CLOSE and abs(up - g.up) < CLOSE), None
        )
        if near is None:
            groups.append(_Labels(across, up, [label]))
            continue
        near.words.append(label)
        near.across = min(near.across, across) if across > 0.5 else max(near.across, across)
    for group in groups:
        right, top = group.across > 0.5, group.up > 0.5
        axes.annotate(
            "\n".join(group.words),
            (group.across, group.up),
            xycoords="axes fraction",
            xytext=(-8 if right else 8, -6 if top else 6),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top" if top else "bottom",
            fontsize=8,
            color=INK,
        )


def _finish(axes: Axes, several: bool) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="#e2e8f0")
    axes.set_axisbelow(True)
    if several:
        axes.legend(fontsize=8, frameon=False)
