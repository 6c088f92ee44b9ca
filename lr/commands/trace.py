"""`lr trace` checks, replays and converts a trace; `lr play` and `lr draw` show it; `lr
step` steps through it, or through an answer while it is made, and forks what-ifs.

The prompt of `lr step` reads line by line, so that it works at a terminal and over a
pipe. The moves are in `lab/stepper/session.py`, the display is in
`lab/stepper/view.py`."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

import tyro
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from lr.commands.options import ModelChoice, VariantChoice
from lr.commands.show import AS_IT_IS, console, require_files, summary
from lr.errors import LRError
from lr.options import GenerateOptions
from lr.types import require
from lr.watch.figures.clock import timeline_figure
from lr.watch.figures.style import require_matplotlib, write
from lr.watch.figures.tree import fullest_tree, tree_figure
from lr.watch.player.page import player_page, setting_of, title_of
from lr.watch.stepper.session import Session
from lr.watch.stepper.sources import Recorded, Source, StepperError
from lr.watch.stepper.view import answer_view, cache_view, node_view, screen
from lr.watch.trace.file import TraceFile, read_trace, write_lines
from lr.watch.trace.state import state_at

Output = Annotated[Path | None, tyro.conf.arg(aliases=["-o"])]


@dataclass(frozen=True)
class Shown:
    """What `lr play` and `lr step` show: a trace, or the answer to a question."""

    what: tyro.conf.Positional[str | None] = None
    """A trace from --trace (a name that ends in .jsonl, or an existing file), or a
    question to answer. Left out: a sample problem."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)
    own: VariantChoice = field(default_factory=VariantChoice)

    def file(self) -> Path | None:
        """The trace file that `what` names; None if it is a question."""
        words = self.what
        with suppress(OSError):  # a question may be too long for a file name
            if words is not None and (words.endswith(".jsonl") or Path(words).exists()):
                return Path(words)
        return None

    def live_sources(self) -> Callable[[str | None], Source]:
        """Load the models. Returns a function that begins to answer a question."""
        from lr.watch.stepper.live import LiveSource

        reasoner, options = self.models.load(needs_draft=True), asdict(self.generation)
        variant, question = self.own.load(reasoner), self.models.question
        return lambda asked: LiveSource(reasoner, question(asked), options, variant)


@dataclass(frozen=True)
class TraceCommand:
    """Check a trace from --trace; print a summary of it, or which line is wrong."""

    file: tyro.conf.Positional[Path]  # The trace: JSON lines, see docs/trace.md.
    replay: bool = False
    """Load its models, answer again and compare the tokens; a difference gives exit
    code 2."""

    def run(self) -> None:
        trace = read_trace(self.file)
        header, stats = trace.header, trace.stats
        out = console()
        # Raises `TraceError` if an event contradicts those before it.
        state_at(trace, len(trace.records))
        count = len(trace.records)
        out.print(f"{count} events: {title_of(header)}\n{setting_of(header)}")
        if header.question is not None:
            out.print(f"question: {header.question}")
        if header.clock == "virtual":
            last = trace.records[-1].time if trace.records else 0.0
            accepted = f"{stats.accepted} of {stats.judged} drafts accepted"
            out.print(f"{stats.steps} steps in {last:g} {header.unit}s, {accepted}")
        else:
            out.print(summary(stats))
        kinds = Counter(record.kind for record in trace.records).most_common()
        if kinds:
            words = [f"{kind} {number}" for kind, number in kinds]
            out.print("", Columns(words, padding=(0, 2, 0, 0)), "")
        for note in trace.notes:
            out.print(f"note: {note}", style="yellow")
        if self.replay:
            from lr.watch.trace.replay import replay

            difference = replay(trace)
            if difference is not None:
                raise LRError(f"{self.file}, generated again: {difference}")
            until = "" if trace.complete else ", up to where the trace was cut"
            out.print(f"generated again: the same tokens in every step{until}")


