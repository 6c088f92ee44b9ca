"""`lr trace` checks a trace; `lr play` shows it; `lr step` steps through it, or through
an answer while it is made, and forks what-ifs.

The prompt of `lr step` reads line by line, so that it works at a terminal and over a
pipe. The moves are in `watch/stepper/session.py`, the display is in
`watch/stepper/view.py`."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import tyro
from rich.columns import Columns
from rich.console import Console

from lr.commands.options import AnswerFlags
from lr.commands.show import AS_IT_IS, console
from lr.errors import LRError, SettingError
from lr.types import require
from lr.watch.player.page import player_page
from lr.watch.recorded import RECORDED, recorded_path
from lr.watch.stepper.session import Session, Source, StepperError
from lr.watch.stepper.view import answer_view, cache_view, node_view, screen
from lr.watch.trace.file import read_trace, trace_of, write_text
from lr.watch.words import setting_of, summary, title_of

Output = Annotated[Path | None, tyro.conf.arg(aliases=["-o"])]


@dataclass(frozen=True)
class Shown(AnswerFlags):
    """What `lr play` and `lr step` show: a trace, or the answer to a question."""

    source: tyro.conf.Positional[str | None] = None
    """A trace from --trace (a name that ends in .jsonl, or an existing file), a recorded
    answer of real models (board, eggs, coat or train), or a question to answer. Left
    out: lr play shows board, lr step answers a sample problem."""

    def file(self) -> Path | None:
        """The trace file that `source` names; None if it is a question."""
        words = self.source
        if words in RECORDED:
            return recorded_path(words)
        with suppress(OSError):  # a question may be too long for a file name
            if words is not None and (words.endswith(".jsonl") or Path(words).exists()):
                return Path(words)
        for likely in get_close_matches(words or "", RECORDED, 1):
            raise SettingError(
                f"there is no recorded answer {words!r}; did you mean {likely}? "
                f"There are {', '.join(RECORDED)}."
            )
        return None


@dataclass(frozen=True)
class TraceCommand:
    """Check a trace from --trace; print a summary of it, or which line is wrong."""

    file: tyro.conf.Positional[Path]  # The trace: JSON lines, see docs/trace.md.

    def run(self) -> None:
        trace = read_trace(self.file)
        header = trace.header
        out = console()
        count = len(trace.records)
        out.print(f"{count} events: {title_of(header)}\n{setting_of(header)}")
        if header.question is not None:
            out.print(f"question: {header.question}")
        out.print(summary(trace.stats, header.unit))
        kinds = Counter(record.kind for record in trace.records).most_common()
        if kinds:
            words = [f"{kind} {number}" for kind, number in kinds]
            out.print("", Columns(words, padding=(0, 2, 0, 0)), "")
        for note in trace.notes:
            out.print(f"note: {note}", style="yellow")


@dataclass(frozen=True)
class Play(Shown):
    """Write one page that shows an answer event by event: the tree, the text, the
    clock, the cache. It needs nothing but a browser."""

    output: Output = None
    """The page to write; None: the trace's name with .html, or answer.html."""

    def run(self) -> None:
        if self == Play(output=self.output):  # nobody asked for anything
            replace(self, source=RECORDED[0]).run()
            return
        file = self.file()
        if file is not None:
            trace = read_trace(file)
            # a recorded answer is in the package; its page is not
            beside = Path(file.name) if self.source in RECORDED else file
            output = self.output or beside.with_suffix(".html")
            expected = "another file than the trace itself"
            require(output.resolve() != file.resolve(), "output", str(output), expected)
        else:
            answer = self.ask(self.source, detailed=True)
            answer.finish()
            trace = trace_of(answer)
            output = self.output or Path("answer.html")
        page = player_page(trace)
        write_text(output, page)
        for note in trace.notes:
            console(stderr=True).print(f"{self.source}: {note}", style="dim")
        size = f"{len(trace.records)} events, {len(page.encode()) / 1e6:.1f} MB"
        console().print(f"written: {output} ({size}); open it in a browser")


@dataclass(frozen=True)
class StepCommand(Shown):
    """Step through an answer: forward, back, to the next rejection, into nodes, tokens
    and cache; force verdicts and fork what-ifs."""

    def run(self) -> None:
        out = Console(highlight=False, **AS_IT_IS)
        file = self.file()
        source: Source
        if file is None:  # the first event is made when it is asked for
            from lr.watch.stepper.live import LiveSource

            reasoner = self.models.load(needs_draft=True)
            question = self.models.question(self.source)
            variant = self.load_variant(reasoner)
            source = LiveSource(reasoner, question, asdict(self.generation), variant)
        else:
            trace = read_trace(file)
            for note in trace.notes:
                console(stderr=True).print(f"{file}: {note}", style="dim")
            source = Source(trace)
        session = Session(source)
        try:
            StepperPrompt(session, _reader(out), out).run()
        except KeyboardInterrupt:
            out.print()
        finally:
            session.close()


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
         c  the cache: who holds which block
         t  the whole answer           l  this screen again
