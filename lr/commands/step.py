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

from lr.commands.models import ModelChoice
from lr.commands.stepping import Prompt
from lr.lab.stepper.session import Session
from lr.lab.stepper.source import Recorded, Source
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
