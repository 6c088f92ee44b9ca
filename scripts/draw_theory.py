"""Draws the figures of docs/theory.md: speedup against draft length, the schedules, the
region where the hybrid wins, and width. Wants matplotlib (the extra `plot`).

    python scripts/draw_theory.py

The paper's Figures 2 and 3 show measurements; `draft_length` gives the theory on the
same axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from paper_tables import TABLE_3, WIDTHS, fit_width

from lr.theory.acceptance import (
    beta_width_acceptance,
    tree_sync_speedup,
    width_acceptance,
)
from lr.theory.asynchronous import lr_async_limit, lr_async_speedup
from lr.theory.hybrid import ScheduleKind, best_split, hybrid_speedup
from lr.theory.synchronous import lr_sync_cycle_speedup, sd_speedup_of_positions
from lr.watch.figures.plots import Curve, Curves, draw_panels
from lr.watch.figures.style import INK, WASHES, figure, write

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
    alpha1 = 0.6
    alpha2 = 0.8
    c1 = 0.2
    c2 = 0.05
    k2 = np.arange(1, 33)
    lines = [line("SD alone", k2, sd_speedup_of_positions(alpha2, k2, c2))]
    for m in (16, 64):
        fits = k2[k2 <= m]
        speedups = [
            hybrid_speedup(alpha1, alpha2, c1, c2, m // int(k), int(k), "async")
            for k in fits
        ]
        lines.append(line(f"SD + lookahead, M = {m}", fits, speedups))
    return lines


def schedules(alpha: float = 0.8, c: float = 0.1) -> list[Line]:
    """Speedup against k: the synchronous cycle, the windows, and the limit without a
    window. k counts the target steps in flight, so Algorithm 1 drafts g = k - 1; with
    `depth` up to k + 1 are."""
    k = np.arange(1, 17)
    return [
        line(
            "sync, k = g + 1 (Algorithm 1)", k, lr_sync_cycle_speedup(alpha, k - 1, c)
        ),
        line("paper, k pairs in flight", k, lr_async_speedup(alpha, k, c, "paper")),
        line("depth, k unverified drafts", k, lr_async_speedup(alpha, k, c, "depth")),
        line("cycle, asynchronous inside", k, lr_async_speedup(alpha, k, c, "cycle")),
        line("no window", k, np.full(len(k), lr_async_limit(alpha, c))),
    ]


def hybrid_region(schedule: ScheduleKind) -> tuple[Any, Any]:
    """Rates of acceptance, and for each pair (row alpha2, column alpha1) whether a
    hybrid of both levels is the best way to spend the budget (Theorem 4)."""
    rates = np.linspace(0.05, 0.95, 37)
    wins = [
        [
            best_split(float(a1), float(a2), 0.2, 0.1, 16, schedule).hybrid_wins
            for a1 in rates
        ]
        for a2 in rates
    ]
    return rates, np.array(wins)


def draw_all(folder: Path) -> list[Path]:
    """Draw every figure into `folder`; the same version draws the same files."""
    drawings = (draw_draft_length, draw_schedules, draw_hybrid_region, draw_width)
    return [path for drawing in drawings for path in drawing(folder)]


def draw_draft_length(folder: Path) -> list[Path]:
    """SD alone and SD with lookahead under one budget, against positions per pass."""
    panel = Curves(
        title="α1 = 0.6, c1 = 0.2, α2 = 0.8, c2 = 0.05\n"
        "k1 = ⌊M / k2⌋ target steps in flight",
        x="k2, token positions per target pass (drafted tokens + 1)",
        y="speedup",
        lines=draft_length(),
        xscale="log",
    )
    return draw_panels([panel], folder / "theory_draft_length.png")


def draw_schedules(folder: Path) -> list[Path]:
    """The synchronous cycle and the asynchronous windows against k."""
    panels = [
        Curves(
            title=f"α = {alpha:g}, c = {c:g}",
            x="k",
            y="speedup",
            lines=schedules(alpha, c),
            line=1.0,
            ylim=(0, None),
        )
        for alpha, c in ((0.8, 0.1), (0.5, 0.25))
    ]
    return draw_panels(panels, folder / "theory_schedules.png")


def draw_hybrid_region(folder: Path) -> list[Path]:
    """Where speculation on both levels beats each level alone, with the box of Theorem
    4."""
    kinds: tuple[ScheduleKind, ...] = ("async", "sync")
    with figure(10.0, 4.4) as drawing:
        for axes, schedule in zip(drawing.subplots(1, 2), kinds, strict=True):
            rates, wins = hybrid_region(schedule)
            colours = [WASHES["rejected"], WASHES["accepted"]]
            axes.contourf(rates, rates, wins, levels=[-0.5, 0.5, 1.5], colors=colours)
            axes.text(0.6, 0.62, "both levels win")
            axes.text(0.08, 0.08, "one level alone wins")
            axes.set(xlabel="α1, steps", ylabel="α2, tokens")
            axes.set_title(f"{schedule}, M = 16, c1 = 0.2, c2 = 0.1")
            if schedule == "async":
                corners = [0.52, 0.8, 0.8, 0.52, 0.52], [0.52, 0.52, 0.8, 0.8, 0.52]
                axes.plot(*corners, color=INK, ls="--", lw=1)
                axes.text(0.53, 0.75, "Theorem 4", fontsize=8)
        return write(drawing, folder / "theory_hybrid_region.png")


def draw_width(folder: Path) -> list[Path]:
    """Width: the acceptance that alternatives add in two rows of Table 3 (as printed,
    correlated as fitted, independent), and the resulting speedup with the correlation
    of the first row."""
    w = np.arange(1, 9)
    x = "W, alternatives per position"
    panels = []
    for row in (TABLE_3[0], TABLE_3[2]):
        fit = fit_width(row)
        correlated = f"correlated, Beta({fit.p:.2f}, {fit.q:.2f})"
        panels.append(
            Curves(
                title=row.name,
                x=x,
                y="acceptance of a position",
                lines=[
                    line(correlated, w, beta_width_acceptance(fit.p, fit.q, w)),
                    line("independent", w, width_acceptance(row.acceptance[0], w)),
                ],
                points=[line("printed", WIDTHS, row.acceptance)],
                ylim=(0, 1.02),
            )
        )
    first = fit_width(TABLE_3[0])
    speedups = []
    for b in (0.0, 0.01, 0.05):
        ups = [
            tree_sync_speedup(
                float(beta_width_acceptance(first.p, first.q, int(n))),
                int(n),
                2,
                0.1,
                b,
                b,
            )
            for n in w
        ]
        speedups.append(line(f"b = {b:g}", w, ups))
    title = "sync, depth 2, c = 0.1; a further row costs b"
    panels.append(Curves(title, x, "speedup", speedups))
    return draw_panels(panels, folder / "theory_width.png")


if __name__ == "__main__":
    draw_all(Path(__file__).parents[1] / "docs" / "figures")
