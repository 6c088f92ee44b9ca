"""The pictures of theory, from the numbers of `curves.py`: four files, each as PNG and SVG. Read
next: `drawing.py` for the style.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lr.theory import curves
from lr.theory.drawing import COLOURS, INK, figure, write
from lr.theory.hybrid import Kind

LEVELS = (0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
LOSES, WINS = (
    ("#c53030", "#e57373", "#f6c9c9"),
    ("#e3f1e6", "#bfe0c8", "#8cc79e", "#4fa36c", "#2f855a"),
)
"""Colours below and above 1: red where a pure method is better, green where the hybrid is."""


def draw_all(folder: Path) -> list[Path]:
    """Draw every figure into `folder`; returns the files. The same version draws the same files."""
    return [*draw_length_and_schedules(folder), *hybrid_region(folder), *width(folder)]


def draw_length_and_schedules(folder: Path) -> list[Path]:
    """The two that are drawn in no time."""
    return [*draft_length(folder), *schedules(folder)]


def draft_length(folder: Path) -> list[Path]:
    """SD alone and SD with lookahead under one budget, against positions per pass (the theory of
    the paper's Figure 2).
    """
    with figure(6.4, 4.2) as made:
        axes = made.subplots()
        _plot(axes, curves.draft_length())
        axes.set(
            xlabel="k2, token positions per target pass (drafted tokens + 1)", ylabel="speedup"
        )
        axes.set_title(
            "α1 = 0.6, c1 = 0.2, α2 = 0.8, c2 = 0.05; k1 = ⌊M / k2⌋ target steps in flight",
            fontsize=10,
        )
        return write(made, folder / "theory_draft_length.png")


def schedules(folder: Path) -> list[Path]:
    """The synchronous cycle and the asynchronous windows against k."""
    with figure(9.6, 4.2) as made:
        for axes, (alpha, c) in zip(made.subplots(1, 2), ((0.8, 0.1), (0.5, 0.25)), strict=True):
            _plot(axes, curves.schedules(alpha, c))
            axes.axhline(1, color=INK, lw=0.8)
            axes.set(
                xlabel="k", ylabel="speedup", title=f"α = {alpha:g}, c = {c:g}", ylim=(0, None)
            )
            axes.legend(fontsize=8, loc="lower right" if alpha > 0.6 else "lower left")
        return write(made, folder / "theory_schedules.png")


def hybrid_region(folder: Path) -> list[Path]:
    """Where steps and tokens together beat each alone, with Theorem 4's box."""
    with figure(10.0, 4.4) as made:
        kinds: tuple[Kind, ...] = ("async", "sync")
        for axes, schedule in zip(made.subplots(1, 2), kinds, strict=True):
            x, y, gain = curves.hybrid_region(schedule=schedule)
            filled = axes.contourf(x, y, gain, levels=LEVELS, colors=LOSES + WINS)
            axes.contour(x, y, gain, levels=[1.0], colors=[INK])
            axes.set(
                xlabel="α1, steps",
                ylabel="α2, tokens",
                title=f"{schedule}, M = 16, c1 = 0.2, c2 = 0.1",
            )
            if schedule == "async":
                axes.plot(
                    [0.52, 0.8, 0.8, 0.52, 0.52],
                    [0.52, 0.52, 0.8, 0.8, 0.52],
                    color=INK,
                    ls="--",
                    lw=1,
                )
                axes.text(0.53, 0.75, "Theorem 4", fontsize=8)
            made.colorbar(filled, ax=axes, label="best hybrid / best pure method")
        return write(made, folder / "theory_hybrid_region.png")


def width(folder: Path) -> list[Path]:
    """Alternatives: the acceptance they buy, the speedup that is left of it."""
    with figure(10.0, 4.4) as made:
        left, right = made.subplots(1, 2)
        _plot(left, curves.width_acceptances(), pairs=True)
        left.set(
            xlabel="W, alternatives per position", ylabel="acceptance of a position", ylim=(0, 1.02)
        )
        _plot(right, curves.width_speedups())
        right.set(xlabel="W, alternatives per position", ylabel="speedup")
        right.set_title("sync, depth 2, c = 0.1; a further row costs b", fontsize=10)
        return write(made, folder / "theory_width.png")


def _plot(axes: Any, lines: Sequence[curves.Line], *, pairs: bool = False) -> None:
    """All lines, with a legend. `pairs`: three lines of one colour each (points, solid, dashed)."""
    for i, line in enumerate(lines):
        colour = COLOURS[i // 3 if pairs else i]
        style = "o" if line.marks else ("--" if pairs and i % 3 == 2 else "-")
        axes.plot(line.x, line.y, style, color=colour, label=line.label, ms=5)
    axes.legend(fontsize=8)
