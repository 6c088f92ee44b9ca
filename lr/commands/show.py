"""How commands show things: consoles, tables, progress bars, the steps of an answer. Plain text
where the output is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from lr.errors import SettingError
from lr.trace import Stats
from lr.types import Origin

if TYPE_CHECKING:
    from lr.result import AnswerStep

STYLES = {
    Origin.ACCEPTED: "green",
    Origin.CORRECTION: "yellow",
    Origin.BONUS: "cyan",
    Origin.TARGET: "default",
}
MARKS = {Origin.ACCEPTED: "✓", Origin.CORRECTION: "✗", Origin.BONUS: "+", Origin.TARGET: "·"}


def console(*, stderr: bool = False, width: int = 120) -> Console:
    """A console. Where the stream is no terminal it is plain and at least `width` columns wide."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = max(made.width, width)
    return made


def table(
    columns: Sequence[str], *, text: int = 1, title: str | None = None, padding: int = 1
) -> Table:
    """An empty table: the first `text` columns hold words, the others numbers."""
    made = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        padding=(0, padding, 0, 0),
        title=title,
        title_justify="left",
    )
    for place, name in enumerate(columns):
        made.add_column(name, justify="left" if place < text else "right", no_wrap=True)
    return made


def number(value: float | None) -> str:
    """Two digits; nothing where nothing was counted."""
    return "" if value is None else f"{value:.2f}"


def in_words(facts: Mapping[str, object]) -> str:
    """One line of facts, such as those of the machine that a measurement was made on."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


@contextmanager
def progress(what: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, shown in a terminal only. What it gives is called after
    every piece of work, with words that say how things stand, if there are any."""
    shown = Console(stderr=True)
    bar = Progress(
        TextColumn(what),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=total, completed=done)

        def advance(words: str = "") -> None:
            bar.update(task, advance=1, description=words)

        yield advance


def require_folders(**files: Path | None) -> None:
    """Raise `SettingError` for a file, given by the name of its flag, whose folder is not there."""
    for name, path in files.items():
        if path is not None and not path.parent.is_dir():
            raise SettingError(
                f"{name} is {str(path)!r}, but there is no folder {path.parent}; create it first."
            )


def step_line(step: AnswerStep) -> Text:
    """One step with its mark and origin; a correction also with the draft step it replaced, and
    why."""
    line = Text(f"  {MARKS[step.origin]} {step.origin.value:<10} ", style=STYLES[step.origin])
    line.append(step.text.strip())
    if step.rejected is not None and step.verdict is not None:
        rejected = f"\n    {'draft':<10} {step.rejected.strip()}  ({step.verdict.why})"
        line.append(rejected, style="dim")
    return line


def legend() -> Text:
    """What the marks and colours of steps mean."""
    words = {
        Origin.ACCEPTED: "draft step kept",
        Origin.CORRECTION: "target's step, the draft's was rejected",
        Origin.BONUS: "target's step after a fully accepted cycle",
    }
    parts = [Text(f"{MARKS[o]} {o.value}: {words[o]}", style=STYLES[o]) for o in words]
    return Text("   ").join(parts)


def summary(stats: Stats) -> str:
    """One line of statistics."""
    parts = [f"{stats.tokens} tokens", f"{stats.seconds:.2f} s"]
    if stats.tokens_per_second:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    parts.append(f"{stats.target_passes} target passes")
    if stats.step_acceptance is not None:
        kept = f"{stats.accepted} of {stats.judged}"
        parts.append(f"step acceptance {stats.step_acceptance:.2f} ({kept})")
    return ", ".join(parts)
