"""The tree at one moment: a box per node, in it the draft's alternatives and the
target's own step.

    with tree_figure(state) as made:
        write(made, Path("tree.png"))
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
from lr.watch.trace.state import (
    EmittedState,
    NodeState,
    State,
    StepState,
    apply_event,
    state_at,
)
from lr.watch.trace.virtual import scripted_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, BETWEEN, NAME, HEAD, LINE, LETTERS, LINES = 2.35, 0.4, 0.3, 0.28, 0.16, 28, 7
"""In inches: width of a box, room between boxes, height of a box's name, of a card's
head and of a line of words. Then: letters per line, lines per card."""
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
        return Standing.ALIGNED if child.verdict["aligned"] else Standing.REJECTED
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
    state, seen = State.begin(trace.header), {0: -1}
    for record in trace.records:
        if record.kind in (
            "judged",
            "release",
            "emit",
            "end",
        ):  # just before the tree changes
            there = (
                one.drafted + one.targeted + bool(one.verdict) for one in state.live
            )
            seen[record.number] = sum(there)
        apply_event(state, record)
    return max(seen, key=seen.__getitem__)


def draw_tree(run: ScriptedRun) -> Figure:
    """The tree of a scripted run as it is now, for notebooks."""
    trace = scripted_trace(run)
    with tree_figure(state_at(trace, len(trace.records))) as made:
        return made


@contextmanager
def tree_figure(state: State, of: int | None = None) -> Iterator[Any]:
    """The tree of a state, with the last decided steps to its left. `of`: the number of
    events of the trace, to write on the figure."""
    places, bottom = places_of(state)
    over, top = not places, 0.12 if of is None else 0.4
    past = state.emitted if over else state.emitted[-PAST:]
    stacks = [past[i : i + 4] for i in range(0, len(past), 4)]  # PAST is less than 4
    root_index = 0 if over else state.nodes[state.root].index
    ahead = 0 if over else max(index for index, _ in places.values()) - root_index + 1
    columns = max(1, len(stacks) + ahead)
    decided = [[slip for one in stack for slip in _decided(one)] for stack in stacks]
    tall = max(
        (NAME + sum(slip.height for slip in slips) for slips in decided), default=0
    )
    wide = COLUMN + BETWEEN
    width, height = columns * wide, max(bottom, tall, NAME + HEAD) + top + 0.1
    with figure(width, height, size=9, salt="lr draw") as made:
        axes = inches(made, width, height)
        if of is not None:
            put(axes, 0.15, 0.18, f"event {state.number} of {of}", 8, SOFT)
        for column, (stack, slips) in enumerate(zip(stacks, decided, strict=True)):
            x, y = column * wide + 0.15, top + NAME + 0.03
            first, last = stack[0].index, stack[-1].index
            numbers = f"step {first}" + (f" to {last}" if last > first else "")
            put(
                axes,
                x + 0.12,
                top + 0.17,
                f"decided · {numbers}",
                8.5,
                SOFT,
                weight="bold",
            )
            for slip in slips:
                _draw_slip(axes, (x + 0.1, y), slip)
                y += slip.height
        if stacks and not over:
            start = (COLUMN + 0.15, y - slips[-1].height / 2)
            _link(axes, start, (wide + 0.15, top + NAME / 2))
        for name, (index, at) in places.items():
            x, y = (index - root_index + len(stacks)) * wide + 0.15, at + top
            _draw_frame(axes, state, state.nodes[name], (x, y))
            y += NAME + 0.03
            for card in cards_of(state, state.nodes[name]):
                slip = _slip(card)
                _draw_slip(axes, (x + 0.1, y), slip)
                if card.child is not None and card.child.name in places:
                    end = places[card.child.name][1] + top + NAME / 2
                    _link(axes, (x + COLUMN, y + 0.4 * slip.height), (x + wide, end))
                y += slip.height
        yield made


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
        bottoms[node.index] = (
            top + NAME + sum(_slip(card).height for card in cards) + 0.25
        )
        for card in cards:
            if (
                card.child is not None
                and card.child.gone is None
                and cards_of(state, card.child)
            ):
                visit(card.child, top)

    root = state.nodes.get(state.root)
    if root is not None and root.gone is None and not state.done:
        visit(root, 0.0)
    return places, max(bottoms.values(), default=0.0)


class Slip(NamedTuple):
    """A card as it is drawn: its author, its status, its words, and the roles whose
    colours the card (`who`) and the status (`told`) have. A rejected card is
    hatched."""

    by: str
    said: str
    text: str
    who: str
    told: str

    @property
    def height(self) -> float:
        """In inches, with the room below."""
        return HEAD + LINE * (self.text.count("\n") + 1) + 0.1


def _slip(card: Card) -> Slip:
    standing, who = card.standing, "rejected" if card.standing.dropped else card.by
    told = "accepted" if standing is Standing.ALIGNED else who
    return Slip(
        card.by, f"{standing.sign} {standing.label}", _wrapped(card.words), who, told
    )


def _decided(one: EmittedState) -> list[Slip]:
    """A decided step, after the draft step that it replaced."""
    slips, rejected = [], _wrapped(words_of(one.rejected))
    if rejected:
        said = f"✗ step {one.index} rejected"
        slips.append(Slip("draft", said, rejected, "rejected", "rejected"))
    by, how = "draft" if one.origin == "accepted" else "target", ORIGINS[one.origin]
    said, text = (
        f"{how.mark} step {one.index} {one.origin}",
        _wrapped(words_of(one.step)),
    )
    return [*slips, Slip(by, said, text, by, how.role)]


def _wrapped(words: str) -> str:
    return "\n".join(textwrap.wrap(words, LETTERS, max_lines=LINES, placeholder=" …"))


def _draw_frame(
    axes: Any, state: State, node: NodeState, at: tuple[float, float]
) -> None:
    """A node's box with its name."""
    (x, y), root = at, node.name == state.root
    height = NAME + sum(_slip(card).height for card in cards_of(state, node)) + 0.06
    edge, thick = (INK, 2.0) if root else (GRID, 1.0)
    _rounded(
        axes, (x, y, COLUMN, height), facecolor=PAPER, edgecolor=edge, linewidth=thick
    )
    title = f"root · step {node.index}" if root else f"step {node.index}"
    put(axes, x + 0.12, y + 0.17, title, 8.5, INK, weight="bold")
    put(axes, x + COLUMN - 0.12, y + 0.17, f"node {node.name}", 7.5, SOFT, ha="right")