what if  a / x  the verdict that is due will be: aligned / not aligned
         a 0:2  the same, for this node
         f  fork: a second side B from here on      d  drop side B
         A / B / AB  which sides move
         w FILE  write the side's trace             q  quit
nodes    2:5  the node before step 5, in the tree that began at step 2 (after
         the target's own step 1); 2:5.1 its second alternative. A draft step
         has the name of the node to which it leads.
signs    ✓ accepted   ✗ rejected, or the target's correction   + bonus
         · target's own   … being written   ■ written   ? with the verifier
         ✕ cancelled   ∅ none came"""
"""What `?` shows."""
FIRST = "? explains the letters; Enter goes on."
MOVE_LETTERS = (
    "n next  v verdict  r rejection  f fork  c cache  t answer  z end  ? all  q quit"
)
"""The letters shown below every screen on a terminal."""
MOVE_HELP = {
    "n": "next", "b": "back", "e": "event", "s": "step", "r": "rejection", "v": "verdict",
    "z": "end",
}  # fmt: skip
MOST_MOVES = 10_000  # The most moves that one line may ask for.


@dataclass
class StepperPrompt:
    """One session at a terminal or over a pipe. `read` returns a line, given the
    prompt, and raises `EOFError` at the end of the input."""

    session: Session
    read: Callable[[str], str]
    out: Console

    def run(self) -> None:
        """Obey lines until `q` or the end of the input."""
        self._show()
        self._say(FIRST)
        while True:
            try:
                letter, *words = self.read(self._prompt()).split() or ["n"]
            except EOFError:
                return
            if letter in ("q", "quit", "exit"):
                return
            places = [side.place for side in self.session.sides]
            try:
                self.obey(letter, words)
            except LRError as error:
                if places != [side.place for side in self.session.sides]:
                    self._show()  # it moved before it failed
                self._say(f"! {error}")

    def _prompt(self) -> str:
        due = ", ".join(self.session.due(self.session.active))
        if not due:
            return "> "
        if not self.session.active.runs:
            return f"verdict due on {due} (recorded, n goes on to it) > "
        forks = "f forks, then " if len(self.session.sides) == 1 else ""
        return f"verdict due on {due} ({forks}x rejects, a accepts) > "

    def obey(self, letter: str, words: list[str]) -> None:
        """Obey one line. Raises `StepperError`, without any change, for a line that it
        does not understand, and what the session raises."""
        if len(words) > 1:
            raise StepperError(f"one word after {letter} is enough, not {len(words)}.")
        word = words[0] if words else None
        session = self.session
        if letter in MOVE_HELP:
            self._move(letter, word)
            return
        match letter:
            case "g":
                session.to(_number(word, "g takes the number of an event: g 120."))
                self._show()
            case "a" | "x":
                self._show(session.force(letter == "a", word))
            case "f":
                self._show(session.fork())
            case "d":
                dropped = session.drop()
                self._show("Side B is dropped." if dropped else "There is no side B.")
            case "A" | "B" | "AB":
                session.move(letter)
                self._show()
            case "w":
                if word is None:
                    raise StepperError("w takes the name of a file: w what-if.jsonl.")
                self._say(session.save(word))
            case "?" | "h" | "help":
                self.out.print(HELP, soft_wrap=True)
            case "i":
                state = session.active.state
                # the node of the last event, or the root
                node = word or min(state.touched, default=state.root)
                self.out.print(node_view(session.active, node))
            case "c":
                self.out.print(cache_view(session))
            case "t":
                for side in session.sides:
                    if len(session.sides) > 1:
                        self._say(f"side {side.name}")
                    self.out.print(answer_view(side.state.emitted, MOST_MOVES))
            case "l":
                self._show()
            case _:
                raise StepperError(f"{letter!r} is no letter here. {FIRST}")

    def _move(self, letter: str, word: str | None) -> None:
        """Move, several times if a number is given."""
        count = _number(word or "1", f"{word!r} is no number of moves.", 1, MOST_MOVES)
        moves = 0
        while moves < count and self.session.go(MOVE_HELP[letter]):
            moves += 1
        if not moves:
            back = letter == "b"
            self._say("This is the beginning." if back else "The end; b goes back.")
            return
        self._show()
        if letter == "r" and all(side.over for side in self.session.moved):
            self._say("There is no rejection in the rest of this answer.")

    def _show(self, message: str = "") -> None:
        """Show the screen. A terminal is cleared first, so that changes stand out."""
        if self.out.is_terminal:
            self.out.clear()
        self.out.print(screen(self.session))
        if self.out.is_terminal:
            self._say(MOVE_LETTERS)
        if message:
            self._say(message)

    def _say(self, text: str) -> None:
        self.out.print(text, style="dim")


def _number(word: str | None, wanted: str, low: int = 0, high: float = math.inf) -> int:
    if word is None or not word.isdecimal() or not low <= int(word) <= high:
        raise StepperError(wanted)
    return int(word)
