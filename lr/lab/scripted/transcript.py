"""Events and commands as lines of text, for notebooks, documents and error messages.

    0:0 target wrote "a."
        judge 0:1: "A." against "a."

What was told stands at the margin, what is commanded is indented. How a step looks is for the
caller to say. Read next: `scripted.py`, which makes the transcripts of the documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lr.spec.protocol import (
    Cancel,
    Command,
    Draft,
    Drafted,
    Emit,
    Event,
    Judge,
    Judged,
    Release,
    Target,
    Targeted,
)
from lr.types import Step, Verdict

Words = Callable[[Step], str]


@dataclass(frozen=True)
class Turn:
    """An event and what the scheduler commanded thereupon. `event` is None for the start."""

    event: Event | None
    commands: tuple[Command, ...]


def lines_of(turns: Iterable[Turn], words: Words = str) -> list[str]:
    """The transcript of some turns. `words` shows a step."""
    lines = []
    for turn in turns:
        lines.append("start" if turn.event is None else event_line(turn.event, words))
        lines.extend("    " + command_line(command, words) for command in turn.commands)
    return lines


def event_line(event: Event, words: Words = str) -> str:
    """One event as a line."""
    match event:
        case Drafted(node, step):
            return (
                f"{node} no draft can come" if step is None else f"{node} draft wrote {words(step)}"
            )
        case Targeted(node, step):
            return f"{node} target wrote {words(step)}"
        case Judged(node, verdict):
            return f"{node} judged {'alone: unsure' if verdict is None else _said(verdict)}"


def command_line(command: Command, words: Words = str) -> str:
    """One command as a line."""
    match command:
        case Draft(node, children, limit):
            return f"draft {node} -> {' '.join(map(str, children))} (up to {limit} tokens)"
        case Target(node, limit):
            return f"target {node} (up to {limit} tokens)"
        case Judge(node, _, draft, target):
            against = "alone" if target is None else f"against {words(target)}"
            return f"judge {node}: {words(draft)} {against}"
        case Cancel(work):
            return f"cancel {work.kind.value} {work.node}"
        case Emit(emitted, _, node, root):
            said = f"emit step {emitted.index}: {words(emitted.step)} ({emitted.origin.value})"
            if root is not None:
                said += f"; root {root}" if node == root else f"; root {root}, was {node}"
            return said
        case Release(node):
            return f"release {node}"


def _said(verdict: Verdict) -> str:
    return f"{'aligned' if verdict.aligned else 'unaligned'} ({verdict.why})"
