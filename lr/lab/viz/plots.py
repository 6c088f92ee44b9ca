"""Bars, curves and a field of dots for notebooks, each by one call; and sliders where the front end
has them.

    draw_bars({"p": (0.5, 0.5), "q": (0.8, 0.2)}, ("heads", "tails"), who=("target", "draft"))
    draw_curves({"sync": [(1, 1.0), (2, 1.4)]}, x="depth", y="speedup")

Each function returns a matplotlib figure, which a notebook shows. It knows nothing of what it
draws. Figures that are written to files: `lab/eval/figure.py`, `theory_figures.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lr.lab.viz.style import COLOURS, GRID, INK, SERIES, SOFT, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOSE = 0.06
"""Points nearer than this, as a share of both axes, share one list of labels."""
Points = Sequence[tuple[float, float]]


def draw_bars(
    series: Mapping[str, Sequence[float]],
    places: Sequence[str],
    *,
    y: str = "probability",
    who: Sequence[str | None] = (),
) -> Figure:
    """A group of bars per place, one per series, of heights `series[name][place]`. `who`: the role
    of each series ("draft", "target"), None for no role."""
    roles = [*who, *[None] * len(series)]
    free = iter(SERIES)
    with figure(7.5, 2.6, size=9) as made:
        axes = made.subplots()
        width = 0.8 / len(series)
        for i, ((name, values), role) in enumerate(zip(series.items(), roles, strict=False)):
            left = [place - 0.4 + (i + 0.5) * width for place in range(len(places))]
            colour = next(free) if role is None else COLOURS[role]
            axes.bar(left, [float(v) for v in values], width * 0.92, color=colour, label=name)
        axes.set_xticks(range(len(places)), list(places))
        axes.set_ylabel(y)
        _finish(axes, len(series) > 1)
    return made


def draw_waterfall(levels: Mapping[str, float], *, wholes: Sequence[str], x: str) -> Figure:
    """From the first level to the last: the bars of `wholes` begin at 0, each other bar goes from
    the level above it to its own and says the difference. The dotted line is at 1."""
    with figure(7.5, 0.32 * len(levels) + 0.6, size=9) as made:
        axes, before = made.subplots(), 0.0
        for row, (name, level) in enumerate(levels.items()):
            whole, down = name in wholes, level < before
            start, colour = (0.0, SERIES[0]) if whole else (before, SERIES[1 if down else 2])
            axes.barh(row, level - start, 0.7, left=start, color=colour)
            text = f" {level:.2f}" if whole else f" {level - before:+.2f}"
            axes.text(max(level, start), row, text, va="center", fontsize=8, color=INK)
            before = level
        axes.axvline(1, color=INK, linewidth=1, linestyle=":")
        axes.set_yticks(range(len(levels)), list(levels))
        axes.set(xlabel=x, ylim=(len(levels) - 0.4, -0.6), xlim=(0, 1.1 * max(levels.values())))
        axes.grid(axis="y", visible=False)
    return made


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
    """Lines through `curves`, and marks without a line at `points`.

    `errors`: half lengths of error bars and `labels`: words, one each per point of the last of
    `points`; neighbours share a list of words. `diagonal`: from (0, 0) to (1, 1)."""
    with figure(7.5, 3.4, size=9) as made:
        axes = made.subplots()
        for i, (name, line) in enumerate(curves.items()):
            axes.plot(*zip(*line, strict=True), color=SERIES[i % len(SERIES)], label=name)
        marks = list((points or {}).items())
        for i, (name, dots) in enumerate(marks, len(curves)):
            bars = list(errors) if errors and name == marks[-1][0] else None
            xs, ys = zip(*dots, strict=True)
            colour = SERIES[i % len(SERIES)]
            axes.errorbar(xs, ys, yerr=bars, fmt="o", ms=5, capsize=3, color=colour, label=name)
        if marks:
            write_labels(axes, marks[-1][1], labels)
        if diagonal:
            axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=":")
        axes.set(xlabel=x, ylabel=y)
        _finish(axes, len(curves) + len(marks) > 1)
    return made


def draw_lines_of(make: Callable[..., Sequence[Any]], *, x: str, y: str, **values: float) -> Figure:
    """The lines that `make(**values)` gives, each with a `label` and numbers `x` and `y` (such as
    those of `lab/viz/theory_figures.py`)."""
    lines = {line.label: list(zip(line.x, line.y, strict=True)) for line in make(**values)}
    return draw_curves(lines, x=x, y=y)


def draw_field(rows: Sequence[Sequence[bool]], *, x: str, y: str) -> Figure:
    """A dark square wherever `rows[i][j]` holds, row 0 at the top: which query sees which key."""
    width, height = max(3.0, 0.3 * len(rows[0]) + 0.9), max(1.4, 0.3 * len(rows) + 0.8)
    with figure(width, height, size=9) as made:
        axes = made.subplots()
        for i, row in enumerate(rows):
            for j, seen in enumerate(row):
                axes.plot(j, i, "s", markersize=13, color=SERIES[0] if seen else GRID)
        axes.set(xlim=(-0.6, len(rows[0]) - 0.4), ylim=(len(rows) - 0.4, -0.6), xlabel=x, ylabel=y)
        axes.set_xticks(range(len(rows[0])))
        axes.set_yticks(range(len(rows)))
        axes.tick_params(labelsize=8, length=0)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    return made


def with_sliders(draw: Callable[..., Figure], **ranges: tuple[float, float, float]) -> Any:
    """`draw` under a slider per argument, given as (lowest, highest, at first); without
    `ipywidgets`: drawn once, at the first values."""
    if find_spec("ipywidgets") is None:
        return draw(**{name: start for name, (_, _, start) in ranges.items()})
    widgets = import_module("ipywidgets")
    sliders = {}
    for name, (low, high, start) in ranges.items():
        how: dict[str, Any] = {"min": low, "max": high, "step": (high - low) / 20}
        how |= {"description": name, "continuous_update": False}
        sliders[name] = widgets.FloatSlider(start, **how)
    # `interactive` wants a function with a name
    return widgets.interactive(lambda **values: draw(**values), {"auto_display": True}, **sliders)


def write_labels(axes: Any, points: Points, labels: Sequence[str]) -> None:
    """Write the words beside their points, towards the middle of the picture where there is room.
    Points that nearly touch share one list, and no list lies upon another."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    groups: list[tuple[float, float, list[str]]] = []  # (across, up) as shares of both axes
    for (x, y), label in zip(points, labels, strict=False):
        across, up = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
        near = (g for g in groups if abs(across - g[0]) < CLOSE and abs(up - g[1]) < CLOSE)
        if found := next(near, None):
            found[2].append(label)
        else:
            groups.append((across, up, [label]))
    taken: list[Any] = []
    for across, up, words in groups:
        sides = [(r, t) for r in (across > 0.5, across <= 0.5) for t in (up > 0.5, up <= 0.5)]
        for right, top in sides:
            text = axes.annotate(
                "\n".join(words), (across, up), xycoords="axes fraction", fontsize=8, color=INK,
                xytext=(-8 if right else 8, -6 if top else 6), textcoords="offset points",
                ha="right" if right else "left", va="top" if top else "bottom",
            )  # fmt: skip
            box = text.get_window_extent()
            if (right, top) == sides[-1] or not any(box.overlaps(other) for other in taken):
                break
            text.remove()
        taken.append(box)


def _finish(axes: Any, several: bool) -> None:
    axes.tick_params(labelsize=8)
    axes.grid(axis="x", visible=False)
    if several:
        axes.legend(fontsize=8)
