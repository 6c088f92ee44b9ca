"""Draws a scheduler's tree as it is now: what is emitted, what hangs below the root, who has
written what, what the verifier said.

    run.step()
    draw_tree(run, text_of)

It only reads. Read next: `order.py`, which draws a whole run; `lab/scripted.py`, whose
runs are drawn here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lr.lab.scripted import ScriptedRun, Words
from lr.lab.viz.canvas import COLOURS, GONE, IDLE, INK, KEPT, canvas
from lr.spec.protocol import Kind, NodeId
from lr.spec.scheduler import Node
from lr.types import Origin, Step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND = (
    ("draft's words", COLOURS[Kind.DRAFT]),
    ("target's words", COLOURS[Kind.TARGET]),
    ("draft step kept", KEPT),
    ("draft step rejected", GONE),
    ("being written", IDLE),
)


def draw_tree(run: ScriptedRun, words: Words) -> Figure:
    """The chain so far (thick), and the tree that hangs behind the root (the black dot); one column
    per step.

    Above a line stands the draft's step, below it the target's version of the same step; "?" is
    with the verifier, "…" is being written. At the dots are the names of the nodes. `words` shows a
    step.
    """
    placed = place(run.scheduler.root)
    rows = 1 - min(y for y in placed.values())
    columns = max(len(run.emitted), *(node.index for node in placed)) + 1
    figure, axes = canvas(max(1.7 * columns, 7.5), 0.95 * rows + 0.35)
    for emitted in run.emitted:
        kept = emitted.origin is Origin.ACCEPTED
        colour = KEPT if kept else COLOURS[Kind.TARGET]
        axes.plot(
            [emitted.index, emitted.index + 1],
            [0, 0],
            color=colour,
            linewidth=4,
            solid_capstyle="butt",
        )
        _label(axes, emitted.index, 0, words(emitted.step), colour, above=kept)
    if not run.done:
        _draw_below(axes, run.scheduler.root, placed, words)
        axes.text(
            run.scheduler.root.id.index,
            0.14,
            str(run.scheduler.root.id),
            ha="center",
            fontsize=7,
            color=INK,
        )
    axes.plot(
        run.scheduler.root.id.index if not run.done else len(run.emitted),
        0,
        "o",
        color="black",
        markersize=9,
    )
    axes.set(xlim=(-0.1, columns), ylim=(0.5 - rows, 0.5))
    axes.axis("off")
    for i, (meaning, colour) in enumerate(LEGEND):
        axes.text(
            i / len(LEGEND),
            0,
            f"■ {meaning}",
            color=colour,
            fontsize=8,
            va="top",
            transform=axes.transAxes,
        )
    return figure


def place(root: Node) -> dict[NodeId, int]:
    """How high each node of a tree stands: a first child beside its parent, the next one below
    everything before it.

    Example, width 2, two levels: root 0, its children 0 and -2, their children 0, -1 and -2, -3.
    """
    heights: dict[NodeId, int] = {}
    leaves = 0

    def visit(node: Node) -> int:
        nonlocal leaves
        below = [visit(child) for child in node.children]
        leaves += not below
        heights[node.id] = below[0] if below else 1 - leaves
        return heights[node.id]

    visit(root)
    return heights


def _draw_below(axes: Axes, node: Node, heights: dict[NodeId, int], words: Words) -> None:
    """The target's step behind `node`, and the draft steps that lead to its children, and so on."""
    x, y = node.id.index, heights[node.id]
    if node.target_began:
        _label(
            axes,
            x,
            y,
            _text(node.target, words),
            IDLE if node.target is None else COLOURS[Kind.TARGET],
            above=False,
        )
    for child in node.children:
        at = heights[child.id]
        colour, mark = _standing(child)
        axes.plot(
            [x, x + 0.06, x + 1],
            [y, at, at],
            color=colour,
            linewidth=1.5,
            linestyle="-" if child.draft else ":",
        )
        _label(axes, x, at, _text(child.draft, words) + mark, colour, above=True)
        if child.open:
            axes.plot(x + 1, at, "o", color=colour, markersize=6)
            axes.text(x + 1, at + 0.12, str(child.id), ha="center", fontsize=7, color=INK)
        _draw_below(axes, child, heights, words)


def _standing(child: Node) -> tuple[str, str]:
    """The colour of a draft step, and the mark behind it."""
    if child.draft is None:
        return (IDLE, "") if child.awaited else (GONE, " (failed)")
    if child.verdict is not None:
        return (KEPT, " ✓") if child.verdict.aligned else (GONE, " ✗")
    return COLOURS[Kind.DRAFT], " ?" if child.judging else ""


def _text(step: Step | None, words: Words) -> str:
    return "…" if step is None else words(step)


def _label(axes: Axes, x: float, y: float, text: str, colour: str, *, above: bool) -> None:
    axes.text(
        x + 0.53,
        y + (0.1 if above else -0.12),
        text,
        ha="center",
        va="bottom" if above else "top",
        color=colour,
        fontsize=9,
    )
