"""What a side looks like in a terminal: its place, the last event, the answer, the
tree. Two sides are two columns.

Signs say the same as colours, so plain output loses nothing: ✓ accepted, ✗ rejected or
corrected, + bonus, … being written, ■ written, ? with the verifier. The draft's words
are blue, the target's yellow, the verifier's magenta. `figures/tree.py` decides what
the tree contains. `node_view` shows one node, with every token's
acceptance; `cache_view` shows who holds which block."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lr.watch.figures.tree import Card, cards_of, one_line
from lr.watch.stepper.session import FORCED, Session, Source, StepperError, is_forced
from lr.watch.trace.state import CacheState, EmittedState, NodeState, State, StepState
from lr.watch.words import ORIGINS, counted, quoted, say, visible

STEPS = 6  # How many steps of the answer a screen shows; `t` shows all.


def screen(session: Session) -> RenderableType:
    """All sides, next to each other. With two sides, ▶ marks those that move."""
    question = session.sides[0].header.question
    parts: list[RenderableType] = []
    if question is not None:
        parts.append(Text(question, style="italic"))
    sides = [Group(_rule(side, session), *body(side)) for side in session.sides]
    if len(sides) == 1:
        return Group(*parts, *sides)
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in sides:
        table.add_column(ratio=1, overflow="ellipsis")
    table.add_row(*sides)
    return Group(*parts, table)


def body(side: Source) -> list[RenderableType]:
    """The last event, the answer so far, the present tree."""
    state = side.state
    now = _grid()
    words = "before the first event"
    if side.place:
        words = say(side.records[side.place - 1])
    now.add_row("→", Text(words, style="bold"))
    head = "answer" if state.emitted else "answer: nothing yet"
    answer = answer_view(state.emitted, STEPS)
    tree = [] if state.done else tree_lines(state)
    return [now, Text(head, style="underline"), answer, *tree]


def answer_view(emitted: Sequence[EmittedState], limit: int) -> Table:
    """The last `limit` steps with their signs; a correction with the step it replaced
    and why."""
    table = _grid()
    hidden = max(0, len(emitted) - limit)  # earlier steps
    if hidden:
        table.add_row("", Text(f"… {hidden} earlier steps", style="dim"))
    for step in emitted[hidden:]:
        origin = ORIGINS[step.origin]
        words = Text(one_line(step.step), style=origin.style)
        if is_forced(step.verdict):
            words.append(f" [{FORCED}]", style="bold magenta")
        if step.rejected is not None:
            reason = "" if step.verdict is None else f" ({step.verdict.why})"
            words.append(f"\ndraft: {quoted(step.rejected.text)}{reason}", style="dim")
        table.add_row(Text(f"{origin.typed} {step.index}", style=origin.style), words)
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
        cards = cards_of(state, node)
        # The target's own step comes first.
        for card in sorted(cards, key=lambda card: card.by == "draft"):
            lines.append(_card_line("  " * depth + "  ", card))
            if card.child is not None and card.child.gone is None:
                visit(card.child, depth + 1)

    visit(root, 0)
    return lines


def _card_line(space: str, card: Card) -> Text:
    """A step of the tree with its sign; a draft step with the name of the node it leads
    to."""
    child = card.child
    sign = card.standing.sign
    if child is None:
        style = "yellow"
        head = f"{space}target {sign} "
    else:
        style = card.standing.terminal
        head = f"{space}{child.name} draft {sign} "
    line = Text(head, style=style, no_wrap=True, overflow="ellipsis")
    if child is not None and is_forced(child.verdict):
        line.append("[forced] ", style="bold magenta")
    return line.append(card.words, style=style)


def _rule(side: Source, session: Session) -> Rule:
    header = side.header
    # a run does not know its end yet
    total = f" of {len(side.records)}" if side.over or not side.runs else ""
    text = f"event {side.place}{total}"
    if len(session.sides) > 1:  # a what-if: two sides
        text = f"{'▶' if side in session.moved else ' '} {side.name} · {text}"
    else:
        passes = counted(side.state.forwards.get("target", 0), "target pass", "es")
        kind = "live" if side.runs else "recorded"
        mode = header.mode
        if header.driver != "plain":
            mode += f", {header.schedule} {header.depth}"
        text = f"{text} · {kind} · {mode} · {passes}"
    return Rule(Text(text), align="left", style="dim")


# Inside a node


def node_view(side: Source, name: str) -> RenderableType:
    """A node: the verdict on the draft step that leads to it, the tokens of that step
    and of the target's step at the same place, and a variant's notes about the node.

    Raises `StepperError` for a node that does not exist (yet)."""
    state = side.state
    if name not in state.nodes:
        names = ", ".join(node.name for node in state.live)
        raise StepperError(f"there is no node {name!r} here; there are: {names}.")
    node = state.nodes[name]
    where_now = "the root" if name == state.root else "in the tree"
    if node.gone is not None:
        where_now = "left the tree"
    parts: list[RenderableType] = [Text(f"node {name}: {where_now}", style="bold")]
    if node.parent is not None:
        parts += [_verdict(node), tokens_view("draft", node.draft)]
    # The target's own step of the same place is the one after the parent.
    parts.append(tokens_view("target", state.nodes[node.parent or name].target))
    return Group(*parts)


def _verdict(node: NodeState) -> Text:
    if node.verdict is None:
        return Text("verdict none yet", style="dim")
    text = "verdict aligned" if node.verdict.aligned else "verdict not aligned"
    text += f": {node.verdict.why}"
    if node.verdict.score is not None:
        text += f", score {node.verdict.score:.3f}"
    return Text(text, style="magenta")


def tokens_view(role: str, step: StepState | None) -> Text:
    """The tokens that a model wrote, and the draft tokens that were rejected where they
    were tried, with their probabilities, as one paragraph."""
    if step is None or not step.tokens:
        return Text(f"{role}: no tokens recorded", style="dim")
    legend = "each token with its probability"
    if any(token.q is not None for token in step.tokens):
        legend += "; proposed ones with p of the target / q of the drafter, "
        legend += "the probability of acceptance, and what became of it"
    text = Text(f"{role}'s tokens: {legend}\n", style="underline")
    for token in step.tokens:
        numbers = "" if token.p is None else f"{token.p:.2f}"
        if token.q is not None:
            sign = "✗" if token.source == "refused" else "✓"
            # p/q, then min(1, p/q)
            numbers += f"/{token.q:.2f} {token.accept:.2f}{sign}"
        elif token.source == "residual":
            numbers += " residual"
        style = "" if token.q is None else "bright_blue"
        text.append(visible(token.piece), style=style)
        text.append(f" {numbers}  ", style="dim")
    return text


# The caches


def cache_view(session: Session) -> RenderableType:
    """The caches, which all sides share: every branch with its blocks, and how many
    branches hold each block."""
    parts: list[RenderableType] = []
    states = {side.name: side.state for side in session.sides}
    for name in session.active.state.caches:
        caches = {
            f"{side} " if len(states) > 1 else "": state.caches[name]
            for side, state in states.items()
        }
        parts += _cache(f"{name} cache", caches)
    none = Text("no blocks: this trace says nothing of a cache", style="dim")
    return Group(*parts) if parts else none


def _cache(title: str, caches: dict[str, CacheState]) -> list[RenderableType]:
    """One cache, as each side sees it. `caches`: by the prefix of a side's names."""
    counts: Counter[int] = Counter()  # by block, how many branches hold it
    branches = []
    for prefix, cache in caches.items():
        counts += cache.refcounts  # sides share the blocks
        for number, branch in sorted(cache.branches.items()):
            owner = prefix + (branch.node or f"passing branch {number}")
            branches.append((owner, branch))
    shared = sum(count > 1 for count in counts.values())  # blocks with several owners
    size = next(iter(caches.values()))  # the same for all sides
    head = f"{title}: {len(counts)} of {size.total} blocks used, {shared} shared"
    head += f"; {size.block_size} tokens in a block"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("held by")
    table.add_column("tokens", justify="right")
    table.add_column("blocks (×: how many hold it)")
    for owner, branch in branches:
        blocks = [
            f"{block}×{counts[block]}" if counts[block] > 1 else str(block)
            for block in branch.blocks
        ]
        table.add_row(owner, str(branch.length), " ".join(blocks) or "none yet")
    return [Text(head, style="underline"), table]
