"""Plain decoding and lookahead on the same question, side by side and in real time.

Plain decoding writes first, then lookahead, so that each has the whole machine. While
lookahead writes, the left column shows again what plain decoding had written by that
time. Nothing is sped up or slowed down."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from threading import Timer

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from lr.engine.answer import Answer
from lr.result import Result
from lr.watch.stepper.view import answer_view, tree_lines
from lr.watch.trace.file import Record, header_of
from lr.watch.trace.state import State, apply_event
from lr.watch.words import counted, quoted, why_rejected

FRAMES = 12  # Per second.
LINE_PAUSE = 1.5  # Seconds between two lines of the slow motion.
MOVING = 3  # Decided steps in a column that moves.
ALL = 10_000  # And in the end.
REPLACED = (
    "The target had written its own step while the draft ran ahead. So it takes the place "
    "of the draft's at once, and nothing is computed again."
)


def answer_within(answer: Answer, seconds: float) -> Result:
    """Answer; after so many seconds end with the present step, after twice as many at
    once."""
    started = time.perf_counter()
    # a step may take as long again
    limit = Timer(2 * seconds, setattr, (answer, "stopped", True))
    limit.start()
    for _ in answer:
        answer.stopped = time.perf_counter() - started > seconds
    limit.cancel()
    return answer.result


class Column:
    """An answer, complete or not, and how far its column has got."""

    def __init__(self, title: str, answer: Answer) -> None:
        self.title = title
        self.answer = answer
        self.total: float | None = None  # its seconds, once it is complete
        self.rewind()

    def rewind(self) -> None:
        """Show it from its beginning."""
        self.seconds = 0.0
        self.state = State.begin(header_of(self.answer))

    @property
    def done(self) -> bool:
        """Whether the column shows the whole answer."""
        return self.total is not None and self.seconds >= self.total

    def follow(self, seconds: float) -> None:
        """Show what had happened by then."""
        # a column that is complete stands still; the others move on
        self.seconds = seconds if self.total is None else min(seconds, self.total)
        token_bytes = self.answer.question.codec.token_bytes
        # only events that it does not show yet
        for when, event in self.answer.trace.events[self.state.number :]:
            if when > seconds:  # not yet, at this moment of the race
                break
            record = Record(self.state.number, when, event, token_bytes)
            apply_event(self.state, record)


def race(racers: Sequence[Column], seconds: float, out: Console) -> Result:
    """Answer with the last of the racers, within so many seconds. On a terminal the
    columns of all move from their beginnings meanwhile, and until each is done."""
    racer = racers[-1]
    for column in racers:
        column.rewind()
    started = time.perf_counter()

    def frame() -> RenderableType:
        for column in racers:
            column.follow(time.perf_counter() - started)
        return columns(racers, MOVING)

    # the race is shown from the traces, while the last one still answers
    live = Live(
        get_renderable=frame, console=out, refresh_per_second=FRAMES, transient=True
    )
    with live if out.is_terminal else nullcontext():
        result = answer_within(racer.answer, seconds)
        racer.total = result.stats.seconds  # now its column can be shown again
        # until the slowest column has caught up with its answer
        while out.is_terminal and not all(column.done for column in racers):
            time.sleep(1 / FRAMES)
    return result


def show_end(racers: Sequence[Column], out: Console) -> None:
    """All complete answers; then the first rejection of the last one in slow motion."""
    for racer in racers:
        racer.follow(math.inf)
    out.print(columns(racers, ALL))
    for step in racers[-1].state.emitted:
        # the first correction of a complete step
        if step.rejected is None or step.step.finish == "length":
            continue
        assert step.verdict is not None
        draft, target = step.rejected.text, step.step.text
        reason = why_rejected(step.verdict, draft, target)
        out.print()
        for line, style in (
            (f"the draft wrote   {quoted(draft)}", "bright_blue"),
            (f"the target wrote  {quoted(target)}", "yellow"),
            (f"the verdict       not aligned: {reason}", "magenta"),
            (REPLACED, ""),
        ):
            out.print(line, style=style, soft_wrap=False)
            if out.is_terminal:
                time.sleep(LINE_PAUSE)
        return


def columns(racers: Sequence[Column], limit: int) -> RenderableType:
    """The answers beside each other, with their last `limit` steps, and below them what
    is being written."""
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0))
    cells = []
    for racer in racers:
        state = racer.state
        passes = counted(state.forwards.get("target", 0), "target pass", "es")
        clock = f"{racer.seconds:.2f} s, {passes}" + (", done" if racer.done else "")
        table.add_column(f"{racer.title}\n{clock}", ratio=1)
        tree = [] if racer.done else tree_lines(state)  # what is being written
        cells.append(Group(answer_view(state.emitted, limit), *tree))
    table.add_row(*cells)
    return table
