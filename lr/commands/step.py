"""`lr step`: step through an answer as it is made, or through a recorded one, and aside into what
would have been.

The prompt reads line by line, so that it works over a pipe as at a terminal. What the letters do is
in `lab/stepper/session.py`; what is shown, in `lab/stepper/view.py`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.text import Text

from lr.commands.options import ModelChoice, is_trace
from lr.errors import LRError
from lr.lab.stepper.session import Session
from lr.lab.stepper.sources import Recorded, Source, StepperError
from lr.lab.stepper.view import answer_view, cache_view, node_view, screen
from lr.lab.trace.file import TraceFile, read_trace
from lr.options import GenerateOptions

if TYPE_CHECKING:
    from lr.reasoner import Reasoner


@dataclass(frozen=True)
class StepCommand:
    """Step through an answer: forward, back, to the next rejection, into nodes, tokens and cache;
    force verdicts and fork what-ifs."""

    what: tyro.conf.Positional[str | None] = None
    """A question, which is answered as you go, or a trace (whatever ends in .jsonl, or is there as
    a file), as --trace writes it. Left out: a sample problem."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)

    def run(self) -> None:
        out, what = Console(highlight=False), self.what
        recorded = what is not None and is_trace(what)
        session = Session(_recorded(Path(str(what))) if recorded else self._live())
        try:
            Prompt(session, _reader(out), out).run()
        except KeyboardInterrupt:
            out.print()
        finally:
            session.close()

    def _live(self) -> Source:
        """The models are loaded now, the first event is made when it is asked for."""
        from lr.lab.stepper.live import LiveSource

        reasoner = self.models.load(needs_draft=True)
        question = self.models.question(self.what)
        return LiveSource(reasoner, question, dataclasses.asdict(self.generation))


def _recorded(path: Path) -> Source:
    trace = read_trace(path)
    for note in trace.notes:
        notes = Console(stderr=True, highlight=False)
        notes.print(f"{path}: {note}", markup=False, style="dim")
    return Recorded(trace, remaking(trace))


def remaking(trace: TraceFile) -> Callable[[], Source] | None:
    """How the run of a trace is begun again, its models being loaded when that is first done; None
    where it cannot be."""
    header = trace.header
    if header.clock == "virtual" or header.question is None or header.driver != "lockstep":
        return None
    question: str = header.question
    loaded: list[Reasoner] = []

    def remake() -> Source:
        from lr.lab.stepper.live import LiveSource
        from lr.lab.trace.replay import reasoner_of

        if not loaded:
            loaded.append(reasoner_of(header))
        lists = {n: tuple(v) for n, v in header.options.items() if isinstance(v, list)}
        return LiveSource(loaded[0], question, {**header.options, **lists})

    return remake


def _reader(out: Console) -> Callable[[str], str]:
    """Lines from the keyboard, with history. From a pipe each is shown after its prompt, so that
    the output reads like a session."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  # gives input() its history
        return input

    def read(prompt: str) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        out.print(f"{prompt}{line.rstrip()}", markup=False, soft_wrap=True)
        return line

    return read


HELP = """\
forward  n (or Enter)  the next moment; n 5: five     e  one event, details too
         s  the answer's next step     r  the next rejection
         v  where a verdict is due     z  the end
back     b  the moment before; b 5     g 120  to event 120, either way
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
MOVES: dict[str, Callable[[Session], bool]] = {
    "n": Session.next,
    "b": Session.back,
    "e": Session.next_event,
    "s": Session.to_step,
    "r": Session.to_rejection,
    "v": Session.to_verdict,
    "z": Session.to_end,
}
MOST = 10_000
"""Moves that one line may ask for."""


class Prompt:
    """One session at a terminal or a pipe. `read` gets a line, given the prompt, and raises
    `EOFError` at the end; `out` shows."""

    def __init__(self, session: Session, read: Callable[[str], str], out: Console) -> None:
        self.session, self.read, self.out = session, read, out

    def run(self) -> None:
        """Until `q` or the end of the input."""
        self._show()
        self._say(FIRST)
        while True:
            try:
                words = self.read(self._prompt()).split()
            except EOFError:
                return
            if words[:1] in (["q"], ["quit"], ["exit"]):
                return
            before = [side.place for side in self.session.sides]
            try:
                self.obey(words[0] if words else "n", words[1:])
            except LRError as error:
                if before != [side.place for side in self.session.sides]:
                    self._show()  # it got as far as that
                self._say(f"! {error}")

    def obey(self, letter: str, rest: list[str]) -> None:
        """One line. Raises `StepperError` for one that cannot be understood, and what the session
        raises; nothing is changed then."""
        session, out, said = self.session, self.out, ""
        if letter in MOVES:
            moved, count = False, _count(rest)
            while count and MOVES[letter](session):
                moved, count = True, count - 1
            if not moved:
                end = "This is the beginning." if letter == "b" else "This is the end; b goes back."
                return self._say(end)
        elif letter == "g":
            session.to(_number(rest, "g takes the number of an event, such as g 120."))
        elif letter in ("a", "x"):
            said = session.force(letter == "a", _one(rest))
        elif letter == "f":
            said = session.fork()
        elif letter == "d":
            dropped = "Side B is dropped, its blocks are given back."
            said = dropped if session.drop() else "There is no side B."
        elif letter.upper() in ("A", "B", "AB") and not rest:
            session.move(letter)
        elif letter == "w":
            name = _one(rest)
            if name is None:
                raise StepperError("w takes the name of a file, such as w what-if.jsonl.")
            return self._say(session.save(name))
        elif letter in ("?", "h", "help"):
            return out.print(HELP, markup=False, soft_wrap=True)
        elif letter == "i":
            return out.print(node_view(session.active, _one(rest) or _telling(session)))
        elif letter == "c":
            wanted = "c takes the number of a block, such as c 3."
            return out.print(cache_view(session, _number(rest, wanted) if rest else None))
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
        """On a terminal the screen is drawn in place, so that what changes is seen to change."""
        if self.out.is_terminal:
            self.out.clear()
        self.out.print(screen(self.session))

    def _say(self, text: str) -> None:
        self.out.print(Text(text, style="dim"))

    def _prompt(self) -> str:
        due = self.session.due(self.session.active)
        return f"{'verdict due on ' + ', '.join(due) + ' ' if due else ''}> "


def _telling(session: Session) -> str:
    """The node that the last event was about; else the root."""
    record = session.active.last
    name = None if record is None else record.data.get("node")
    return name if name in session.active.state.nodes else session.active.state.root


def _one(rest: list[str]) -> str | None:
    if len(rest) > 1:
        raise StepperError(
            f"one word after the letter is enough; there are {len(rest)}: {' '.join(rest)}."
        )
    return rest[0] if rest else None


def _count(rest: list[str]) -> int:
    word = _one(rest) or "1"
    if not word.isdecimal() or not 1 <= int(word) <= MOST:
        raise StepperError(f"{word!r} is no number of moves; expected 1 to {MOST}.")
    return int(word)


def _number(rest: list[str], expected: str) -> int:
    word = _one(rest)
    if word is None or not word.isdecimal():
        raise StepperError(expected)
    return int(word)
