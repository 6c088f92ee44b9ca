"""The tree at one moment: a box per node, in it the draft's alternatives and the
target's own step.

    with tree_figure(state) as drawing:
        write(drawing, Path("tree.png"))
    draw_tree(run)                       # a scripted run as it is now, in a notebook

`cards_of` decides what a box says, for the figures, the player and the terminal. The
last decided steps are to the left of the tree, a rejected draft step with the
correction that replaced it. Read next: `cache.py`, the cache at the same moment."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from lr.watch.figures.style import (
    COLOURS,
    GRID,
    INK,
    ORIGINS,
    PAPER,
    SOFT,
    WASHES,
    figure,
    inches,
    put,
)
from lr.watch.scripted import ScriptedRun
from lr.watch.trace.file import TraceFile
from lr.watch.trace.record import scripted_trace
from lr.watch.trace.state import (
    EmittedState,
    NodeState,
    State,
    StepState,
    apply_event,
    state_at,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, BETWEEN, NAME, HEAD, LINE = 2.35, 0.4, 0.3, 0.28, 0.16
"""In inches: width of a box, room between boxes, height of a box's name, of a slip's
head and of a line of words."""
LETTERS, LINES = 28, 7  # Letters per line, lines per slip.
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
        return words_of(self.step) if failed is None else failed


def cards_of(state: State, node: NodeState) -> list[Card]:
    """The steps after a node: the draft steps of its children, then the target's
    own."""
    cards = []
    for name in node.children:
        child = state.nodes[name]
        cards.append(Card("draft", child.draft, standing_of(state, child), child))
    if node.target is not None or ("target", node.name) in state.work:
        unfinished = Standing.WRITING if node.gone is None else Standing.CANCELLED
        standing = Standing.WRITTEN if node.targeted else unfinished
        cards.append(Card("target", node.target, standing))
    return cards


def standing_of(state: State, child: NodeState) -> Standing:
    """The status of the draft step that leads to `child`."""
    if child.failed is not None:
        return Standing.FAILED
    if child.verdict is not None:
        return Standing.ALIGNED if child.verdict.aligned else Standing.REJECTED
    if child.gone is not None and not child.accepted:
        return Standing.CANCELLED
    if ("judge", child.name) in state.work:
        return Standing.ASKED
    return Standing.WRITTEN if child.drafted else Standing.WRITING


def words_of(step: StepState | None) -> str:
    """The words of a step on one line."""
    return "" if step is None else " ".join(step.text.split())


def fullest_tree(trace: TraceFile) -> int:
    """The first number of events after which the tree has the most steps and
    verdicts."""
    state = State.begin(trace.header)
    fullness = {0: -1}
    for record in trace.records:
        if record.kind in ("judged", "release", "emit", "end"):  # before a change
            fullness[record.number] = sum(
                node.drafted + node.targeted + bool(node.verdict) for node in state.live
            )
        apply_event(state, record)
    return max(fullness, key=fullness.__getitem__)


def draw_tree(run: ScriptedRun) -> Figure:
    """The tree of a scripted run as it is now, for notebooks."""
    trace = scripted_trace(run)
    with tree_figure(state_at(trace, len(trace.records))) as drawing:
        return drawing


@contextmanager
def tree_figure(state: State, of: int | None = None) -> Iterator[Any]:
    """The tree of a state, with the last decided steps to its left. `of`: the number of
    events of the trace, to write on the figure."""
    places, bottom = places_of(state)
    decided = state.emitted[-PAST:] if places else state.emitted
    slips = [slip for step in decided for slip in _decided(step)]
    past_height = NAME + sum(slip.height for slip in slips)
    top = 0.12 if of is None else 0.4
    indices = {index for index, _ in places.values()}
    column_of = {index: bool(slips) + i for i, index in enumerate(sorted(indices))}

    wide = COLUMN + BETWEEN
    width = max(1, bool(slips) + len(indices)) * wide
    height = max(bottom, past_height if slips else 1.0) + top + 0.1
    with figure(width, height, size=9, salt="lr draw") as drawing:
        axes = inches(drawing, width, height)
        if of is not None:
            put(axes, 0.15, 0.18, f"event {state.number} of {of}", 8, SOFT)
        # 1. The decided steps, in the first column.
        if slips:
            put(axes, 0.27, top + 0.17, "decided", 8.5, SOFT, weight="bold")
            end = _draw_slips(axes, (0.25, top + NAME), slips)
            if places:
                _link(axes, (COLUMN + 0.15, end - 0.3), (wide + 0.15, top + NAME / 2))
        # 2. The boxes of the tree, a column for each step of the answer.
        for name, (index, offset) in places.items():
            node = state.nodes[name]
            x = column_of[index] * wide + 0.15
            y = top + offset
            _draw_frame(axes, state, node, (x, y))
            y += NAME
            for card in cards_of(state, node):
                below = _draw_slips(axes, (x + 0.1, y), [_slip(card)])
                if card.child is not None and card.child.name in places:
                    child_y = top + places[card.child.name][1] + NAME / 2
                    _link(axes, (x + COLUMN, (y + below) / 2), (x + wide, child_y))
                y = below
        yield drawing


def places_of(state: State) -> tuple[dict[str, tuple[int, float]], float]:
    """The step number and the top (in inches) of every box, and the bottom of all. A
    box is below everything already in its column, and never above its parent.

    Example: a root with two children, each with two children: the second child is right
    below the first, and its children are below those of the first."""
    places: dict[str, tuple[int, float]] = {}
    bottoms: dict[int, float] = {}

    def visit(node: NodeState, highest: float) -> None:
        top = max(highest, bottoms.get(node.index, 0.0))
        places[node.name] = (node.index, top)
        cards = cards_of(state, node)
        bottoms[node.index] = top + _frame_height(cards) + 0.2
        for card in cards:
            child = card.child
            if child is not None and child.gone is None and cards_of(state, child):
                visit(child, top)

    root = state.nodes.get(state.root)
    if root is not None and root.gone is None and not state.done:
        visit(root, 0.0)
    return places, max(bottoms.values(), default=0.0)


class Slip(NamedTuple):
    """A step as it is drawn: its author, its status and its words, and the roles whose
    colours author and status have."""

    by: str
    status: str
    words: str
    role: str
    status_role: str

    @property
    def lines(self) -> list[str]:
        return textwrap.wrap(self.words, LETTERS, max_lines=LINES, placeholder=" …")

    @property
    def height(self) -> float:
        """In inches, with the room below."""
        return HEAD + LINE * max(1, len(self.lines)) + 0.1


def _slip(card: Card) -> Slip:
    standing = card.standing
    role = "rejected" if standing.dropped else card.by
    status_role = "accepted" if standing is Standing.ALIGNED else role
    status = f"{standing.sign} {standing.label}"
    return Slip(card.by, status, card.words, role, status_role)


def _decided(step: EmittedState) -> list[Slip]:
    """A decided step, after the draft step that it replaced."""
    slips = []
    if step.rejected is not None:
        status = f"✗ step {step.index} rejected"
        words = words_of(step.rejected)
        slips.append(Slip("draft", status, words, "rejected", "rejected"))
    by = "draft" if step.origin == "accepted" else "target"
    origin = ORIGINS[step.origin]
    status = f"{origin.mark} step {step.index} {step.origin}"
    slips.append(Slip(by, status, words_of(step.step), by, origin.role))
    return slips


def _frame_height(cards: list[Card]) -> float:
    return NAME + sum(_slip(card).height for card in cards) + 0.06


def _draw_frame(
    axes: Any, state: State, node: NodeState, at: tuple[float, float]
) -> None:
    """A node's box with its name. That of the root is thick."""
    x, y = at
    is_root = node.name == state.root
    edge, thick = (INK, 2.0) if is_root else (GRID, 1.0)
    height = _frame_height(cards_of(state, node))
    _box(axes, (x, y, COLUMN, height), facecolor=PAPER, edgecolor=edge, lw=thick)
    title = f"root · step {node.index}" if is_root else f"step {node.index}"
    put(axes, x + 0.12, y + 0.17, title, 8.5, INK, weight="bold")
    put(axes, x + COLUMN - 0.12, y + 0.17, f"node {node.name}", 7.5, SOFT, ha="right")


