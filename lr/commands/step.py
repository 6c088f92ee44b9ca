"""`lr step`: step through an answer as it is made, or through a recorded one, and aside into what
would have been.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.text import Text

from lr.commands.options import ModelChoice
from lr.errors import LRError
from lr.lab.stepper.inside import cache_view, node_view
from lr.lab.stepper.session import Session
from lr.lab.stepper.source import Recorded, Source, StepperError
from lr.lab.stepper.view import answer_view, screen
from lr.lab.trace.file import TraceFile, read_trace
from lr.options import GenerateOptions


@dataclass(frozen=True)
class StepCommand:
    """Step through an answer: forward, back, to the next rejection, into nodes, tokens and cache;
    force verdicts and fork what-ifs.
    """

    what: tyro.conf.Positional[str]
    """A question, which is answered as you go, or a trace (whatever ends in .jsonl, or is there as
    a file), as --trace writes it.
    """
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)

    def run(self) -> None:
        out = Console(highlight=False)
        session = Session(self._recorded() if self._is_file() else self._live())
        try:
            Prompt(session, _reader(out), out).run()
        except KeyboardInterrupt:
            out.print()
        finally:
            session.close()

    def _is_file(self) -> bool:
        try:
            return self.what.endswith(".jsonl") or Path(self.what).exists()
        except OSError:  # too long for the name of a file
            return False

    def _live(self) -> Source:
        """The models are loaded now, the first event is made when it is asked for."""
        from lr.lab.stepper.live import LiveSource

        reasoner = self.models.load(needs_draft=True)
        return LiveSource(reasoner, self.what, dataclasses.asdict(self.generation))

    def _recorded(self) -> Source:
        trace = read_trace(Path(self.what))
        for note in trace.notes:
            Console(stderr=True, highlight=False).print(
                f"{self.what}: {note}", markup=False, style="dim"
            )
        return Recorded(trace, remaking(trace))


def remaking(trace: TraceFile) -> Callable[[], Source] | None:
    """How the run of a trace is begun again, its models being loaded when that is first done; None
    where it cannot be.
    """
    if (
        trace.header.clock == "virtual"
        or trace.header.question is None
        or trace.header.driver != "lockstep"
    ):
        return None
    loaded: list[Any] = []

    def remake() -> Source:
        from lr.lab.stepper.live import LiveSource
        from lr.lab.trace.replay import reasoner_of

        if not loaded:
            loaded.append(reasoner_of(trace.header))
        options = {
            name: tuple(v) if isinstance(v, list) else v for name, v in trace.header.options.items()
        }
        return LiveSource(loaded[0], str(trace.header.question), options)

    return remake


def _reader(out: Console) -> Callable[[str], str]:
    """Lines from the keyboard, with history; from a pipe each is shown behind its prompt, so that
    the output reads like a session.
    """
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

Reader = Callable[[str], str]
"""Reads a line, given the prompt. Raises EOFError at the end."""


class Prompt:
    """One session at a terminal or a pipe. `read` gets the lines; `out` shows."""

    def __init__(self, session: Session, read: Reader, out: Console) -> None:
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
        raises; nothing is changed then.
        """
        session = self.session
        if letter in MOVES:
            self._move(MOVES[letter], _count(rest), letter)
        elif letter == "g":
            session.to(_number(rest, "g takes the number of an event, such as g 120."))
            self._show()
        elif letter in ("a", "x"):
            self._told(session.force(letter == "a", _one(rest)))
        elif letter == "f":
            self._told(session.fork())
        elif letter == "d":
            self._told(
                "Side B is dropped, its blocks are given back."
                if session.drop()
                else "There is no side B."
            )
        elif letter.upper() in ("A", "B", "AB") and not rest:
            session.move(letter)
            self._show()
        elif letter == "w":
            name = _one(rest)
            if name is None:
                raise StepperError("w takes the name of a file, such as w what-if.jsonl.")
            self._say(session.save(name))
        else:
            self._look(letter, rest)

    def _look(self, letter: str, rest: list[str]) -> None:
        session, out = self.session, self.out
        if letter in ("?", "h", "help"):
            out.print(HELP, markup=False, soft_wrap=True)
        elif letter == "i":
            side = session.active
            out.print(node_view(side, _one(rest) or _telling(session)))
        elif letter == "c":
            out.print(
                cache_view(
                    session,
                    _number(rest, "c takes the number of a block, such as c 3.") if rest else None,
                )
            )
        elif letter == "t":
            for side in session.sides:
                if len(session.sides) > 1:
                    self._say(f"side {side.name}")
                out.print(answer_view(side.state.emitted, MOST))
        elif letter == "l":
            self._show()
        else:
            raise StepperError(f"{letter!r} is no letter here. {FIRST}")

    def _move(self, move: Callable[[Session], bool], count: int, letter: str) -> None:
        moved = False
        for _ in range(count):
            if not move(self.session):
                break
            moved = True
        if moved:
            self._show()
        else:
            self._say(
                "This is the beginning." if letter == "b" else "This is the end; b goes back."
            )

    def _told(self, said: str) -> None:
        self._show()
        self._say(said)

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
    word = _one(rest)
    if word is None:
        return 1
    if not word.isdecimal() or not 1 <= int(word) <= MOST:
        raise StepperError(f"{word!r} is no number of moves; expected 1 to {MOST}.")
    return int(word)


def _number(rest: list[str], expected: str) -> int:
    word = _one(rest)
    if word is None or not word.isdecimal():
        raise StepperError(expected)
    return int(word)
