"""The sources of the stepper's events: a recording (`Source`), a scripted run
(`ScriptSource`, without models or torch), or an answer on models (`live.py`).

    source = Source(read_trace("answer.jsonl"))
    source.records          # all events so far
    source.advance()        # make more; False: there are no more
    source.place, source.state      # how many events have happened, and what is then

Going back only means a smaller place. A run advances by small pieces of work (a
forward, the verdicts that are due), each of which makes a few events. Between two pieces
a verdict can be forced and the run forked. Knows no model. Read next: `session.py`,
which walks through one or two sources."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lr.errors import LRError
from lr.spec.protocol import Judged, WorkKind
from lr.types import Verdict
from lr.watch.scripted import ScriptedRun, scripted_trace
from lr.watch.trace.file import Record, TraceFile
from lr.watch.trace.state import State, state_at

STOPS = frozenset(
    {"draft", "target", "judge", "drafted", "targeted", "judged", "emit", "end"}
)
"""The kinds of event at which the moves next and back stop; all others are details."""
FORCED = "forced by hand"  # How the reason of a forced verdict begins.


class StepperError(LRError):
    """The stepper cannot do what was asked for here."""


class Source:
    """The events of one answer, and a place in it: `place` events have happened.
    `records` only grows. This class walks through a recording; subclasses make events
    (`runs`). `forced`: by node, the forced verdicts. `name`: of the side."""

    runs = False

    def __init__(self, trace: TraceFile) -> None:
        self.name = "A"
        self.trace = trace
        self.header = trace.header
        self.records = trace.records
        self.place = 0
        self.forced: dict[str, bool] = {}

    @property
    def state(self) -> State:
        """Everything after `place` events."""
        return state_at(self.trace, self.place)

    @property
    def last(self) -> Record | None:
        return self.records[self.place - 1] if self.place else None

    @property
    def over(self) -> bool:
        """Whether the answer's last event has happened."""
        return self.trace.complete and self.place == len(self.records)

    def go(self, wanted: Callable[[Record], bool]) -> None:
        """Go to the place after the next wanted event; if there is none, to the end."""
        while self.forward():
            if wanted(self.records[self.place - 1]):
                return

    def back(self) -> None:
        """Go to the previous stop, or to the beginning."""
        before = reversed(self.records[: max(0, self.place - 1)])
        stops = (record.number + 1 for record in before if self.is_stop(record))
        self.place = next(stops, 0)

    def forward(self) -> bool:
        """Go one event further; a run works until there is one. False at the end."""
        while self.place == len(self.records):
            if not self.advance():
                return False
        self.place += 1
        return True

    def is_stop(self, record: Record) -> bool:
        plain = self.header.driver == "plain"
        return record.kind in STOPS or (plain and record.kind == "written")

    @property
    def waiting(self) -> list[str]:
        """The nodes whose verdicts come next, in order. These verdicts can be
        forced."""
        return []

    def advance(self) -> bool:
        """Do one piece of work; False if none is left."""
        return False

    def fork(self) -> Source:
        """A second run that continues from here independently. Raises
        `StepperError`."""
        raise StepperError(
            "a recording cannot go another way. Step through its question live: lr "
            "step QUESTION, with the same settings and seed."
        )

    def close(self) -> None:
        """Free all resources."""


class ScriptSource(Source):
    """A scripted run, for lessons and tests: ScriptSource(ScriptedRun(config, script)).

    A piece of work is a turn. A fork copies the scheduler and everything that belongs
    to it."""

    runs = True

    def __init__(self, run: ScriptedRun) -> None:
        self.run = run
        super().__init__(scripted_trace(run))

    @property
    def waiting(self) -> list[str]:
        return [str(work.node) for work in self.run.work if work.kind is WorkKind.JUDGE]

    def advance(self) -> bool:
        """The next turn in the run's order."""
        if self.run.done:
            return False
        pieces = self.run.work
        event = self.run.event_of(pieces[self.run.order(pieces)])
        if isinstance(event, Judged):
            verdict = verdict_of(self.forced, str(event.node), event.verdict)
            event = Judged(event.node, verdict)
        self.run.tell(event)
        self.records += scripted_trace(self.run).records[len(self.records) :]
        return True

    def fork(self) -> ScriptSource:
        return copy.deepcopy(self)


def verdict_of(
    forced: Mapping[str, bool], node: str, verdict: Verdict | None
) -> Verdict | None:
    """The verdict on a node: the forced one, or the verifier's own."""
    if node not in forced:
        return verdict
    if verdict is None:
        return Verdict(forced[node], FORCED)
    word = "aligned" if verdict.aligned else "not aligned"
    reason = f"{FORCED}; else {word}: {verdict.why}"
    return replace(verdict, aligned=forced[node], why=reason)


def decides(records: Sequence[Record]) -> bool:
    """Whether these events include a verdict or a step of the answer."""
    return any(record.kind in ("judged", "emit") for record in records)
