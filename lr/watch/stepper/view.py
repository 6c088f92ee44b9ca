"""What a side looks like in a terminal: its place, the last event, the answer, the
tree. Two sides are two columns.

Signs say the same as colours, so plain output loses nothing: ✓ accepted, ✗ rejected or corrected,
+ bonus, … being written, ■ written, ? with the verifier. The draft's words are blue, the target's
yellow, the verifier's magenta. `viz/tree.py` decides what the tree contains. `node_view` shows one
node, with both texts and every token's acceptance; `cache_view` shows who holds which block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lr.watch.figures.style import ORIGINS
from lr.watch.figures.tree import Card, cards_of, words_of
from lr.watch.stepper.session import Session, Side, is_forced
from lr.watch.stepper.sources import FORCED, StepperError
from lr.watch.stepper.words import quoted, say, visible
from lr.watch.trace.state import (
    BranchState,
    CacheState,
    EmittedState,
    NodeState,
    State,
    StepState,
)

STEPS = 6  # How many steps of the answer a screen shows; `t` shows all.
SIGNS = {True: "✓ stays", False: "✗ rejected", None: "not tried"}


def screen(session: Session) -> RenderableType:
    """All sides, next to each other. With two sides, ▶ marks those that move."""
    asked = session.sides[0].source.header.question
    question = [] if asked is None else [Text(asked, style="italic")]
    sides = [Group(_rule(side, session), *body(side)) for side in session.sides]
    if len(sides) == 1:
        return Group(*question, *sides)
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in sides:
        table.add_column(ratio=1, overflow="ellipsis")
    table.add_row(*sides)
    return Group(*question, table)


def body(side: Side) -> list[RenderableType]:
    """The last event, the answer so far, the present tree."""
    state, happened, now = side.state, side.happened, _grid()
    words = "before the first event" if happened is None else say(happened)
    now.add_row("→", Text(words, style="bold"))
    return [
        now,
        Text("answer" if state.emitted else "answer: nothing yet", style="underline"),
        answer_view(state.emitted, STEPS),
        *([] if state.done else tree_lines(state)),
    ]


def answer_view(emitted: Sequence[EmittedState], most: int) -> Table:
    """The last `most` steps with their signs; a correction with the step it replaced
    and why."""
    table = _grid()
    hidden = max(0, len(emitted) - most)
    if hidden:
        table.add_row("", Text(f"… {hidden} earlier steps (t shows all)", style="dim"))
    for one in emitted[hidden:]:
        how, style = ORIGINS[one.origin], ORIGINS[one.origin].style
        words = Text(words_of(one.step), style=style)
        if is_forced(one.verdict):
            words.append(f" [{FORCED}]", style="bold magenta")
        if one.rejected is not None:
            why = "" if one.verdict is None else f" ({one.verdict['why']})"
            words.append(f"\ndraft: {quoted(one.rejected.text)}{why}", style="dim")
        table.add_row(Text(f"{how.typed} {one.index}", style=style), words)
    return table


def _grid() -> Table:
    """A column for signs and one for words, whose margin is kept over several lines."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def tree_lines(state: State) -> list[Text]:
    """The tree below the root: a line for each draft step and each node's target
    step."""
    root = state.nodes.get(state.root)
    if root is None:
        return []
    lines = [Text("tree", style="underline"), Text(f" root {root.name}", style="bold")]

    def visit(node: NodeState, depth: int) -> None:
        space = "  " * depth + "  "
        cards = cards_of(state, node)
        for card in sorted(
            cards, key=lambda one: one.by == "draft"
        ):  # the target's own first
            lines.append(_card_line(space, card))
            if card.child is not None and card.child.gone is None:
                visit(card.child, depth + 1)

    visit(root, 0)
    return lines


def _card_line(space: str, card: Card) -> Text:
    """A step of the tree with its sign; a draft step with the name of the node it leads
    to."""
    child, sign = card.child, card.standing.sign
    style = "yellow" if child is None else card.standing.terminal
    name = (
        f"{space}target {sign} "
        if child is None
        else f"{space}{child.name} draft {sign} "
    )
    line = Text(name, style=style, no_wrap=True, overflow="ellipsis")
    if child is not None and is_forced(child.verdict):
        line.append("[forced] ", style="bold magenta")
    return line.append(card.words, style=style)


def _rule(side: Side, session: Session) -> Rule:
    header, state = side.source.header, side.state
    of = "" if side.source.runs and not side.over else f" of {len(side.records)}"
    where = f"event {side.place}{of}"
    if len(session.sides) > 1:
        where = f"{'▶' if side in session.moved else ' '} {side.name} · {where}"
    else:
        kind = "live" if side.source.runs else "recorded"
        ahead = (
            "" if header.driver == "plain" else f", {header.schedule} {header.depth}"
        )
        passes = f"{state.forwards.get('target', 0)} target passes"
        where += f" · {kind} · {header.mode}{ahead} · {passes}"
    return Rule(Text(where), align="left", style="dim")


