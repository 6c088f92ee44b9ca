"""The tree at one moment: after each draft step, joined to it by lines, the draft's next
alternatives and the target's own step.

    write(tree_figure(state), Path("tree.png"))
    draw_tree(run)                       # a scripted run as it is now, in a notebook

`cards_of` decides what a box says, for the figures, the player and the terminal. Every
step of the answer has a column; the last decided steps are to the left of the tree, a
rejected draft step above the correction that replaced it. Read next: `cache.py`, the
cache at the same moment."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from lr.watch.figures.style import (
    COLOURS,
    GRID,
    INK,
    PAPER,
    SOFT,
    WASHES,
    figure,
    inches,
    put,
)
from lr.watch.scripted import ScriptedRun, scripted_trace
from lr.watch.trace.state import (
    NodeState,
    State,
    StepState,
    state_at,
)
from lr.watch.words import ORIGINS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, SIDE_GAP, LEVEL_HEIGHT, TOP = 2.35, 0.3, 0.9, 0.35
"""In inches: width of a box, room between columns, height of a box with the room below
it, height of the columns' titles."""
LETTERS_PER_INCH, LINES = 12.8, 3  # Letters per inch, lines per box.
PAST = 3  # Decided steps to the left of the tree.


class Standing(Enum):
    """The status of a step: its sign, its label, its colour in a terminal, and its
    meaning."""

    WRITING = ("…", "writing", "bright_blue", "is being written")
    WRITTEN = (
        "■",
        "written",
        "bright_blue",
        "is written; the comparison is still to come",
    )
    ASKED = ("?", "judging", "magenta", "is with the verifier")
    ALIGNED = ("✓", "aligned", "green", "means the same as the target's")
    REJECTED = ("✗", "not aligned", "red", "does not mean the same as the target's")
    CANCELLED = (
        "✕", "cancelled", "dim", "was cancelled: after a rejected step or next to an accepted one"
    )  # fmt: skip
    FAILED = ("∅", "none", "dim", "will never come")

    def __init__(self, sign: str, label: str, terminal: str, means: str) -> None:
        self.sign, self.label, self.terminal, self.means = sign, label, terminal, means

    @property
    def dropped(self) -> bool:
        return self in (Standing.REJECTED, Standing.CANCELLED, Standing.FAILED)


@dataclass(frozen=True)
class Card:
    """A step in a box. `by`: draft or target; `child`: the node that a draft step leads
    to."""

    by: str
    step: StepState | None
    standing: Standing
    child: NodeState | None = None

    @property
    def words(self) -> str:
        """The words of the step on one line, or why it will never come."""
        failed = None if self.child is None else self.child.failed
        return one_line(self.step) if failed is None else failed


def cards_of(state: State, node: NodeState) -> list[Card]:
    """The steps after a node: the draft steps of its children, then the target's
    own."""
    cards = []
    for name in node.children:
        child = state.nodes[name]
        cards.append(Card("draft", child.draft, standing_of(state, child), child))
    # written, or being written
    if node.target is not None or ("target", node.name) in state.work:
        unfinished = Standing.WRITING if node.gone is None else Standing.CANCELLED
        complete = node.target is not None and node.target.finish
        standing = Standing.WRITTEN if complete else unfinished
        cards.append(Card("target", node.target, standing))
    return cards


def standing_of(state: State, child: NodeState) -> Standing:
    """The status of the draft step that leads to `child`."""
    if child.failed is not None:
        return Standing.FAILED
    if child.verdict is not None:
        return Standing.ALIGNED if child.verdict.aligned else Standing.REJECTED
    if child.gone is not None and not child.accepted:  # with a rejected step before it
        return Standing.CANCELLED
    if ("judge", child.name) in state.work:
        return Standing.ASKED
    complete = child.draft is not None and child.draft.finish
    return Standing.WRITTEN if complete else Standing.WRITING


def one_line(step: StepState | None) -> str:
    """The words of a step on one line."""
    return "" if step is None else " ".join(step.text.split())


def draw_tree(run: ScriptedRun) -> Figure:
    """The tree of a scripted run as it is now, for notebooks."""
    trace = scripted_trace(run)
    return tree_figure(state_at(trace, len(trace.records)), widest=7.0)


