"""What a side looks like in a terminal: where it stands, what has just happened, the answer, the
tree. Two sides are two columns.

Signs say what colours say, so that plain output loses nothing: ✓ accepted, ✗ rejected or corrected,
+ bonus, … being written, ■ written, ? with the verifier. Draft's words are blue, the target's
yellow, the verifier's magenta. It only reads. Read next: `inside.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lr.lab.stepper.session import Session, Side
from lr.lab.stepper.source import FORCED
from lr.lab.stepper.words import quoted, say
from lr.lab.trace.state import EmittedState, NodeState, State, StepState

STEPS = 6
"""Steps of the answer that are shown; all of them with `t`."""
MARKS = {"accepted": "✓", "correction": "✗", "bonus": "+", "target": "·"}
STYLES = {"accepted": "green", "correction": "yellow", "bonus": "cyan", "target": "default"}


def screen(session: Session) -> RenderableType:
    """All sides, beside each other; those that move are marked with ▶ where there are two."""
    if len(session.sides) == 1:
        return Group(_rule(session.sides[0], session), *body(session.sides[0]))
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in session.sides:
        table.add_column(ratio=1, overflow="ellipsis")
    columns = [Group(_rule(side, session), *body(side)) for side in session.sides]
    table.add_row(*columns)
    return table


def body(side: Side) -> list[RenderableType]:
    """What has just happened, the answer so far, the tree as it is."""
    state, happened = side.state, side.happened
    words = "before the first event" if happened is None else say(happened)
    return [
        _row("→", Text(words, style="bold")),
        Text("answer" if state.emitted else "answer: nothing yet", style="underline"),
        answer_view(state.emitted, STEPS),
        *([] if state.done else tree_lines(state)),
    ]


def answer_view(emitted: Sequence[EmittedState], most: int) -> Table:
    """The last `most` steps of the answer, each with its sign; a correction with what it replaced
    and why.
    """
    table = _grid()
    hidden = max(0, len(emitted) - most)
    if hidden:
        table.add_row("", Text(f"… {hidden} earlier steps (t shows all)", style="dim"))
    for one in emitted[hidden:]:
        words = Text(" ".join(one.step.text.split()), style=STYLES[one.origin])
        if is_forced(one.verdict):
            words.append(f" [{FORCED}]", style="bold magenta")
        if one.rejected is not None:
            why = "" if one.verdict is None else f" ({one.verdict['why']})"
            words.append(f"\ndraft: {quoted(one.rejected.text)}{why}", style="dim")
        table.add_row(Text(f"{MARKS[one.origin]} {one.index}", style=STYLES[one.origin]), words)
    return table


def is_forced(verdict: dict[str, Any] | None) -> bool:
    """Whether a verdict was forced."""
    return verdict is not None and str(verdict["why"]).startswith(FORCED)


def _grid() -> Table:
    """A column for signs and one for words, which keep their margin where they are too long for a
    line.
    """
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _row(sign: str, words: Text) -> Table:
    table = _grid()
    table.add_row(sign, words)
    return table


def tree_lines(state: State) -> list[Text]:
    """The tree below the root: a line for each draft step, one for the target's step behind each
    node.
    """
    root = state.nodes.get(state.root)
    if root is None:
        return []
    lines = [Text("tree", style="underline"), Text(f" root {root.name}", style="bold")]

    def visit(node: NodeState, depth: int) -> None:
        space = "  " * depth + "  "
        if node.target is not None or ("target", node.name) in state.work:
            lines.append(_target_line(space, node))
        for name in node.children:
            child = state.nodes[name]
            lines.append(_draft_line(space, state, child))
            if child.gone is None:
                visit(child, depth + 1)

    visit(root, 0)
    return lines


def _target_line(space: str, node: NodeState) -> Text:
    line = Text(
        f"{space}target {'■' if node.targeted else '…'} ",
        style="yellow",
        no_wrap=True,
        overflow="ellipsis",
    )
    return line.append(_words(node.target), style="yellow")


def _draft_line(space: str, state: State, child: NodeState) -> Text:
    """The draft step that leads to `child`, with its name and how it stands."""
    sign, style = _standing(state, child)
    line = Text(
        f"{space}{child.name} draft {sign} ", style=style, no_wrap=True, overflow="ellipsis"
    )
    if is_forced(child.verdict):
        line.append("[forced] ", style="bold magenta")
    return line.append(
        child.failed if child.failed is not None else _words(child.draft), style=style
    )


def _standing(state: State, child: NodeState) -> tuple[str, str]:
    if child.failed is not None:
        return "∅", "dim"
    if child.verdict is not None:
        return ("✓", "green") if child.verdict["aligned"] else ("✗", "red")
    if child.gone is not None:
        return "✕", "dim"
    if ("judge", child.name) in state.work:
        return "?", "magenta"
    return ("■" if child.drafted else "…"), "bright_blue"


def _words(step: StepState | None) -> str:
    return "" if step is None else " ".join(step.text.split())


def _rule(side: Side, session: Session) -> Rule:
    header, state = side.source.header, side.state
    two = len(session.sides) > 1
    name = f"{'▶ ' if side in session.moved else '  '}{side.name} · " if two else ""
    kind = "live" if side.source.runs else "recorded"
    of = "" if side.source.runs and not side.over else f" of {len(side.records)}"
    if two:
        return Rule(Text(f"{name}event {side.place}{of}"), align="left", style="dim")
    ahead = "" if header.driver == "plain" else f", {header.schedule} {header.depth}"
    passes = f"{state.forwards.get('target', 0)} target passes"
    return Rule(
        Text(f"event {side.place}{of} · {kind} · {header.mode}{ahead} · {passes}"),
        align="left",
        style="dim",
    )