def _draw_slips(axes: Any, at: tuple[float, float], slips: list[Slip]) -> float:
    """Steps below each other; returns the height below the last one. What was dropped
    is hatched."""
    x, y = at
    width = COLUMN - 0.2
    for slip in slips:
        dropped = slip.role == "rejected"
        colour = COLOURS[slip.role]
        status_colour = COLOURS[slip.status_role]
        style = {"facecolor": WASHES[slip.role], "edgecolor": status_colour}
        if dropped:
            style = {"facecolor": PAPER, "edgecolor": GRID, "hatch": "////"}
        box = (x, y, width, slip.height - 0.1)
        _box(axes, box, lw=1.0, **style)
        put(axes, x + 0.1, y + 0.12, slip.by, 7.5, colour, weight="bold")
        right = {"ha": "right"}
        put(axes, x + width - 0.08, y + 0.12, slip.status, 7.5, status_colour, **right)
        text = {"va": "top", "parse_math": False}
        ink = INK if dropped else colour
        put(axes, x + 0.1, y + 0.23, "\n".join(slip.lines), 8.5, ink, **text)
        y += slip.height
    return y


def _box(axes: Any, box: tuple[float, float, float, float], **style: Any) -> None:
    from matplotlib.patches import Rectangle

    x, y, width, height = box
    axes.add_patch(Rectangle((x, y), width, height, **style))


def _link(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """A line from a step to the box that follows it."""
    axes.plot(
        [start[0], end[0]],
        [start[1], end[1]],
        color=COLOURS["draft"],
        lw=1.4,
        alpha=0.6,
    )