@dataclass(frozen=True)
class Play(Shown):
    """Write one page that shows an answer event by event: the tree, the text, the
    clock, the cache. It needs nothing but a browser."""

    output: Output = (
        None  # The page to write; None: the trace's name with .html, or answer.html.
    )

    def run(self) -> None:
        file = self.file()
        if file is not None:
            trace, output = read_trace(file), self.output or file.with_suffix(".html")
            other = output.resolve() != file.resolve()
            require(other, "output", str(output), "another file than the trace itself")
        else:
            from lr.engine.engine import Run
            from lr.watch.trace.replay import trace_of

            with self.models.load(needs_draft=self.generation.needs_draft) as reasoner:
                asked = (
                    self.models.question(self.what),
                    self.generation,
                    self.own.load(reasoner),
                )
                run = Run(reasoner.engine, reasoner.verifier, *asked, detailed=True)
                run.finish()
            trace, output = trace_of(run), self.output or Path("answer.html")
        page = player_page(trace)
        write_lines(output, [page])
        for note in trace.notes:
            console(stderr=True).print(f"{self.what}: {note}", style="dim")
        size = f"{len(trace.records)} events, {len(page.encode()) / 1e6:.1f} MB"
        console().print(f"written: {output} ({size}); open it in a browser")


@dataclass(frozen=True)
class DrawCommand:
    """Draw a trace as SVG and PNG: who worked when, and the tree at one moment. Needs
    matplotlib (the extra `plot`)."""

    trace: tyro.conf.Positional[Path]  # A trace from `--trace`.
    output: Output = None
    """How the file names begin, such as slides/run for slides/run-tree.svg. None: the
    trace's name without its suffix."""
    event: int | None = None
    """Draw the tree after this many events. None: where it has the most steps and
    verdicts."""

    def run(self) -> None:
        require_matplotlib()
        trace = read_trace(self.trace)
        last = len(trace.records)
        event = fullest_tree(trace) if self.event is None else self.event
        require(0 <= event <= last, "event", event, f"0 to {last}, the trace's events")
        start = self.output or self.trace.with_suffix("")
        require_files(output=start)
        pictures = {
            "timeline": timeline_figure(trace),
            "tree": tree_figure(state_at(trace, event), last),
        }
        for name, picture in pictures.items():
            with picture as drawing:
                for path in write(drawing, start.with_name(f"{start.name}-{name}.png")):
                    console().print(f"drawn: {path}")


@dataclass(frozen=True)
class StepCommand(Shown):
    """Step through an answer: forward, back, to the next rejection, into nodes, tokens
    and cache; force verdicts and fork what-ifs."""

    def run(self) -> None:
        out, file = Console(highlight=False, **AS_IT_IS), self.file()
        if file is None:  # the first event is made when it is asked for
            source = self.live_sources()(self.what)
        else:
            trace = read_trace(file)
            for note in trace.notes:
                console(stderr=True).print(f"{file}: {note}", style="dim")
            source = Recorded(trace, remaking(trace))
        session = Session(source)
        try:
            StepperPrompt(session, _reader(out), out).run()
        except KeyboardInterrupt:
            out.print()
        finally:
            session.close()


def remaking(trace: TraceFile) -> Callable[[], Source] | None:
    """A function that begins the run of a trace again; None if the run cannot be
    repeated."""
    header, question = trace.header, trace.header.question
    if header.clock == "virtual" or question is None or header.driver != "lockstep":
        return None
    from lr.watch.stepper.live import LiveSource
    from lr.watch.trace.replay import options_of, reasoner_of, variant_of

    how, reasoner = options_of(header), cache(lambda: reasoner_of(header))
    return lambda: LiveSource(reasoner(), question, how, variant_of(header, reasoner()))


def _reader(out: Console) -> Callable[[str], str]:
    """A function that reads a line: from the keyboard with history, from a pipe with an
    echo after the prompt, so that the output reads like a session."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  # gives input() its history
        return input

    def read(prompt: str) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        out.print(f"{prompt}{line.rstrip()}", soft_wrap=True)
        return line

    return read


HELP = """\
forward  n (or Enter)  the next stop; n 5: five       e  one event, details too
         s  the answer's next step     r  the next rejection
         v  where a verdict is due     z  the end
back     b  the stop before; b 5       g 120  to event 120, either way
look     i 0:2  inside a node: texts, verdict, every token with p, q, accept
         c  the cache: who holds which block; c 3: who holds block 3
         t  the whole answer           l  this screen again
what if  a / x  the verdict that is due will be: aligned / not aligned
         a 0:2  the same, for this node
         f  fork: a second side B from here on      d  drop side B
         A / B / AB  which sides move
         w FILE  write the side's trace             q  quit
