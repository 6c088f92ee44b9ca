"""How commands show things: consoles, tables, progress bars, the steps of an answer.
Plain text where the output is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from lr.measure.report import cell
from lr.types import require
from lr.watch.figures.style import require_matplotlib
from lr.watch.words import ORIGINS, why_rejected

if TYPE_CHECKING:
    from lr.result import AnswerStep

AS_IT_IS: dict[str, Any] = {"markup": False, "emoji": False}
"""Console settings under which text is printed literally."""


def console(*, stderr: bool = False, width: int = 120) -> Console:
    """A console that prints text literally: "[x]" in a file name or an answer is not
    markup. Where the stream is not a terminal, the output is plain and at least `width`
    columns wide."""
    out = Console(stderr=stderr, highlight=False, soft_wrap=True, **AS_IT_IS)
    if not out.is_terminal:
        out.width = max(out.width, width)
    return out


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]] = (),
    *,
    text: int = 1,
    title: str | None = None,
) -> Table:
    """A table whose first `text` columns hold words and the rest numbers. A column is a
    heading, or a heading and a number format: "off:+.1%" (.2f is the default)."""
    grid = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        padding=(0, 1, 0, 0),
        title=title,
        title_justify="left",
    )
    formats = []
    for index, column in enumerate(columns):
        head, _, number_format = column.partition(":")
        formats.append(number_format or ".2f")
        justify: Literal["left", "right"] = "left" if index < text else "right"
        grid.add_column(head, justify=justify, no_wrap=True)
    for row in rows:
        cells = [cell(value, form) for value, form in zip(row, formats, strict=False)]
        grid.add_row(*cells)
    return grid


@contextmanager
def progress(title: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, shown in a terminal only. Yields a function to
    call after every piece of work, with an optional status text."""
    out = Console(stderr=True)
    bar = Progress(
        title,
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        "{task.elapsed:.0f} s,",
        TimeRemainingColumn(),
        "{task.description}",
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda status="": bar.update(task, advance=1, description=status)


LARGEST_FLAGS = {
    "problems": 100_000, "repeats": 10_000, "steps": 1_000_000, "n_samples": 10_000,
    "concurrency": 10_000, "k": 200, "width": 8,
}  # fmt: skip
"""The largest values of some flags; 10 million for all others. Every count has a
limit."""


def require_at_least(flags: object, **least: int) -> None:
    """Raise `SettingError` for a flag below its least value, or so large that the run
    would never end. A flag with several values is checked value by value; None
    passes."""
    for name, bound in least.items():
        value = getattr(flags, name)
        limit = LARGEST_FLAGS.get(name, 10_000_000)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None:
                require(number >= bound, name, value, f"at least {bound}")
                require(number <= limit, name, value, f"at most {limit}")


def require_files(**files: Path | None) -> None:
    """Raise `SettingError` for a file whose folder does not exist, and for a `figure`
    where matplotlib is missing. The keywords are the names of the flags."""
    for name, path in files.items():
        if path is not None:
            expected = f"a file in a folder that exists; {path.parent} does not"
            require(path.parent.is_dir(), name, str(path), expected)
    if files.get("figure") is not None:
        require_matplotlib()


def step_line(step: AnswerStep) -> Text:
    """One step with its sign and origin. A correction also shows the draft step it
    replaced and the reason."""
    origin = ORIGINS[step.origin.value]
    words = f"  {origin.typed} {step.origin.value:<10} {step.text.strip()}"
    line = Text(words, style=origin.style)
    if step.rejected is not None and step.verdict is not None:
        reason = why_rejected(step.verdict, step.rejected, step.text)
        draft = step.rejected.strip()
        line.append(f"\n    {'rejected':<10} {draft}  ({reason})", style="dim")
    return line
