"""What the tests of the stepper share: scripted and live sources, and a prompt that is
fed lines.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache

from reasoner_kit import with_loader
from rich.console import Console

from lr.commands.trace import StepperPrompt
from lr.model.weights import load_model
from lr.reasoner import Reasoner
from lr.spec.protocol import Limits, SchedulerConfig
from lr.watch.scripted import ScriptedRun, TextScript
from lr.watch.stepper.live import LiveSource
from lr.watch.stepper.session import ScriptSource, Session

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
SCRIPT = TextScript(["a.", "b.", "c.", "d$"], ["A.", "x.", "C.", "D$"])
"""The draft writes in capitals; its step 1 is not the target's."""


def script_session(width: int = 1) -> Session:
    config = SchedulerConfig(Limits(50), depth=2, width=width)
    return Session(ScriptSource(ScriptedRun(config, SCRIPT)))


@cache
def tiny_reasoner() -> Reasoner:
    """The tiny models as they ship: they disagree now and then."""
    with with_loader(load_model):
        return Reasoner(verifier="oracle")


def live_session(mode: str = "lr", **options: object) -> Session:
    chosen = {
        "mode": mode,
        "depth": 3,
        "temperature": 0.6,
        "seed": 1,
        "max_tokens": 60,
    } | options
    return Session(LiveSource(tiny_reasoner(), QUESTION, chosen))


def talk(session: Session, lines: Iterable[str], width: int = 80) -> str:
    """What the prompt shows when these lines are typed."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, color_system=None)
    typed = iter(lines)

    def read(prompt: str) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        out.write(f"{prompt}{line}\n")
        return line

    StepperPrompt(session, read, console).run()
    return out.getvalue()