def tree_figure(state: State, *, widest: float = math.inf) -> Figure:
    """The tree of a state, with the last decided steps to its left, at most so many
    inches wide."""
    boxes = boxes_of(state)
    columns = max((box.column + 1 for box in boxes), default=1)
    column = min(COLUMN, widest / columns - SIDE_GAP)  # the width of a box
    width = columns * (column + SIDE_GAP)
    height = TOP + max((box.row + 1 for box in boxes), default=1) * LEVEL_HEIGHT
    with figure(width, height, size=9) as drawing:
        axes = inches(drawing, width, height)
        for number, title in {box.column: box.title for box in boxes}.items():
            x = number * (column + SIDE_GAP) + SIDE_GAP / 2
            put(axes, x + 0.1, 0.16, title, 8.5, SOFT, weight="bold")
        for box in boxes:
            _draw_box(axes, box, column)
    return drawing


class DrawnStep(NamedTuple):
    """A step as it is drawn: its place, the title of its column, its author and status,
    the role whose colour the status has, and the box that it follows."""

    column: int
    row: int
    title: str
    by: str
    head: str
    status: str
    words: str
    role: str
    follows: DrawnStep | None = None


def boxes_of(state: State) -> list[DrawnStep]:
    """The last decided steps in the first column; then the tree, a column for each step
    of the answer. The steps after a node stand below everything already in their
    column, and not above the draft step that they follow."""
    boxes: list[DrawnStep] = []
    # all of a complete answer
    for step in state.emitted if state.done else state.emitted[-PAST:]:
        if step.rejected is not None:
            status = f"✗ step {step.index} rejected"
            place = (0, len(boxes), "decided", "draft", "draft")
            boxes.append(DrawnStep(*place, status, one_line(step.rejected), "rejected"))
        by = "draft" if step.origin == "accepted" else "target"
        origin = ORIGINS[step.origin]
        status = f"{origin.mark} step {step.index} {step.origin}"
        place = (0, len(boxes), "decided", by, by)
        boxes.append(DrawnStep(*place, status, one_line(step.step), origin.role))

    root = state.nodes[state.root]
    first = root.index - bool(boxes)  # the number of the step in the first column
    taken: Counter[int] = Counter()  # rows by column

    def visit(node: NodeState, highest: int, follows: DrawnStep | None) -> None:
        column = node.index - first
        title = f"step {node.index}" + f", root {node.name}" * (node is root)
        cards = cards_of(state, node)
        row = max(highest, taken[column])  # beside its parent, or below others
        taken[column] = row + len(cards)
        for i, card in enumerate(cards, row):
            standing = card.standing
            child = card.child
            head = card.by if child is None else f"draft to {child.name}"
            status = f"{standing.sign} {standing.label}"
            role = "rejected" if standing.dropped else card.by  # the colours
            role = "accepted" if standing is Standing.ALIGNED else role
            place = (column, i, title, card.by, head)
            box = DrawnStep(*place, status, card.words, role, follows)
            boxes.append(box)
            if child is not None and child.gone is None:
                visit(child, i, box)

    if root.gone is None and not state.done:
        visit(root, 0, boxes[-1] if boxes else None)
    return boxes


def _draw_box(axes: Any, box: DrawnStep, width: float) -> None:
    """A step in the colours of its author and of its status; what was dropped is
    hatched. A line leads to it from the step that it follows."""
    x = box.column * (width + SIDE_GAP) + SIDE_GAP / 2
    y = TOP + box.row * LEVEL_HEIGHT
    dropped = box.role == "rejected"
    colour = COLOURS["rejected" if dropped else box.by]
    style = {"facecolor": WASHES[box.by], "edgecolor": COLOURS[box.role]}
    if dropped:
        # hatched: dropped
        style = {"facecolor": PAPER, "edgecolor": GRID, "hatch": "////"}
    axes.barh(y, width, LEVEL_HEIGHT - 0.1, x, align="edge", **style)
    put(axes, x + 0.1, y + 0.12, box.head, 7.5, colour, weight="bold")
    status = {"ha": "right"}
    put(axes, x + width - 0.08, y + 0.12, box.status, 7.5, COLOURS[box.role], **status)
    lines = textwrap.wrap(
        box.words, int(LETTERS_PER_INCH * width), max_lines=LINES, placeholder=" …"
    )
    text = {"va": "top", "parse_math": False}
    ink = INK if dropped else colour
    put(axes, x + 0.1, y + 0.24, "\n".join(lines), 8.5, ink, **text)
    if box.follows is not None:
        # from the middle of the parent
        ys = [TOP + (box.follows.row + 0.5) * LEVEL_HEIGHT, y + LEVEL_HEIGHT / 2]
        line = {"color": COLOURS["draft"], "lw": 1.2, "alpha": 0.6}
        axes.plot([x - SIDE_GAP, x], ys, **line)
