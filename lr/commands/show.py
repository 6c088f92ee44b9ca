"""How steps and numbers look in a terminal; plain text when the output is no terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from lr.result import AnswerStep
from lr.trace import Stats
from lr.types import Origin

STYLES = {
    Origin.ACCEPTED: "green",
    Origin.CORRECTION: "yellow",
    Origin.BONUS: "cyan",
    Origin.TARGET: "default",
}
MARKS = {Origin.ACCEPTED: "✓", Origin.CORRECTION: "✗", Origin.BONUS: "+", Origin.TARGET: "·"}


def step_line(step: AnswerStep) -> Text:
    """One step with its mark, its origin and, for a correction, the draft step that it replaced and
    why.
    """
    line = Text(f"  {MARKS[step.origin]} {step.origin.value:<10} ", style=STYLES[step.origin])
    line.append(step.text.strip())
    if step.rejected is not None and step.verdict is not None:
        line.append(
            f"\n    {'draft':<10} {step.rejected.strip()}  ({step.verdict.why})", style="dim"
        )
    return line


def legend() -> Text:
    """What the marks and colours mean."""
    words = {
        Origin.ACCEPTED: "draft step kept",
        Origin.CORRECTION: "target's step, the draft's was rejected",
        Origin.BONUS: "target's step after a fully accepted cycle",
    }
    parts = [
        Text(f"{MARKS[origin]} {origin.value}: {text}", style=STYLES[origin])
        for origin, text in words.items()
    ]
    return Text("   ").join(parts)


def summary(stats: Stats) -> str:
    """One line of statistics."""
    parts = [f"{stats.tokens} tokens", f"{stats.seconds:.2f} s"]
    if stats.tokens_per_second:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    parts.append(f"{stats.target_passes} target passes")
    if stats.step_acceptance is not None:
        parts.append(
            f"step acceptance {stats.step_acceptance:.2f} ({stats.accepted} of {stats.judged})"
        )
    return ", ".join(parts)


def console(*, stderr: bool = False) -> Console:
    """A console that is plain, and wide enough for our tables, where the stream is no terminal."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = max(made.width, 120)
    return made


def number(value: float | None) -> str:
    """Two digits; nothing where nothing was counted."""
    return "" if value is None else f"{value:.2f}"
