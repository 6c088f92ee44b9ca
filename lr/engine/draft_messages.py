"""The words between the overlapped driver and its draft worker: the calls of a `DraftSide` one way,
what became of them the other way.

    to the worker    Prepare  Open  Begin  Stop  Follow  Close  Report  Finish
    back             Ready    News  Reported  Failed

A worker serves several runs (answers in the making) at a time, each with its own writer and cache,
and a run any number of problems; so every message says which `run` and which `chain` of it. Small
frozen data that can be pickled: no tensor, no branch, no clock but one number. Read next:
`draft_worker.py`, which acts on them; `remote.py`, which sends them.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.engine.drafts import DraftJob
from lr.engine.plan import WriterPlan
from lr.spec.protocol import NodeId
from lr.trace import Event
from lr.types import Step


@dataclass(frozen=True, slots=True)
class Prepare:
    """A run begins: make its writer and cache."""

    run: int
    plan: WriterPlan


@dataclass(frozen=True, slots=True)
class Open:
    """`DraftSide.open`."""

    run: int
    chain: int
    node: NodeId
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """`DraftSide.draft`."""

    run: int
    chain: int
    job: DraftJob


@dataclass(frozen=True, slots=True)
class Stop:
    """`DraftSide.cancel`."""

    run: int
    chain: int
    node: NodeId


@dataclass(frozen=True, slots=True)
class Follow:
    """`DraftSide.follow`."""

    run: int
    chain: int
    old: NodeId
    new: NodeId
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """`DraftSide.close`."""

    run: int
    chain: int
    node: NodeId


@dataclass(frozen=True, slots=True)
class Report:
    """Say how much of the run's cache is in use. Answered by `Reported`, after everything sent
    before it is done.
    """

    run: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over: give its writer and cache up."""

    run: int


Order = Prepare | Open | Begin | Stop | Follow | Close | Report | Finish


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded. `pid`: the worker's process."""

    pid: int


@dataclass(frozen=True, slots=True)
class Stamped:
    """Something for the trace: of one problem, or (`chain` None, forwards) of the whole run; `when`
    by `time.perf_counter`.
    """

    chain: int | None
    when: float
    event: Event


@dataclass(frozen=True, slots=True)
class News:
    """Finished steps, each with its problem and the node it leads to, and what happened since the
    last news. Comes without steps, too, now and then while steps are being written: a sign of
    life."""

    run: int
    steps: tuple[tuple[int, NodeId, Step], ...]
    events: tuple[Stamped, ...]


@dataclass(frozen=True, slots=True)
class Reported:
    """Blocks in use in the run's cache, and steps that are being written."""

    run: int
    blocks: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A run (None: the worker as a whole, which ends) failed and was given up."""

    run: int | None
    error: Exception


Reply = Ready | News | Reported | Failed
