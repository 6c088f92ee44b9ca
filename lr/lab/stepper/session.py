"""A walk through an answer: forward and back, to the next rejection, aside into a what-if. No
terminal, no picture.

    session = Session(source)
    session.go("next")                # to the next event that changes the tree or the answer
    session.go("verdict")             # to where a verdict is due
    session.force(False)              # it will be: not aligned
    session.fork()                    # a second side, B, that goes on from here by itself
    session.go("next")                # both sides, as `session.moved` says

What is seen is the state after the events up to a side's place (`lab/trace/state.py`), so going
back is nothing but a smaller number; only going beyond the last event makes a run work. Nothing
that has happened is rewritten: a verdict that is forced anywhere but at the end of a run is forced
in a what-if. Read next: `view.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lr.lab.stepper.sources import FORCED, Source, StepperError, decides
from lr.lab.stepper.words import says_aligned
from lr.lab.trace.file import Record, write_trace
from lr.lab.trace.state import State, state_at

STOPS = frozenset({"draft", "target", "judge", "drafted", "targeted", "judged", "emit", "end"})
"""Kinds of event at which the moves next and back stop; the others (tokens, forwards, blocks) are
details of them."""
FOLLOWS = frozenset({"release", "cancel", "fork", "hold", "cut", "close", "replace"})
"""What a step that joins the answer brings about without any further work."""
SLACK = 100_000  # Pieces of work without any event after which a run is taken to hang.


class Side:
    """One answer and a place in it: `place` events have happened. `shares`: a what-if whose cache
    is the first side's. `fine`: it moves event by event."""

    def __init__(self, name: str, source: Source, place: int = 0, *, shares: bool = False) -> None:
        self.name, self.source, self.place, self.shares = name, source, place, shares
        self.records, self.trace, self.fine = source.records, source.trace, False
        plain = source.header.driver == "plain" or not source.header.detailed
        self._kinds = STOPS | {"written"} if plain else STOPS

    @property
    def state(self) -> State:
        """Everything after `place` events."""
        return state_at(self.trace, self.place)

    @property
    def last(self) -> Record | None:
        return self.records[self.place - 1] if self.place else None

    @property
    def happened(self) -> Record | None:
        """What is told to have happened: the last stop or, moving by events, the last event."""
        if self.fine:
            return self.last
        return next(filter(self.is_stop, reversed(self.records[: self.place])), None)

    @property
    def over(self) -> bool:
        """Whether the last event of all has happened."""
        return self.trace.complete and self.place == len(self.records)

    def go(self, wanted: Callable[[Record], bool]) -> bool:
        """Go on to the place after the first event that `wanted` accepts. False if there is none:
        then to the end."""
        while self.one():
            record = self.records[self.place - 1]
            if wanted(record):
                if not self.fine:
                    self.place = self._settled(record.number)
                return True
        return False

    def is_stop(self, record: Record) -> bool:
        return record.kind in self._kinds

    def back(self) -> bool:
        """To the stop before; False at the beginning."""
        before = filter(self.is_stop, reversed(self.records[: self.place]))
        places = (self._settled(record.number) for record in before)
        old, self.place = self.place, next((place for place in places if place < self.place), 0)
        return old > 0

    def is_rejection(self, record: Record) -> bool:
        """Whether a draft step is rejected here: by its verdict, or, where there was none to give
        (it was cut), by the correction."""
        if record.kind != "emit" or record.data["origin"] != "correction":
            return says_aligned(record) is False
        nodes, node = state_at(self.trace, record.number).nodes, record.data["node"]
        children = nodes[node].children if node in nodes else []
        return all(nodes[child].verdict is None for child in children)

    def _settled(self, number: int) -> int:
        """The place after stop `number` and what follows from it at once: when a step has joined
        the answer, the new root is there."""
        place = number + 1
        if self.records[number].kind == "emit":
            while place < len(self.records) and self.records[place].kind in FOLLOWS:
                place += 1
        return place

    def one(self) -> bool:
        """One event further; a run works for it."""
        for _ in range(SLACK):
            if self.place < len(self.records):
                self.place += 1
                return True
            if not self.source.advance():
                return False
        raise StepperError(f"nothing has happened in {SLACK} pieces of work.")


MOVES: dict[str, Callable[[Side], bool]] = {
    "next": lambda side: side.go(side.is_stop),  # to what changes the tree or the answer
    "back": Side.back,  # the opposite
    "event": Side.one,  # by one event, details included
    "step": lambda side: side.go(lambda record: record.kind == "emit"),  # of the answer
    "rejection": lambda side: side.go(side.is_rejection),  # of a draft step
    "verdict": lambda side: side.go(lambda record: record.kind == "judge"),  # where one is due
    "end": lambda side: side.go(lambda record: record.kind == "end"),
}
"""How a side can move, by name; forward to the place after what is looked for, or to the end."""