def node_view(side: Side, name: str) -> RenderableType:
    """A node: the draft step that leads to it, the target's step at the same place, the
    verdict, the tokens of both steps, and a variant's notes about the node.

    Raises `StepperError` for a node that does not exist (yet)."""
    state = side.state
    if name not in state.nodes:
        there = ", ".join(one.name for one in state.live)
        raise StepperError(f"there is no node {name!r} here; there are: {there}.")
    node = state.nodes[name]
    there = "in the tree" if node.gone is None else "left the tree"
    there = "the root" if name == state.root else there
    leads = "" if node.parent is None else f"; after draft step {node.index - 1}"
    parts: list[RenderableType] = [Text(f"node {name}: {there}{leads}", style="bold")]
    if node.parent is not None:
        parts.append(_step("draft ", node.draft, "bright_blue", node.failed))
    at = state.nodes[
        node.parent or name
    ]  # the target's step after it is at the same place
    parts.append(_step("target", at.target, "yellow"))
    title = f"the target's step after {at.name}"
    if node.parent is not None:
        parts.append(_verdict(node))
        parts.append(_tokens(side, "draft", name, f"the draft's step to {name}"))
        title += ", of the same place"
    parts.append(_tokens(side, "target", at.name, title))
    notes = (one for one in side.records[: side.place] if one.kind == "note")
    parts += [
        Text(say(one), style="magenta") for one in notes if one.data["node"] == name
    ]
    return Group(*parts)


def token_rows(
    side: Side, role: str, node: str
) -> Iterator[tuple[str, str, float | None, float | None, float | None, str]]:
    """The tokens that a model wrote for a node, in order, with those rejected or never
    tried: piece, origin, p, q, the probability of acceptance, what became of it."""
    for record in side.records[: side.place]:
        data = record.data
        if (
            record.kind not in ("token", "round")
            or data["role"] != role
            or data["node"] != node
        ):
            continue
        if record.kind == "token":
            yield data["piece"], "drawn", data["p"], None, None, ""
        elif (detail := data["detail"]) is not None:
            for one in detail["draft_tokens"]:
                fate = SIGNS[one["kept"]]
                yield one["piece"], "proposed", one["p"], one["q"], one["accept"], fate
            came = "residual" if detail["residual"] else "drawn"
            yield (
                detail["piece"],
                came,
                detail["p"],
                None,
                None,
                "✓ after the draft tokens",
            )


def cache_view(session: Session, block: int | None = None) -> RenderableType:
    """The caches of all sides: every branch with its blocks, and how many branches hold
    each block. `block`: show only the owners of this block."""
    parts: list[RenderableType] = []
    shared = all(side.shares for side in session.sides[1:])
    groups = [session.sides] if shared else [[side] for side in session.sides]
    for sides in groups:
        states = [
            (f"{side.name} " * (len(session.sides) > 1), side.state) for side in sides
        ]
        for name in states[0][1].caches:
            named = [
                (who, one.caches[name]) for who, one in states if name in one.caches
            ]
            title = "" if len(groups) == 1 else f"side {sides[0].name}, "
            parts += _cache(f"{title}{name} cache", named, block)
    none = Text("no blocks: this trace says nothing of a cache", style="dim")
    return Group(*parts) if parts else none


def _step(
    who: str, step: StepState | None, style: str, failed: str | None = None
) -> Text:
    if failed is not None:
        return Text(f"{who}  none: {failed}", style="dim")
    if step is None:
        return Text(f"{who}  not begun", style="dim")
    return Text(f"{who}  {quoted(step.text)}{'' if step.finish else ' …'}", style=style)


def _verdict(node: NodeState) -> Text:
    if node.verdict is None:
        why = " (not sure without the target's step)" if node.unsure else " yet"
        return Text(f"verdict none{why}", style="dim")
    score = (
        "" if node.verdict["score"] is None else f", score {node.verdict['score']:.3f}"
    )
    said = "aligned" if node.verdict["aligned"] else "not aligned"
    return Text(f"verdict {said}: {node.verdict['why']}{score}", style="magenta")


def _tokens(side: Side, role: str, node: str, title: str) -> RenderableType:
    rows = list(token_rows(side, role, node))
    if not rows:
        return Text(f"{title}: no tokens recorded", style="dim")
    shown = (
        6 if any(one[5] for one in rows) else 3
    )  # columns; the last three are about proposals
    heading: Any = {"title": title, "title_justify": "left", "title_style": "underline"}
    table = Table(box=SIMPLE_HEAD, pad_edge=False, **heading)
    for column in ("token", "came", "p", "q", "accept", "what became of it")[:shown]:
        table.add_column(
            column, justify="right" if column in ("p", "q", "accept") else "left"
        )
    for piece, came, *values, fate in rows:
        numbers = ["" if value is None else f"{value:.3f}" for value in values]
        cells = [Text(cell) for cell in (visible(piece), came, *numbers, fate)]
        table.add_row(*cells[:shown], style="dim" if fate == SIGNS[None] else None)
    return table


def _cache(
    title: str, sides: list[tuple[str, CacheState]], block: int | None
) -> list[RenderableType]:
    """One cache. `sides`: the prefix of a side's names, and that side's state of the
    cache."""
    owners: dict[int, list[str]] = {}
    branches: list[tuple[str, BranchState]] = []
    for side, state in sides:
        for number, one in sorted(state.branches.items()):
            whose = f"passing branch {number}" if one.node is None else one.node
            branches.append((side + whose, one))
            for held in one.blocks:
                owners.setdefault(held, []).append(side + whose)
    if block is not None:
        told = ", ".join(owners.get(block, ["nobody: it is free"]))
        return [Text(f"{title}, block {block}: {told}")]
    first, shared = sides[0][1], sum(len(one) > 1 for one in owners.values())
    counts = f"{len(owners)} of {first.total} blocks used, {shared} shared"
    counts += f"; {first.block_size} tokens in a block"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("held by", "tokens", "blocks (×: how many hold it)"):
        table.add_column(column, justify="right" if column == "tokens" else "left")
    for who, one in branches:
        counted = [(held, len(owners[held])) for held in one.blocks]
        blocks = " ".join(
            f"{b}×{count}" if count > 1 else f"{b}" for b, count in counted
        )
        table.add_row(who, str(one.length), Text(blocks or "none yet"))
    return [Text(f"{title}: {counts}", style="underline"), table]
