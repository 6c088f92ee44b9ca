"""Where the stepper's events come from: a recording, or a run that makes the next ones when they
are asked for.

    source = Recorded(read_trace("answer.jsonl"))
    source.records          # all there are so far
    source.advance()        # make more; False: there are none left

A run is driven by small pieces of work (a forward, a verdict), each of which makes a few events.
Between two pieces a verdict can be forced and the run forked. Knows no model. Read next:
`script.py` and `live.py`, the two kinds of run; `session.py`, which walks through them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from lr.errors import LRError
from lr.lab.trace.compare import compare_in_order
from lr.lab.trace.file import Header, Record, TraceFile
from lr.lab.trace.state import CACHE_EVENTS

FORCED = "forced by hand"
"""How the reason of a verdict begins that was forced."""


class StepperError(LRError):
    """What was asked of the stepper cannot be done here."""


class Source(Protocol):
    """Events of one answer. `records` only grows; `runs`: whether this makes events itself, else it
    is a recording.
    """

    header: Header
    records: list[Record]
    runs: bool

    @property
    def waiting(self) -> list[str]:
        """The nodes whose verdicts come next, in order, and can be forced."""
        ...

    def advance(self) -> bool:
        """One piece of work; False where there is none left."""
        ...

    def force(self, aligned: bool, node: str) -> None:
        """The verdict on `node` will be this one. Raises `StepperError` if it is there already."""
        ...

    def fork(self) -> Source:
        """A second run that goes on from here by itself. Raises `StepperError`."""
        ...

    def again(self, number: int) -> Source:
        """A run of its own, made anew and driven to about event `number`, but not to a decision
        beyond it (see `driven`).
        """
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Recorded:
    """A recording. `remake`: a fresh run of the same answer, at its beginning; None where nothing
    can bring it back.
    """

    runs = False

    def __init__(self, trace: TraceFile, remake: Callable[[], Source] | None = None) -> None:
        self.header, self.records, self.remake = trace.header, trace.records, remake

    @property
    def waiting(self) -> list[str]:
        return []

    def advance(self) -> bool:
        return False

    def force(self, aligned: bool, node: str) -> None:
        raise StepperError(
            "a recording is not rewritten; a verdict is forced in a what-if beside it."
        )

    def fork(self) -> Source:
        return self.again(len(self.records))

    def again(self, number: int) -> Source:
        """See `Source`. Raises `StepperError` where the run that is made anew is not the run of the
        recording.
        """
        if self.remake is None:
            raise StepperError(
                "this recording does not say enough to be run again, so there is no what-if of it."
            )
        made = driven(self.remake, number)
        found = compare_in_order(_without_caches(self.records), _without_caches(made.records))
        if found is not None:
            made.close()
            raise StepperError(
                f"run again, this answer is another one, so there is no what-if of it. {found}. Was it recorded by another version, in "
                "another precision, or by a driver other than lockstep?"
            )
        return made

    def close(self) -> None:
        """Nothing is held."""


def driven(remake: Callable[[], Source], number: int) -> Source:
    """A run that has gone to event `number`, or to the end of the piece of work around it if
    nothing is decided there beyond it.

    What a piece makes is known when it is over. Example: pieces of 3, 5 and 4 events, number 10:
    the third makes it 12; if event 11 or 12 is a verdict, the run is begun again and driven for two
    pieces.
    """
    made, pieces = remake(), 0
    while len(made.records) < number and made.advance():
        pieces += 1
    if pieces and decides(made.records[number:]):
        made.close()
        made = remake()
        for _ in range(pieces - 1):
            made.advance()
    return made


def decides(records: Sequence[Record]) -> bool:
    """Whether there is a verdict or a step of the answer among these events."""
    return any(record.kind in ("judged", "emit") for record in records)


def _without_caches(records: Sequence[Record]) -> list[Record]:
    """What a run that shares its cache with a what-if has in common with one that does not: all but
    the numbers of blocks.
    """
    left_out = CACHE_EVENTS | {"end"}
    return [record for record in records if record.kind not in left_out]