class Session:
    """One or two sides. `moved` are those that go forward and back together: by default both."""

    def __init__(self, source: Source) -> None:
        self.sides = [Side("A", source)]
        self.moved = list(self.sides)

    @property
    def active(self) -> Side:
        """The side that is asked, forced and forked: the what-if where it moves."""
        return self.moved[-1]

    def go(self, move: str) -> bool:
        """Every moved side moves, in one of the ways in `MOVES`; False if none could."""
        before = [side.place for side in self.moved]
        for side in self.moved:
            side.fine = move == "event"
            MOVES[move](side)
        return before != [side.place for side in self.moved]

    def to(self, number: int) -> None:
        """Every moved side to after its first `number` events."""
        for side in self.moved:
            side.fine = True
            side.place = min(side.place, max(number, 0))
            while side.place < number and side.one():
                pass

    def force(self, aligned: bool, node: str | None = None) -> str:
        """The verdict that is due, on `node` where several are, will be this one. Returns what was
        done, in words.

        Where it is given already, further on or in a recording, it is forced in a what-if that
        begins here. Raises `StepperError` where none is due."""
        side, said = self.active, ""
        due, where = self.due(side), "v goes to where the next one is."
        if node is None and not due:
            raise StepperError(f"no verdict is due here; {where}")
        name = due[0] if node is None else node
        if name not in due:
            there = ", ".join(due) or "none"
            raise StepperError(f"no verdict on {name} is due here; due are: {there}. {where}")
        if name not in side.source.waiting:
            said = self.fork() + " "
            side = self.active
        while name not in side.source.waiting and side.source.advance():
            side.place = len(side.records)
        side.source.force(aligned, name)
        verdict = "aligned" if aligned else "not aligned"
        return f"{said}The verdict on {name} will be: {verdict} ({FORCED})."

    def due(self, side: Side) -> list[str]:
        """The nodes on which a verdict is due at this place, in the order in which they were given
        to the verifier."""
        return [node for kind, node in side.state.work if kind == "judge"]

    def fork(self) -> str:
        """A what-if of the active side, from its place on; one that is there already goes. Returns
        what was done, in words."""
        side = self.active
        cheap = side.source.runs and not decides(side.records[side.place :])
        if cheap:
            side.place = len(side.records)
            made = side.source.fork()
            blocks = "its blocks are the same ones, nothing was computed or copied"
            told = f": {blocks}" if made.header.caches else ""
            said = f"Side B goes on from event {side.place}{told}."
        else:
            made = side.source.again(side.place)
            why = "a recording has no blocks to share"
            if side.source.runs:
                why = "the blocks of that place are no more"
            said = f"Side B was made anew up to event {len(made.records)}: {why}."
        shares = cheap and (side.shares or side is self.sides[0])
        self.drop()
        self.sides.append(Side("B", made, len(made.records), shares=shares))
        self.moved = list(self.sides)
        return said

    def drop(self) -> bool:
        """The what-if goes, and gives its blocks back; False if there is none."""
        if len(self.sides) == 1:
            return False
        self.sides.pop().source.close()
        self.moved = list(self.sides)
        return True

    def move(self, names: str) -> None:
        """Which sides move from now on: "A", "B" or "AB". Raises `StepperError` for one that is not
        there."""
        moved = [side for side in self.sides if side.name in names.upper()]
        if len(moved) != len(names) or not names:
            there = ", ".join(one.name for one in self.sides)
            raise StepperError(f"there is no side {names!r}; there are: {there}.")
        self.moved = moved

    def save(self, path: str) -> str:
        """Write what the active side has made so far as a trace. Returns what was done, in words;
        raises `TraceError`."""
        side = self.active
        records, header = side.records, side.source.header
        judged = (one.data["verdict"] for one in records if one.kind == "judged")
        if side.name == "B" or any(map(is_forced, judged)):
            header = replace(header, variant="a what-if of the stepper")
        write_trace(path, header, records)
        count = f"{len(records)} events of side {side.name}"
        return f"Written: {path} ({count}). lr step, play, draw and trace read it."

    def close(self) -> None:
        for side in self.sides:
            side.source.close()


def is_forced(verdict: dict[str, Any] | None) -> bool:
    """Whether a verdict was forced."""
    return verdict is not None and str(verdict["why"]).startswith(FORCED)
