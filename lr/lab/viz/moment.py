"""Draws the tree of a trace at one moment for a slide: a box per node, in it the draft's
alternatives and the target's own step.

    with tree_figure(Film(trace), number) as made:
        write(made, Path("tree.png"))

`number`: after how many events; `telling_moment` finds one worth showing. The pictures are those of
the player's tree. It only reads states. Read next: `holders.py`, the cache at the same moment.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lr.lab.trace.state import Film, NodeState, State, StepState, fold
from lr.lab.viz.style import INK, MARKS, PAPER, SOFT, WASH, WHO, figure, inches

COLUMN, BETWEEN, CARD, NAME, LETTERS, LINES = 2.35, 0.4, 0.82, 0.3, 28, 3
"""In inches: width of a box, room between boxes, height of a card, of a box's name; letters in a
line, lines in a card.
"""
FAMILY = "DejaVu Sans"


@dataclass(frozen=True)
class Card:
    """A step in a box. `by`: draft or target; `state`: how it stands, with its sign; `dropped`:
    rejected, cancelled or failed.
    """

    by: str
    text: str
    state: str
    dropped: bool = False
    kept: bool = False


def telling_moment(film: Film) -> int:
    """After how many events there is most to see: most steps and verdicts in the tree; the first
    such moment.
    """
    records = film.trace.records
    best, most = 0, -1
    state = State.begin(film.trace.header)
    for record in records:
        if record.kind in ("judged", "release", "emit", "end"):  # just before the tree changes
            seen = sum(
                node.drafted + node.targeted + (node.verdict is not None) for node in state.live
            )
            if seen > most:
                best, most = record.number, seen
        fold(state, record)
    return best


def cards_of(state: State, node: NodeState) -> list[Card]:
    """What stands behind a node: its children's draft steps, then the target's own."""
    cards = [_draft_card(state, state.nodes[name]) for name in node.children]
    if node.target is not None or ("target", node.name) in state.work:
        done = node.targeted
        cards.append(Card("target", _text(node.target), "■ written" if done else "… writing"))
    return cards


def places_of(state: State) -> dict[str, tuple[int, float]]:
    """Column and top, in inches, of every box: below what stands in its column already, but not
    above the box before it.

    The bottom of all is the last entry, without a name. Example: a root with two children that have
    two each: the second child stands right below the first, its children below those of the first.
    """
    places: dict[str, tuple[int, float]] = {}
    bottoms: dict[int, float] = {}

    def visit(name: str, highest: float) -> None:
        node = state.nodes[name]
        top = max(highest, bottoms.get(node.index, 0.0))
        places[name] = (node.index, top)
        bottoms[node.index] = top + NAME + len(cards_of(state, node)) * CARD + 0.25
        for child in node.children:
            inner = state.nodes[child]
            if inner.gone is None and cards_of(state, inner):
                visit(child, top)

    visit(state.root, 0.0)
    places[""] = (0, max(bottoms.values()))
    return places


@contextmanager
def tree_figure(film: Film, number: int) -> Iterator[Any]:
    """The tree after `number` events, with the last decided step to its left."""
    state = film.at(number)
    if state.root not in state.nodes:
        state.node(state.root)
    places = places_of(state)
    _, bottom = places.pop("")
    first = state.nodes[state.root].index - bool(state.emitted)
    columns = max(index for index, _ in places.values()) - first + 1
    width, height = columns * (COLUMN + BETWEEN) + 0.1, max(bottom, NAME + CARD) + 0.45
    with figure(width, height, size=9, salt="lr draw") as made:
        axes = inches(made, width, height)
        head = f"event {number} of {len(film)}"
        axes.text(0.15, 0.18, head, color=SOFT, fontsize=8, va="center")

        def left(index: int) -> float:
            return (index - first) * (COLUMN + BETWEEN) + 0.15

        if state.emitted:
            _draw_past(axes, state, left(first))
            root_x = left(first + 1)
            _link(axes, (root_x - BETWEEN, 0.4 + NAME + CARD / 2), (root_x, 0.4 + NAME / 2))
        for name, (index, top) in places.items():
            _draw_box(axes, state, state.nodes[name], (left(index), top + 0.4))
            for row, child in enumerate(state.nodes[name].children):
                if child in places:
                    start = (left(index) + COLUMN, top + 0.4 + NAME + (row + 0.45) * CARD)
                    _link(axes, start, (left(places[child][0]), places[child][1] + 0.4 + NAME / 2))
        yield made


def _draft_card(state: State, child: NodeState) -> Card:
    text = _text(child.draft)
    if child.failed is not None:
        return Card("draft", child.failed, "∅ none", dropped=True)
    if child.verdict is not None:
        aligned = bool(child.verdict["aligned"])
        return Card(
            "draft",
            text,
            "✓ aligned" if aligned else "✗ not aligned",
            dropped=not aligned,
            kept=aligned,
        )
    if child.gone is not None and not child.accepted:
        return Card("draft", text, "✕ cancelled", dropped=True)
    if ("judge", child.name) in state.work:
        return Card("draft", text, "? with the verifier")
    return Card("draft", text, "■ written" if child.drafted else "… writing")


def _text(step: StepState | None) -> str:
    """The words of a step, cut to what a card holds."""
    words = "" if step is None else " ".join(step.text.split())
    lines = textwrap.wrap(words, LETTERS)
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], lines[LINES - 1][: LETTERS - 1] + "…"]
    return "\n".join(lines)


def _draw_box(axes: Any, state: State, node: NodeState, at: tuple[float, float]) -> None:
    cards, root = cards_of(state, node), node.name == state.root
    x, y = at
    height = NAME + len(cards) * CARD + 0.06
    edge = (
        {"edgecolor": INK, "linewidth": 2.0} if root else {"edgecolor": "#c8c6bf", "linewidth": 1.0}
    )
    _rounded(axes, (x, y, COLUMN, height), facecolor=PAPER, **edge)
    title = f"root · step {node.index}" if root else f"step {node.index}"
    axes.text(x + 0.12, y + 0.17, title, fontsize=8.5, weight="bold", color=INK, va="center")
    axes.text(
        x + COLUMN - 0.12,
        y + 0.17,
        f"node {node.name}",
        fontsize=7.5,
        color=SOFT,
        va="center",
        ha="right",
    )
    for row, card in enumerate(cards):
        _draw_card(axes, card, (x + 0.1, y + NAME + row * CARD + 0.03))


def _draw_card(axes: Any, card: Card, at: tuple[float, float]) -> None:
    x, y = at
    width, height = COLUMN - 0.2, CARD - 0.1
    who = "gone" if card.dropped else card.by
    edge = WHO["kept"] if card.kept else WHO["gone"] if card.dropped else WASH[card.by]
    if card.dropped:
        _rounded(
            axes,
            (x, y, width, height),
            facecolor="#f6f6f7",
            edgecolor="#dfe0e4",
            linewidth=0,
            hatch="////",
        )
    ground = "none" if card.dropped else WASH[who]
    _rounded(axes, (x, y, width, height), facecolor=ground, edgecolor=edge, linewidth=1.0)
    axes.fill(
        [x, x + 0.06, x + 0.06, x], [y, y, y + height, y + height], color=WHO[who], linewidth=0
    )
    axes.text(x + 0.14, y + 0.12, card.by, fontsize=7.5, weight="bold", color=WHO[who], va="center")
    colour = WHO["kept"] if card.kept else WHO[who]
    axes.text(
        x + width - 0.08, y + 0.12, card.state, fontsize=7.5, color=colour, va="center", ha="right"
    )
    words = {
        "color": SOFT if card.dropped else WHO[card.by],
        "fontsize": 8.5,
        "family": FAMILY,
        "linespacing": 1.15,
    }
    axes.text(x + 0.14, y + 0.23, card.text, va="top", parse_math=False, **words)


def _draw_past(axes: Any, state: State, x: float) -> None:
    """The last decided step, to the left of the root."""
    last = state.emitted[-1]
    by = "draft" if last.origin == "accepted" else "target"
    axes.text(
        x + 0.12,
        0.57,
        f"decided · step {last.index}",
        fontsize=8.5,
        weight="bold",
        color=SOFT,
        va="center",
    )
    state_text = f"{MARKS[last.origin]} {last.origin}"
    _draw_card(
        axes,
        Card(by, _text(last.step), state_text, kept=by == "draft"),
        (x + 0.1, 0.4 + NAME + 0.03),
    )


def _rounded(axes: Any, box: tuple[float, float, float, float], **style: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y, width, height = box
    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, **style))


def _link(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """A curve from a draft step to the box behind it."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    middle = (start[0] + end[0]) / 2
    points = [start, (middle, start[1]), (middle, end[1]), end]
    codes = [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]
    axes.add_patch(
        PathPatch(
            Curve(points, codes), facecolor="none", edgecolor=WHO["draft"], linewidth=1.4, alpha=0.6
        )
    )
