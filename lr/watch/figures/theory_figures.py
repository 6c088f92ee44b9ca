"""The figures of theory: the curves as plain numbers, then drawn as PNG and SVG.

The paper's Figures 2 and 3 show measurements; `draft_length` gives the theory on the
same axes. Only drawing needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lr.theory.acceptance import (
    beta_width_acceptance,
    tree_sync_speedup,
    width_acceptance,
)
from lr.theory.asynchronous import lr_async_limit, lr_async_speedup
from lr.theory.hybrid import ScheduleKind, best_split, hybrid_speedup
from lr.theory.paper import TABLE_3, WIDTHS, fit_width
from lr.theory.synchronous import lr_sync_cycle_speedup, sd_speedup_of_positions
from lr.watch.figures.plots import Curve, Curves, draw
from lr.watch.figures.style import INK, SERIES, figure, shades, write

LEVELS = (0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
LOSES, WINS = shades(SERIES[1], 3)[::-1], shades(SERIES[2], 5)
"""Below and above 1: magenta where a pure method is better, green where the hybrid
is."""
Line = tuple[str, Curve]
"""A label, and the points of a curve."""


def line(label: str, x: Any, y: Any) -> Line:
    """Make a line from the coordinates of its points."""
    return label, list(zip(x, y, strict=True))


def draft_length() -> list[Line]:
    """Speedup against positions k2 per target pass: SD alone, and with the best
    lookahead.

    With M positions per pass, floor(M / k2) target steps are in flight (schedule
    `paper`)."""
    k2, (alpha1, alpha2, c1, c2) = np.arange(1, 33), (0.6, 0.8, 0.2, 0.05)
    lines = [line("SD alone", k2, sd_speedup_of_positions(alpha2, k2, c2))]
    for m in (16, 64):
        fits = k2[k2 <= m]
        both = [
            hybrid_speedup(alpha1, alpha2, c1, c2, m // int(k), int(k), "async")
            for k in fits
        ]
        lines.append(line(f"SD + lookahead, M = {m}", fits, both))
    return lines


def schedules(alpha: float = 0.8, c: float = 0.1) -> list[Line]:
    """Speedup against k: the synchronous cycle, the windows, and the limit without a
    window."""
    k = np.arange(1, 17)
    return [
        line("sync, g = k drafts (Algorithm 1)", k, lr_sync_cycle_speedup(alpha, k, c)),
        line("paper, k pairs in flight", k, lr_async_speedup(alpha, k, c, "paper")),
        line("depth, k unverified drafts", k, lr_async_speedup(alpha, k, c, "depth")),
        line(
            "cycle of k, asynchronous inside", k, lr_async_speedup(alpha, k, c, "cycle")
        ),
        line("no window", k, np.full(len(k), lr_async_limit(alpha, c))),
    ]


def hybrid_region(schedule: ScheduleKind) -> tuple[Any, Any, Any]:
    """alpha1 (columns), alpha2 (rows), and for each pair the speedup of the best hybrid (k1, k2 >=
    2) divided by that of the best pure method."""
    rates, (c1, c2, budget) = np.linspace(0.05, 0.95, 37), (0.2, 0.1, 16)
    k = np.arange(2, budget // 2 + 1)

    def gain(alpha1: float, alpha2: float) -> float:
        split = best_split(alpha1, alpha2, c1, c2, budget, schedule)
        pure = max(split.token_only_speedup, split.step_only_speedup)
        if split.hybrid_wins:
            return split.speedup / pure
        best: Any = max(
            np.max(
                hybrid_speedup(
                    alpha1, alpha2, c1, c2, k[k <= budget // m], float(m), schedule
                )
            )
            for m in k
        )
        return float(best) / pure

    return (
        rates,
        rates,
        np.array([[gain(float(x), float(y)) for x in rates] for y in rates]),
    )


def draw_all(folder: Path) -> list[Path]:
    """Draw every figure into `folder`; the same version draws the same files."""
    drawings = (draw_draft_length, draw_schedules, draw_hybrid_region, draw_width)
    return [path for one in drawings for path in one(folder)]


def draw_draft_length(folder: Path) -> list[Path]:
    """SD alone and SD with lookahead under one budget, against positions per pass."""
    across = "k2, token positions per target pass (drafted tokens + 1)"
    title = (
        "α1 = 0.6, c1 = 0.2, α2 = 0.8, c2 = 0.05\nk1 = ⌊M / k2⌋ target steps in flight"
    )
    panel = Curves(title, across, "speedup", draft_length(), marked=False)
    return draw([panel], folder / "theory_draft_length.png")


def draw_schedules(folder: Path) -> list[Path]:
    """The synchronous cycle and the asynchronous windows against k."""
    how: dict[str, Any] = {"line": 1.0, "marked": False, "ylim": (0, None)}
    panels = [
        Curves(f"α = {alpha:g}, c = {c:g}", "k", "speedup", schedules(alpha, c), **how)
        for alpha, c in ((0.8, 0.1), (0.5, 0.25))
    ]
    return draw(panels, folder / "theory_schedules.png")


def draw_hybrid_region(folder: Path) -> list[Path]:
    """Where speculation on both levels beats each level alone, with the box of Theorem
    4."""
    with figure(10.0, 4.4) as made:
        kinds: tuple[ScheduleKind, ...] = ("async", "sync")
        for axes, schedule in zip(made.subplots(1, 2), kinds, strict=True):
            x, y, gain = hybrid_region(schedule)
            filled = axes.contourf(x, y, gain, levels=LEVELS, colors=LOSES + WINS)
            axes.contour(x, y, gain, levels=[1.0], colors=[INK])
            title = f"{schedule}, M = 16, c1 = 0.2, c2 = 0.1"
            axes.set(xlabel="α1, steps", ylabel="α2, tokens", title=title)
            if schedule == "async":
                box = [0.52, 0.8, 0.8, 0.52, 0.52], [0.52, 0.52, 0.8, 0.8, 0.52]
                axes.plot(*box, color=INK, ls="--", lw=1)
                axes.text(0.53, 0.75, "Theorem 4", fontsize=8)
            made.colorbar(filled, ax=axes, label="best hybrid / best pure method")
        return write(made, folder / "theory_hybrid_region.png")


def draw_width(folder: Path) -> list[Path]:
    """Width: the acceptance that alternatives add in two rows of Table 3 (as printed,
    correlated as fitted, independent), and the resulting speedup with the correlation
    of the first row."""
    w, across, panels = np.arange(1, 9), "W, alternatives per position", []
    for row in (TABLE_3[0], TABLE_3[2]):
        fitted = fit_width(row)
        beta = f"correlated, Beta({fitted.p:.2f}, {fitted.q:.2f})"
        lines = [
            line(beta, w, beta_width_acceptance(fitted.p, fitted.q, w)),
            line("independent", w, width_acceptance(row.acceptance[0], w)),
        ]
        printed, up = (
            [line("printed", WIDTHS, row.acceptance)],
            "acceptance of a position",
        )
        how: dict[str, Any] = {"marked": False, "ylim": (0, 1.02)}
        panels.append(Curves(row.name, across, up, lines, printed, **how))
    first = fit_width(TABLE_3[0])
    alphas = [
        (float(beta_width_acceptance(first.p, first.q, int(n))), int(n)) for n in w
    ]
    speedups = [
        line(
            f"b = {b:g}", w, [tree_sync_speedup(a, n, 2, 0.1, b, b) for a, n in alphas]
        )
        for b in (0.0, 0.01, 0.05)
    ]
    title = "sync, depth 2, c = 0.1; a further row costs b"
    panels.append(Curves(title, across, "speedup", speedups, marked=False))
    return draw(panels, folder / "theory_width.png")


def draw_validation(document: Mapping[str, Any], path: Path) -> list[Path]:
    """Measured speedups with error bars, closed form and simulation (`lr theory
    validation`)."""
    rows = document["rows"]
    with figure(max(6.4, 0.42 * len(rows) + 2.5), 4.4) as made:
        axes, places = made.subplots(), range(len(rows))
        axes.axhline(1, color=INK, lw=0.8)
        marks = (("formula", "closed form"), ("expected", "simulated"))
        for (name, label), colour in zip(marks, SERIES, strict=False):
            values = [row[name] for row in rows]
            axes.plot(places, values, "_", color=colour, ms=14, mew=2, label=label)
        measured, bars = (
            [row["measured"] for row in rows],
            [2 * row["error"] for row in rows],
        )
        style = {"color": INK, "fmt": "o", "ms": 4, "capsize": 3}
        axes.errorbar(
            places, measured, bars, label="measured, ± 2 standard errors", **style
        )
        axes.set_xticks(
            list(places), [row["way"] for row in rows], rotation=60, ha="right"
        )
        axes.set(ylabel="speedup over plain decoding", ylim=(0, None))
        axes.set_title(
            f"{document['calibration']}: predicted and measured", fontsize=11
        )
        axes.legend(loc="upper left", fontsize=9, ncols=3)
        return write(made, path)
