"""Plain decoding and lookahead on the same question, side by side and in real time.

    show_race(plain, lookahead, console)     # two complete answers

Each answered alone, with the whole machine. Their columns then show what each had
written by the same time. Nothing is sped up or slowed down."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Timer

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lr.engine.answer import Answer
from lr.result import Result
from lr.tiny.oracle import differing
from lr.watch.figures.style import ORIGINS
from lr.watch.figures.tree import words_of
from lr.watch.stepper.words import counted, quoted
from lr.watch.trace.record import trace_of
from lr.watch.trace.state import EmittedState, State, apply_event

FRAMES = 12  # Per second.
PAUSE = 1.5  # Seconds between two lines of the slow motion.


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

    def rejection(self) -> EmittedState | None:
        """The first correction, with the draft step that it replaced."""
        corrections = (step for step in self.state.emitted if step.rejected is not None)
        return next(corrections, None)


def show_race(plain: Answer, lookahead: Answer, out: Console) -> None:
    """Both answers, moving on a terminal; then one rejection in slow motion."""
    racers = [Column("plain decoding", plain), Column("lookahead", lookahead)]
    if out.is_terminal:
        height = max(4, out.height - 4)  # rows of a column while it moves
        started = time.perf_counter()
        with Live(console=out, auto_refresh=False, transient=True) as live:
            while not all(racer.done for racer in racers):
                for racer in racers:
                    racer.follow(time.perf_counter() - started)
                live.update(columns(racers, height), refresh=True)
                time.sleep(1 / FRAMES)
    for racer in racers:
        racer.follow(math.inf)
    out.print(columns(racers, max(4, out.height - 12) if out.is_terminal else None))
    rejection = racers[1].rejection()
    if rejection is not None:
        out.print()
        for line in slow_motion(rejection):
            out.print(line, soft_wrap=False)
            if out.is_terminal:
                time.sleep(PAUSE)


def columns(racers: list[Column], height: int | None) -> RenderableType:
    """The answers beside each other; with `height` only the last rows of each."""
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0))
    cells = []
    for racer in racers:
        passes = counted(racer.state.forwards.get("target", 0), "target pass", "es")
        clock = f"{racer.seconds:.2f} s, {passes}" + (", done" if racer.done else "")
        table.add_column(f"{racer.title}\n{clock}", ratio=1)
        cells.append(Tail(answer_text(racer.state, ahead=not racer.done), height))
    table.add_row(*cells)
    return table


@dataclass(frozen=True)
class Tail:
    """The last rows of a text, after its lines were wrapped."""

    text: Text
    height: int | None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text]:
        lines = self.text.wrap(console, options.max_width)
        yield from lines if self.height is None else lines[-self.height :]


def answer_text(state: State, *, ahead: bool) -> Text:
    """The steps of an answer so far. `ahead`: and what is being written after them: the
    target's own step after the last decision, and the draft's steps."""
    text = Text()
    for step in state.emitted:
        origin = ORIGINS[step.origin]
        text.append(f"{origin.typed} {words_of(step.step)}\n", origin.style)
    node = state.nodes.get(state.root)
    if node is None or not ahead:
        return text
    if node.target is not None:
        text.append(f"… {words_of(node.target)}\n", "yellow dim")
    while node is not None:
        children = [state.nodes[name] for name in node.children]
        node = next((child for child in children if child.gone is None), None)
        if node is not None and node.draft is not None:
            text.append(f"… {words_of(node.draft)}\n", "bright_blue dim")
    return text


def slow_motion(step: EmittedState) -> list[Text]:
    """A rejection, line by line: the draft's words, the target's, the verdict."""
    assert step.rejected is not None
    reason = differing(step.rejected.text, step.step.text)  # in the tiny language
    if not reason and step.verdict is not None:
        reason = step.verdict.why
    return [
        Text(f"the draft wrote   {quoted(step.rejected.text)}", "bright_blue"),
        Text(f"the target wrote  {quoted(step.step.text)}", "yellow"),
        Text(f"the verdict       not aligned: {reason}", "magenta"),
        Text(
            "The target had written its own step while the draft ran ahead. So it takes "
            "the place of the draft's at once, and nothing is computed again."
        ),
    ]
