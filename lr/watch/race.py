"""Plain decoding and lookahead on the same question, side by side and in real time.

    race = Race(begin, seconds=10)     # begin(mode) makes an answer
    race.show(console)

Plain decoding writes first, then lookahead, so that each has the whole machine. While
lookahead writes, the left column shows again what plain decoding had written by that
time. Nothing is sped up or slowed down; an answer that takes longer than `seconds` ends
with its present step, and after twice as long at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Lock, Timer

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
from lr.watch.trace.file import Record
from lr.watch.trace.record import header_of
from lr.watch.trace.state import CACHE_EVENTS, EmittedState, State, apply_event

FRAMES = 12  # Per second.
PAUSE = 1.5  # Seconds between two lines of the slow motion.


def answer_within(answer: Answer, seconds: float) -> Result:
    """Answer; after so many seconds end with the present step, after twice as many at
    once."""
    started = time.perf_counter()
    limit = Timer(2 * seconds, setattr, (answer, "stopped", True))
    limit.start()
    for _ in answer:
        answer.stopped = time.perf_counter() - started > seconds
    limit.cancel()
    return answer.result


class Racer:
    """One answer, and how far its column has got."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.total: float | None = None  # its seconds, once it is complete
        self.rewind()

    def rewind(self) -> None:
        """Show it from its beginning."""
        self.seconds = 0.0
        self.state = State.begin(header_of(self.answer))
        self.taken = 0  # events that the state contains

    @property
    def done(self) -> bool:
        """Whether the column shows the whole answer."""
        return self.total is not None and self.seconds >= self.total

    def follow(self, seconds: float) -> None:
        """Show what had happened by then."""
        self.seconds = seconds if self.total is None else min(seconds, self.total)
        events = self.answer.trace.events
        token_bytes = self.answer.engine.codec.token_bytes
        while self.taken < len(events) and events[self.taken][0] <= seconds:
            when, event = events[self.taken]
            record = Record(self.taken, when, event, token_bytes)
            self.taken += 1
            if record.kind not in CACHE_EVENTS:
                apply_event(self.state, record)

    def rejection(self) -> EmittedState | None:
        """The first correction, with the draft step that it replaced."""
        corrections = (step for step in self.state.emitted if step.rejected is not None)
        return next(corrections, None)


class Race:
    """Two answers to the same question, made by `begin(mode, max_tokens)`. Lookahead
    writes no more tokens than plain decoding did, and each at most `seconds`."""

    def __init__(self, begin: Callable[..., Answer], seconds: float) -> None:
        self.begin = begin
        self.seconds = seconds
        self.plain = Racer(begin("ar"))
        self.lookahead = Racer(begin("lr"))
        self.running: list[Racer] = []  # whose columns move
        self.started = 0.0
        self.lock = Lock()  # the display follows in a thread of its own

    @property
    def length(self) -> int | None:
        """How many tokens plain decoding has written, if it had to stop; else None."""
        result = self.plain.answer.result
        return None if result.finished else result.stats.tokens

    def show(self, out: Console) -> None:
        """Run both, live on a terminal; then print how it ended, and one rejection in
        slow motion."""
        height = max(4, out.height - 4)  # rows of a column while it is live
        live = Live(
            get_renderable=lambda: self._frame(height),
            console=out,
            refresh_per_second=FRAMES,
            transient=True,
        )
        with live if out.is_terminal else nullcontext():
            self._run([self.plain])
            with self.lock:
                self.lookahead = Racer(self.begin("lr", self.length))
            self._run([self.plain, self.lookahead])
            if out.is_terminal and self.plain.total is not None:
                # Whoever is slower comes to the end, too.
                elapsed = time.perf_counter() - self.started
                time.sleep(max(0.0, self.plain.total - elapsed))
        self.plain.follow(math.inf)
        self.lookahead.follow(math.inf)
        out.print(self.columns(max(4, height - 8) if out.is_terminal else None))
        rejection = self.lookahead.rejection()
        if rejection is not None:
            out.print()
            for line in slow_motion(rejection):
                out.print(line, soft_wrap=False)
                if out.is_terminal:
                    time.sleep(PAUSE)

    def _run(self, racers: list[Racer]) -> None:
        """Answer with the last racer; the columns of all move from their beginning."""
        answer = racers[-1].answer
        answer.engine.prepare(answer.options)  # before the clock starts
        with self.lock:
            for racer in racers:
                racer.rewind()
            self.running = racers
            self.started = time.perf_counter()
        racers[-1].total = answer_within(answer, self.seconds).stats.seconds

    def _frame(self, height: int) -> RenderableType:
        """What the screen shows now."""
        with self.lock:
            elapsed = time.perf_counter() - self.started
            for racer in self.running:
                racer.follow(elapsed)
            return self.columns(height)

    def columns(self, height: int | None) -> RenderableType:
        """Both answers beside each other; with `height` only the last rows of each."""
        table = Table(box=None, expand=True, padding=(0, 1, 0, 0))
        cells = []
        names = {"plain decoding": self.plain, "lookahead": self.lookahead}
        for title, racer in names.items():
            passes = racer.state.forwards.get("target", 0)
            count = counted(passes, "target pass", "es")
            clock = f"{racer.seconds:.2f} s, {count}"
            clock += ", done" if racer.done else ""
            table.add_column(f"{title}\n{clock}", ratio=1)
            text = answer_text(racer.state, ahead=not racer.done)
            if racer not in self.running:
                text = Text("begins when the other is done", "dim")
            cells.append(Tail(text, height))
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