signs    ✓ accepted   ✗ rejected, or the target's correction   + bonus
         · target's own   … being written   ■ written   ? with the verifier
         ✕ cancelled   ∅ none came"""
"""What `?` shows."""
FIRST = "? explains the letters; Enter goes on."
LETTERS = (
    "n next  v verdict  r rejection  f fork  c cache  t answer  z end  ? all  q quit"
)
"""The letters shown below every screen on a terminal."""
MOVES = {
    "n": "next", "b": "back", "e": "event", "s": "step", "r": "rejection", "v": "verdict",
    "z": "end",
}  # fmt: skip
MOST = 10_000  # The most moves that one line may ask for.


class StepperPrompt:
    """One session at a terminal or over a pipe. `read` returns a line, given the
    prompt, and raises `EOFError` at the end of the input."""

    def __init__(
        self, session: Session, read: Callable[[str], str], out: Console
    ) -> None:
        self.session, self.read, self.out = session, read, out

    def run(self) -> None:
        """Obey lines until `q` or the end of the input."""
        self._show()
        self._say(FIRST)
        while True:
            due = ", ".join(self.session.due(self.session.active))
            how = "x rejects, a accepts"
            if len(self.session.sides) == 1:
                how = f"f forks, then {how}"
            try:
                words = self.read(
                    f"verdict due on {due} ({how}) > " if due else "> "
                ).split()
                words = words or ["n"]
            except EOFError:
                return
            if words in (["q"], ["quit"], ["exit"]):
                return
            before = [side.place for side in self.session.sides]
            try:
                self.obey(words[0], words[1:])
            except LRError as error:
                if before != [side.place for side in self.session.sides]:
                    self._show()  # it moved before it failed
                self._say(f"! {error}")

    def obey(self, letter: str, rest: list[str]) -> None:
        """Obey one line. Raises `StepperError`, without any change, for a line that it
        does not understand, and what the session raises."""
        session, out, said = self.session, self.out, ""
        word = rest[0] if rest else None
        if len(rest) > 1:
            told = f"there are {len(rest)}: {' '.join(rest)}"
            raise StepperError(f"one word after the letter is enough; {told}.")
        if letter in MOVES:
            wanted = f"{word!r} is no number of moves; expected 1 to {MOST}."
            moved, count = 0, _number(word or "1", wanted, 1, MOST)
            while moved < count and session.go(MOVES[letter]):
                moved += 1
            if not moved:
                end = (
                    "This is the beginning."
                    if letter == "b"
                    else "This is the end; b goes back."
                )
                return self._say(end)
        elif letter == "g":
            session.to(_number(word, "g takes the number of an event, such as g 120."))
        elif letter in ("a", "x"):
            said = session.force(letter == "a", word)
        elif letter == "f":
            said = session.fork()
        elif letter == "d":
            dropped = "Side B is dropped, its blocks are given back."
            said = dropped if session.drop() else "There is no side B."
        elif letter.upper() in ("A", "B", "AB") and not rest:
            session.move(letter)
        elif letter == "w":
            if word is None:
                raise StepperError(
                    "w takes the name of a file, such as w what-if.jsonl."
                )
            return self._say(session.save(word))
        elif letter in ("?", "h", "help"):
            return out.print(HELP, soft_wrap=True)
        elif letter == "i":
            return out.print(node_view(session.active, word or _telling(session)))
        elif letter == "c":
            wanted = "c takes the number of a block, such as c 3."
            return out.print(
                cache_view(session, None if word is None else _number(word, wanted))
            )
        elif letter == "t":
            for side in session.sides:
                if len(session.sides) > 1:
                    self._say(f"side {side.name}")
                out.print(answer_view(side.state.emitted, MOST))
            return None
        elif letter != "l":
            raise StepperError(f"{letter!r} is no letter here. {FIRST}")
        self._show()
        return self._say(said) if said else None

    def _show(self) -> None:
        """Show the screen. A terminal is cleared first, so that changes stand out."""
        if self.out.is_terminal:
            self.out.clear()
        self.out.print(screen(self.session))
        if self.out.is_terminal:
            self._say(LETTERS)

    def _say(self, text: str) -> None:
        self.out.print(Text(text, style="dim"))


def _telling(session: Session) -> str:
    """The node of the last event, or the root."""
    record = session.active.last
    name = None if record is None else record.data.get("node")
    return name if name in session.active.state.nodes else session.active.state.root


def _number(
    word: str | None, wanted: str, least: int = 0, most: float = math.inf
) -> int:
    if word is None or not word.isdecimal() or not least <= int(word) <= most:
        raise StepperError(wanted)
    return int(word)
