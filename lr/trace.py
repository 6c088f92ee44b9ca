"""What happened in a run, event by event, and the statistics that follow from it.

Components report events to a `Trace`; none of them counts anything itself. Every number that the
demo, the reports and the tests show (acceptance, forward passes, tokens per second) is a function
of the events. Their words are in `tracing/events.py` and `tracing/details.py`, the statistics in
`tracing/stats.py`; this is where everybody else finds them. A trace as a file: `lab/trace/file.py`
and `docs/trace.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lr.tracing.details import (
    BranchClosed,
    BranchCut,
    BranchesGrew,
    BranchForked,
    BranchHolds,
    BranchOpened,
    BranchReplaced,
    BranchRestored,
    Draw,
    Ended,
    TokenWritten,
)
from lr.tracing.events import (
    Cancelled,
    DraftArrived,
    DraftBegan,
    DraftMissing,
    ForwardPass,
    JudgeBegan,
    Released,
    ScoreBegan,
    StepEmitted,
    StepJudged,
    StepWritten,
    Survived,
    TargetArrived,
    TargetBegan,
    TokenRound,
    VerdictArrived,
    VerdictMissing,
    VerifierCall,
    WorkSpan,
)
from lr.tracing.stats import STATISTICS, Stats, TokenRounds, stats_of

__all__ = [
    "STATISTICS",
    "Event",
    "ForwardPass",
    "Stats",
    "StepEmitted",
    "StepJudged",
    "StepWritten",
    "TokenRound",
    "TokenRounds",
    "Trace",
    "VerifierCall",
    "stats_of",
    "summarise",
]

Statistic = ForwardPass | StepWritten | TokenRound | VerifierCall | StepJudged | StepEmitted
Began = DraftBegan | TargetBegan | JudgeBegan | ScoreBegan
Told = DraftArrived | DraftMissing | TargetArrived | VerdictArrived | VerdictMissing
Cached = (
    BranchOpened
    | BranchForked
    | BranchesGrew
    | BranchCut
    | BranchClosed
    | BranchRestored
    | BranchHolds
    | BranchReplaced
)
Event = (
    Statistic
    | Began
    | Told
    | Cancelled
    | Survived
    | Released
    | WorkSpan
    | TokenWritten
    | Draw
    | Cached
    | Ended
)


@dataclass
class Trace:
    """The events of one run in order, each with its time in seconds since the trace was made.

    `detailed`: whoever reports details (`tracing/details.py`, and the scheduler's events) asks this
    first, and else makes none.
    """

    clock: Callable[[], float] = time.perf_counter
    events: list[tuple[float, Event]] = field(default_factory=list)
    start: float = field(init=False)
    detailed: bool = False

    def __post_init__(self) -> None:
        self.start = self.clock()

    def record(self, event: Event) -> None:
        self.events.append((self.clock() - self.start, event))


def summarise(trace: Trace) -> Stats:
    """The statistics of one run. `seconds` is the time from the start of the trace to its last
    event (details do not count).
    """
    return stats_of(trace.events)