def _draw_slip(axes: Any, at: tuple[float, float], slip: Slip) -> None:
    (x, y), width, height = at, COLUMN - 0.2, slip.height - 0.1
    box, who, dropped = (x, y, width, height), slip.who, slip.who == "rejected"
    if dropped:
        _rounded(
            axes, box, facecolor=WASHES[who], edgecolor=GRID, linewidth=0, hatch="////"
        )
    edge = COLOURS[slip.told] if dropped or slip.told != who else WASHES[who]
    ground = "none" if dropped else WASHES[who]
    _rounded(axes, box, facecolor=ground, edgecolor=edge, linewidth=1.0)
    axes.barh(y, 0.06, height, x, align="edge", color=COLOURS[who], linewidth=0)
    put(axes, x + 0.14, y + 0.12, slip.by, 7.5, COLOURS[who], weight="bold")
    put(
        axes, x + width - 0.08, y + 0.12, slip.said, 7.5, COLOURS[slip.told], ha="right"
    )
    style = {
        "family": "DejaVu Sans",
        "linespacing": 1.15,
        "va": "top",
        "parse_math": False,
    }
    put(
        axes,
        x + 0.14,
        y + 0.23,
        slip.text,
        8.5,
        SOFT if dropped else COLOURS[who],
        **style,
    )


def _rounded(axes: Any, box: tuple[float, float, float, float], **style: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y, width, height = box
    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, **style))


def _link(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """A curve from a step to the box that follows it."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    middle = (start[0] + end[0]) / 2
    points = [start, (middle, start[1]), (middle, end[1]), end]
    curve = Curve(points, [Curve.MOVETO, *3 * [Curve.CURVE4]])
    style = {
        "edgecolor": COLOURS["draft"],
        "facecolor": "none",
        "linewidth": 1.4,
        "alpha": 0.6,
    }
    axes.add_patch(PathPatch(curve, **style))
