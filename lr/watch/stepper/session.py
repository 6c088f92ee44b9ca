"""A walk through an answer: forward and back, to the next rejection, aside into a
what-if. Nothing is displayed here.

    session = Session(source)
    session.go("next")                # to the next event that changes the tree or the answer
    session.go("verdict")             # to where a verdict is due
    session.force(False)              # it will be: not aligned
    session.fork()                    # a second side, B, that goes on from here by itself
    session.go("next")                # moves both sides (those in `session.moved`)

A side is a source of events with a place in them: a recording (`Source`), a scripted run
(`ScriptSource`, without models or torch), or an answer on models (`live.py`).

    source = Source(read_trace("answer.jsonl"))
    source.records                    # all events so far
    source.advance()                  # make more; False: there are no more
    source.place, source.state        # how many events have happened, and what is then

Going back only means a smaller place. A run advances by small pieces of work (a
forward, the verdicts that are due), each of which makes a few events. Between two pieces
a verdict can be forced and the run forked. Only going beyond the last event makes a run
work, and the past stays as it was. Read next: `view.py`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from lr.errors import LRError
from lr.spec.protocol import Judged, WorkKind
from lr.types import Origin, Verdict
from lr.watch.scripted import ScriptedRun, scripted_trace
from lr.watch.trace.file import Record, TraceFile, write_trace
from lr.watch.trace.state import State, state_at
from lr.watch.words import is_emitted

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
        before = reversed(self.records[: max(0, self.place - 1)])  # nearest first
        stops = (record.number + 1 for record in before if self.is_stop(record))
        self.place = next(stops, 0)  # 0: the beginning

    def forward(self) -> bool:
        """Go one event further; a run works until there is one. False at the end."""
        while self.place == len(self.records):
            if not self.advance():  # nothing is left to do
                return False
        self.place += 1
        return True

    def is_stop(self, record: Record) -> bool:
        plain = self.header.driver == "plain"
        # plain decoding only writes
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


def verdict_of(forced: Mapping[str, bool], node: str, verdict: Verdict) -> Verdict:
    """The verdict on a node: the forced one, or the verifier's own."""
    if node not in forced:
        return verdict
    word = "aligned" if verdict.aligned else "not aligned"
    reason = f"{FORCED}; else {word}: {verdict.why}"
    return replace(verdict, aligned=forced[node], why=reason)


def _to(kind: str) -> Callable[[Source], object]:
    return lambda side: side.go(lambda record: record.kind == kind)


SIDE_MOVES: dict[str, Callable[[Source], object]] = {
    "next": lambda side: side.go(side.is_stop),  # a change of the tree or the answer
    "back": Source.back,  # the opposite
    "event": Source.forward,  # one event, even a detail
    "step": _to("emit"),  # a step of the answer
    # a draft step is replaced
    "rejection": lambda side: side.go(partial(is_emitted, origin=Origin.CORRECTION)),
    "verdict": _to("judge"),  # where one is due
    "end": _to("end"),
}
"""How a side can move, by name. Forward moves go to the place after the event, or to
the end."""


class Session:
    """One or two sides. `moved`: those that go forward and back together, by default
    both."""

    def __init__(self, source: Source) -> None:
        self.sides = [source]
        self.moved = list(self.sides)

    @property
    def active(self) -> Source:
        """The side to show, force and fork: the what-if if it moves."""
        return self.moved[-1]

    def go(self, move: str) -> bool:
        """Move every moved side in one of the ways in `SIDE_MOVES`; False if none could
        move."""
        before = [side.place for side in self.moved]
        for side in self.moved:
            SIDE_MOVES[move](side)
        return before != [side.place for side in self.moved]

    def to(self, number: int) -> None:
        """Move every moved side to the place after its first `number` events."""
        for side in self.moved:
            side.place = min(side.place, max(number, 0))
            while side.place < number and side.forward():
                pass

    def due(self, side: Source) -> list[str]:
        """The nodes on which a verdict is due here, in the order in which the verifier
        got them."""
        return [node for kind, node in side.state.work if kind == "judge"]

    def force(self, aligned: bool, node: str | None = None) -> str:
        """Force the verdict that is due, on `node` if there are several. Returns a
        message. Raises `StepperError` if no verdict is due, or if it was given
        already."""
        side = self.active
        due = self.due(side)
        name = node or next(iter(due), "a draft step")
        if name not in due:
            names = ", ".join(due) or "none"
            raise StepperError(
                f"no verdict on {name} is due here; due are: {names}. v goes to where "
                "the next one is."
            )
        if name not in side.waiting:
            raise StepperError(
                f"the verdict on {name} was given already. Ask the question live with "
                "lr step, with the same seed, and force it when it is due."
            )
        side.forced[name] = aligned
        verdict = "aligned" if aligned else "not aligned"
        return f"The verdict on {name} will be: {verdict} ({FORCED})."

    def fork(self) -> str:
        """Begin a what-if at the active side's place, instead of an old one. Returns a
        message. Raises `StepperError` if the blocks of that place are gone, because a
        decision was made after it."""
        side = self.active
        later = (record.kind for record in side.records[side.place :])
        if side.runs and not {"judged", "emit"}.isdisjoint(later):
            raise StepperError(
                "the blocks of this place are gone: decisions follow it. Fork before "
                "they are made."
            )
        fork = side.fork()
        fork.name = "B"
        fork.place = len(fork.records)
        side.place = len(side.records)
        message = f"Side B goes on from event {side.place}."
        if any(cache.branches for cache in side.state.caches.values()):
            message += " Its blocks are the same ones, nothing was computed."
        if fork.forced:
            message += " Forced verdicts hold on both sides; a and x change B's now."
        self.drop()
        self.sides.append(fork)
        self.moved = list(self.sides)
        return message

    def drop(self) -> bool:
        """Drop the what-if and free its blocks; False if there is none."""
        if len(self.sides) == 1:
            return False
        self.sides.pop().close()
        self.moved = list(self.sides)
        return True

    def move(self, names: str) -> None:
        """Choose the sides that move: "A", "B" or "AB". Raises `StepperError` if one is
        missing."""
        present = [side.name for side in self.sides]
        if not set(names) <= set(present):
            raise StepperError(f"there is no side {names!r}; there are: {present}.")
        self.moved = [side for side in self.sides if side.name in names]

    def save(self, path: str) -> str:
        """Write the active side's events as a trace. Returns a message. Raises
        `TraceError`."""
        side = self.active
        header = side.header
        if side.name == "B" or side.forced:
            header = replace(header, variant="a what-if of the stepper")
        write_trace(path, TraceFile(header, side.records))
        count = f"{len(side.records)} events of side {side.name}"
        return f"Written: {path} ({count}). lr step, play and trace read it."

    def close(self) -> None:
        for side in self.sides:
            side.close()


def is_forced(verdict: Verdict | None) -> bool:
    """Whether a verdict was forced."""
    return verdict is not None and verdict.why.startswith(FORCED)
