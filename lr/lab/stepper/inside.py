"""A look inside: one node with both texts and every token's acceptance; the cache with who holds
which block.

    print(node_view(side, "0:2"))
    print(cache_view(session))

It only reads. Read next: `session.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lr.lab.stepper.session import Session, Side
from lr.lab.stepper.source import StepperError
from lr.lab.stepper.words import quoted, visible
from lr.lab.trace.state import CacheState, NodeState, StepState

SIGNS = {True: "✓ stays", False: "✗ rejected", None: "not tried"}


def node_view(side: Side, name: str) -> RenderableType:
    """A node: the draft step that leads to it, the target's of the same place, the verdict, and the
    tokens of both.

    Raises `StepperError` for a node that is not there (yet).
    """
    state = side.state
    if name not in state.nodes:
        raise StepperError(
            f"there is no node {name!r} here; there are: {', '.join(one.name for one in state.live)}."
        )
    node = state.nodes[name]
    parts: list[RenderableType] = [Text(_heading(node, root=name == state.root), style="bold")]
    rival = state.nodes.get(node.parent or "")
    if node.parent is not None:
        parts.append(_step("draft ", node.draft, "bright_blue", node.failed))
        parts.append(_step("target", None if rival is None else rival.target, "yellow"))
        parts.append(_verdict(node))
        parts.append(_tokens(side, "draft", name, f"the draft's step to {name}"))
        if rival is not None:
            parts.append(
                _tokens(
                    side,
                    "target",
                    rival.name,
                    f"the target's step behind {rival.name}, of the same place",
                )
            )
    else:
        parts.append(_step("target", node.target, "yellow"))
        parts.append(_tokens(side, "target", name, f"the target's step behind {name}"))
    return Group(*parts)


def token_rows(
    side: Side, role: str, node: str
) -> Iterator[tuple[str, str, float | None, float | None, float | None, str]]:
    """The tokens that a model wrote for a node, in order: piece, how it came, p, q, the probability
    of acceptance, what became of it.

    Guesses that were rejected or never tried stand among the others.
    """
    for record in side.records[: side.place]:
        data = record.data
        if record.kind not in ("token", "round") or data["role"] != role or data["node"] != node:
            continue
        if record.kind == "token":
            yield data["piece"], "drawn", data["p"], None, None, ""
        elif data["detail"] is not None:
            yield from _round_rows(data["detail"])


def cache_view(session: Session, block: int | None = None) -> RenderableType:
    """The caches of all sides: every branch with its blocks, and who holds those that are shared.
    `block`: only the holders of that one.
    """
    parts: list[RenderableType] = []
    groups = (
        [session.sides]
        if all(side.shares for side in session.sides[1:])
        else [[side] for side in session.sides]
    )
    for sides in groups:
        for name in sides[0].state.caches:
            named = [(side, side.state.caches[name]) for side in sides if name in side.state.caches]
            title = "" if len(groups) == 1 else f"side {sides[0].name}, "
            parts += _cache(title, name, named, block, two=len(session.sides) > 1)
    return (
        Group(*parts)
        if parts
        else Text("no blocks: this trace says nothing of a cache", style="dim")
    )


def _heading(node: NodeState, *, root: bool) -> str:
    where = "the root" if root else "left the tree" if node.gone is not None else "in the tree"
    leads = "" if node.parent is None else f", behind draft step {node.index - 1}"
    return f"node {node.name}: {where}{leads}"


def _step(who: str, step: StepState | None, style: str, failed: str | None = None) -> Text:
    if failed is not None:
        return Text(f"{who}  none: {failed}", style="dim")
    if step is None:
        return Text(f"{who}  not begun", style="dim")
    return Text(f"{who}  {quoted(step.text)}{'' if step.finish else ' …'}", style=style)


def _verdict(node: NodeState) -> Text:
    if node.verdict is None:
        return Text(
            "verdict none" + (" (not sure without the target's step)" if node.unsure else " yet"),
            style="dim",
        )
    score = "" if node.verdict["score"] is None else f", score {node.verdict['score']:.3f}"
    said = "aligned" if node.verdict["aligned"] else "not aligned"
    return Text(f"verdict {said}: {node.verdict['why']}{score}", style="magenta")


def _tokens(side: Side, role: str, node: str, title: str) -> RenderableType:
    rows = list(token_rows(side, role, node))
    if not rows:
        return Text(f"{title}: no tokens recorded", style="dim")
    guessed = any(one[5] for one in rows)
    table = Table(
        title=title, title_justify="left", title_style="underline", box=SIMPLE_HEAD, pad_edge=False
    )
    for column in (
        "token",
        "came",
        "p",
        *(("q", "accept", "what became of it") if guessed else ()),
    ):
        table.add_column(
            column, justify="left" if column in ("token", "came", "what became of it") else "right"
        )
    for piece, came, p, q, accept, fate in rows:
        cells = [visible(piece), came, _number(p)] + (
            [_number(q), _number(accept), fate] if guessed else []
        )
        table.add_row(*(Text(cell) for cell in cells), style="dim" if fate == SIGNS[None] else None)
    return table


def _round_rows(
    detail: dict[str, Any],
) -> Iterator[tuple[str, str, float | None, float | None, float | None, str]]:
    for one in detail["guesses"]:
        yield one["piece"], "guessed", one["p"], one["q"], one["accept"], SIGNS[one["kept"]]
    came = "residual" if detail["residual"] else "drawn"
    yield detail["piece"], came, detail["p"], None, None, "✓ behind the guesses"


def _cache(
    title: str, name: str, sides: list[tuple[Side, CacheState]], block: int | None, *, two: bool
) -> list[RenderableType]:
    def who(side: Side, number: int, state: CacheState) -> str:
        node = state.branches[number].node
        return f"{side.name + ' ' if two else ''}{'passing branch ' + str(number) if node is None else node}"

    holders: dict[int, list[str]] = {}
    for side, state in sides:
        for held, numbers in state.holders_by_block().items():
            holders.setdefault(held, []).extend(who(side, number, state) for number in numbers)
    if block is not None:
        return [
            Text(
                f"{title}{name} cache, block {block}: {', '.join(holders.get(block, ['nobody: it is free']))}"
            )
        ]
    first = sides[0][1]
    shared = sum(len(one) > 1 for one in holders.values())
    counts = f"{len(holders)} of {first.total} blocks used, {shared} shared; {first.block_size} tokens in a block"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("held by", "tokens", "blocks (×: how many hold it)"):
        table.add_column(column, justify="right" if column == "tokens" else "left")
    for side, state in sides:
        for number, branch in sorted(state.branches.items()):
            blocks = " ".join(
                f"{b}×{len(holders[b])}" if len(holders[b]) > 1 else str(b) for b in branch.blocks
            )
            table.add_row(who(side, number, state), str(branch.length), Text(blocks or "none yet"))
    return [Text(f"{title}{name} cache: {counts}", style="underline"), table]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
