"""Plain decoding and lookahead on the same question, side by side and in real time.

    show_race(plain, lookahead, console)     # two complete answers

Each answered alone, with the whole machine. Their columns then show what each had
written by the same time. Nothing is sped up or slowed down."""

from __future__ import annotations

import math
import time
from threading import Timer

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from lr.engine.answer import Answer
from lr.result import Result
from lr.watch.stepper.view import answer_view, tree_lines
from lr.watch.trace.record import trace_of
from lr.watch.trace.state import State, apply_event
from lr.watch.words import counted

FRAMES = 12  # Per second.
MOVING, ALL = 3, 10_000  # Decided steps in a column that moves, and in the end.


def answer_within(answer: Answer, seconds: float) -> Result:
    """Answer; after so many seconds end with the present step, after twice as many at
    once."""
    answer.engine.prepare(answer.options)  # before the clock starts
    started = time.perf_counter()
    limit = Timer(2 * seconds, setattr, (answer, "stopped", True))
    limit.start()
    for _ in answer:
        answer.stopped = time.perf_counter() - started > seconds
    limit.cancel()
    return answer.result


class Column:
    """A complete answer, and how far its column has got."""

    def __init__(self, title: str, answer: Answer) -> None:
        self.title = title
        self.trace = trace_of(answer)
        self.state = State.begin(self.trace.header)
        self.seconds = 0.0
        self.total = answer.result.stats.seconds

    @property
    def done(self) -> bool:
        """Whether the column shows the whole answer."""
        return self.seconds >= self.total

    def follow(self, seconds: float) -> None:
        """Show what had happened by then."""
        self.seconds = min(seconds, self.total)
        for record in self.trace.records[self.state.number :]:
            if record.time > seconds:
                break
            apply_event(self.state, record)


def show_race(plain: Answer, lookahead: Answer, out: Console) -> None:
    """Both answers, moving on a terminal; in the end as they are, with the draft steps
    that were rejected."""
    racers = [Column("plain decoding", plain), Column("lookahead", lookahead)]
    if out.is_terminal:
        started = time.perf_counter()
        with Live(console=out, auto_refresh=False, transient=True) as live:
            while not all(racer.done for racer in racers):
                for racer in racers:
                    racer.follow(time.perf_counter() - started)
                live.update(columns(racers, MOVING), refresh=True)
                time.sleep(1 / FRAMES)
    for racer in racers:
        racer.follow(math.inf)
    out.print(columns(racers, ALL))


def columns(racers: list[Column], limit: int) -> RenderableType:
    """The answers beside each other, with their last `limit` steps, and below them what
    is being written."""
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0))
    cells = []
    for racer in racers:
        state = racer.state
        passes = counted(state.forwards.get("target", 0), "target pass", "es")
        clock = f"{racer.seconds:.2f} s, {passes}" + (", done" if racer.done else "")
        table.add_column(f"{racer.title}\n{clock}", ratio=1)
        tree = [] if racer.done else tree_lines(state)
        cells.append(Group(answer_view(state.emitted, limit), *tree))
    table.add_row(*cells)
    return table
