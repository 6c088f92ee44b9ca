"""The progress of an evaluation in the terminal: how many are right, tokens per second, acceptance,
time left; and a line at the end.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lr.trace import Stats

if TYPE_CHECKING:
    from lr.lab.eval.running import Done, Evaluation


@dataclass
class Tally:
    """Sums over the answers so far, those of earlier sessions included where they count."""

    graded: int = 0
    right: int = 0
    stats: Stats = field(default_factory=Stats)

    def add(self, done: Done) -> None:
        """Count an answer."""
        self.count(done.record.get("right"))
        if done.stats is not None:
            self.stats = self.stats + done.stats

    def count(self, right: bool | None) -> None:
        """Count a grade."""
        self.graded += right is not None
        self.right += right is True

    def line(self, tokens_per_second: float | None) -> str:
        """Accuracy, speed and acceptance in a few words."""
        parts = (
            [f"{self.right}/{self.graded} right ({self.right / self.graded:.0%})"]
            if self.graded
            else []
        )
        if tokens_per_second:
            parts.append(f"{tokens_per_second:.0f} tokens/s")
        if self.stats.step_acceptance is not None:
            parts.append(f"steps kept {self.stats.step_acceptance:.2f}")
        if self.stats.token_acceptance is not None:
            parts.append(f"tokens kept {self.stats.token_acceptance:.2f}")
        return ", ".join(parts)


def watch(evaluation: Evaluation, notes: Console) -> Tally:
    """Run an evaluation to its end with a bar (in a terminal), and say at the end how it went."""
    tally = Tally()
    for key, record in evaluation.store.results():
        if key in set(evaluation.plan.keys):
            tally.count(record.get("right"))
    total = len(evaluation.plan.keys)
    bar = Progress(
        TextColumn("{task.percentage:3.0f}%"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    )
    try:
        with bar, closing(evaluation.run()) as answers:
            task = bar.add_task("", total=total, completed=total - len(evaluation.missing))
            for done in answers:
                tally.add(done)
                bar.update(task, advance=1, description=tally.line(_speed(evaluation)))
    finally:
        for done in evaluation.rescued:
            tally.add(done)
        there = len(evaluation.store.done() & set(evaluation.plan.keys))
        notes.print(
            ": ".join(
                part
                for part in (f"{there} of {total} answers", tally.line(_speed(evaluation)))
                if part
            )
        )
        if there < total:
            notes.print("the same command again goes on with the others")
    return tally


def _speed(evaluation: Evaluation) -> float | None:
    """Tokens of this session per second of its wall time, over all problems together."""
    seconds = evaluation.session["seconds"]
    return evaluation.session["tokens"] / seconds if seconds else None
