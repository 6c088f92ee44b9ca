"""Events and commands as lines of text, for notebooks, documents and error messages.

    0:0 target wrote "a."
        judge 0:1: "A." against "a."

What was told stands at the margin, what is commanded is indented. How a step looks is for the
caller to say. Read next: `scripted.py`, which makes the transcripts of the documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lr.spec.commands import (
    Cancel,
    Command,
    Draft,
    Drafted,
    DraftFailed,
    Emit,
    Event,
    Judge,
    Judged,
    Release,
    Score,
    Scored,
    Survive,
    Target,
    Targeted,
    Unsure,
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
            return f"{node} draft wrote {words(step)}"
        case DraftFailed(node, why):
            return f"{node} draft failed: {why}"
        case Targeted(node, step):
            return f"{node} target wrote {words(step)}"
        case Judged(node, verdict):
            return f"{node} judged {_said(verdict)}"
        case Scored(node, verdict):
            return f"{node} scored {_said(verdict)}"
        case Unsure(node):
            return f"{node} score is unsure"


def command_line(command: Command, words: Words = str) -> str:
    """One command as a line."""
    match command:
        case Draft(node, children, limit):
            return f"draft {node} -> {' '.join(map(str, children))} (up to {limit} tokens)"
        case Target(node, limit):
            return f"target {node} (up to {limit} tokens)"
        case Judge(node, _, draft, target):
            return f"judge {node}: {words(draft)} against {words(target)}"
        case Score(node, _, draft):
            return f"score {node}: {words(draft)}"
        case Cancel(work):
            return f"cancel {work.kind.value} {work.node}"
        case Emit(emitted):
            return f"emit step {emitted.index}: {words(emitted.step)} ({emitted.origin.value})"
        case Survive(node, root):
            return f"root {root}" if node == root else f"root {root} on the branch of {node}"
        case Release(node):
            return f"release {node}"


def _said(verdict: Verdict) -> str:
    return f"{'aligned' if verdict.aligned else 'unaligned'} ({verdict.why})"
