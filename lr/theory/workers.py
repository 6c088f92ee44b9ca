"""Somebody who works on jobs on the simulated clock: a model with a batch, or a judge with so many
copies.

A job has one or more rows, and at most `slots` jobs are worked on at a time; the others wait in the
order in which they came. All n rows that are worked on share the machine: each progresses at the
rate 1 / (1 + overhead (n - 1)), so a batch of n equal rows takes 1 + overhead (n - 1) times as long
as one alone. Overhead 0 is a perfectly parallel machine, overhead 1 one row after the other.

Worked example, overhead 0.5: row x of length 1 begins at 0, row y of length 1 at 0.4. Alone, x
progresses 0.4; from then on both at the rate 1 / 1.5, so x ends at 0.4 + 0.6 * 1.5 = 1.3. By then y
has progressed 0.6; alone, it ends at 1.3 + 0.4 = 1.7.

Since all rows progress alike, one number says how far everybody has come: `_progress`, which grows
with the time at the current rate. A row of length d that begins at progress g ends at progress g +
d, whatever comes and goes in between.

Two workers may share one machine (`share_machine`), as draft and target do on one thread, which
takes turns: while both have rows, each is slower by the time that the other takes, and by what
changing costs. Alone, each has the machine to itself. A job may begin with a stall (`submit`), in
which nobody on the machine makes progress. Read next: `simulate.py`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lr.spec.protocol import Work
from lr.types import require


@dataclass(frozen=True, slots=True)
class Span:
    """A row from its start to its end, completed or cancelled."""

    work: Work
    start: float
    end: float
    completed: bool


@dataclass(slots=True, eq=False)
class _Job:
    """Rows that belong together. `left`: how many of them are not over; `begun`: it has a slot."""

    rows: list[_Row]
    left: int
    stall: float
    begun: bool = False


@dataclass(slots=True, eq=False)
class _Row:
    job: _Job
    work: Work
    length: float
    start: float = 0.0
    goal: float = 0.0
    """The progress at which it is completed."""
    over: bool = False


class Workers:
    """Jobs in work and in the queue. `peak`: most rows at a time; `busy`: time spent on rows that
    are over; `begun`, `completed`: rows.
    """

    def __init__(self, slots: int | None = None, overhead: float = 0.0) -> None:
        require(
            slots is None or slots >= 1, "slots", slots, "a whole number >= 1, or None (no limit)"
        )
        require(0 <= overhead < math.inf, "overhead", overhead, "a finite number >= 0")
        self.peak = self.begun = self.completed = 0
        self.busy = 0.0
        self._slots, self._overhead = slots, overhead
        self._queue: deque[_Job] = deque()
        self._rows: dict[Work, _Row] = {}  # in work or waiting
        self._live = 0  # rows in work
        self._goals: list[
            tuple[float, int, _Row]
        ] = []  # a heap; rows that were cancelled stay until they come up
        self._taken = 0  # slots
        self._time = self._progress = 0.0
        self._rival: Workers | None = None
        self._waits = (
            0.0  # for a unit of our own work, units of the rival's (of a single row of it)
        )
        self._change = 0.0  # more time per unit of our own work while the rival is at work
        self._free_at = 0.0  # until then all is stalled

    @staticmethod
    def share_machine(one: Workers, other: Workers, turns: float, change: float = 0.0) -> None:
        """Put both on one machine: while both have rows, `one` gets `turns` units of time for each
        unit of `other`, and `change` is lost.

        Units are those of a single row. Example, overhead 0, turns 0.5: while both work, `one`
        progresses at 1/3 and `other` at 2/3; with change 0.5, at 1/4 and 1/2.
        """
        require(0 < turns < math.inf, "turns", turns, "a finite number > 0")
        require(0 <= change < math.inf, "change", change, "a finite number >= 0")
        other._change = change
        one._rival, one._waits = other, 1 / turns
        other._rival, other._waits = one, turns

    def submit(self, now: float, rows: Sequence[tuple[Work, float]], stall: float = 0.0) -> None:
        """A job comes in: its rows, each with its length. When it begins, the machine stands still
        for `stall`.
        """
        job = _Job([], len(rows), stall)
        for work, length in rows:
            row = self._rows[work] = _Row(job, work, length)
            job.rows.append(row)
        self._queue.append(job)
        self._fill(now)

    def cancel(self, now: float, work: Work) -> Span | None:
        """Take a row away. Returns its span; None if it was still waiting."""
        return self._end(now, self._rows[work], completed=False)

    def next_time(self) -> float:
        """When the next row is completed if nothing comes in between; infinity if none is in
        work.
        """
        while self._goals:
            goal, _, row = self._goals[0]
            if not row.over:
                if self._undisturbed:
                    return goal  # progress is time itself, free of rounding
                return (
                    max(self._time, self._free_at)
                    + max(0.0, goal - self._progress) * self._slowness()
                )
            heapq.heappop(self._goals)
        return math.inf

    def complete(self, now: float) -> Span:
        """The row that is completed next, `now` being its time."""
        while self._goals[0][2].over:
            heapq.heappop(self._goals)
        span = self._end(now, self._goals[0][2], completed=True)
        assert span is not None
        return span

    def stop(self, now: float) -> list[Span]:
        """End everything. Returns the spans of the rows that were in work."""
        spans = [self.cancel(now, work) for work in list(self._rows)]
        return [span for span in spans if span is not None]

    @property
    def _undisturbed(self) -> bool:
        return not self._overhead and self._rival is None and not self._free_at

    def _slowness(self) -> float:
        """Time per unit of progress: our own batch, and the turns of a rival that is at work."""
        rival = self._rival
        waiting = self._waits * rival._batch() if rival is not None and rival._live else 0.0
        return self._batch() + waiting

    def _batch(self) -> float:
        change = self._change if self._rival is not None and self._rival._live else 0.0
        return 1 + self._overhead * (self._live - 1) + change

    def _move(self, now: float) -> None:
        """Bring the progress up to `now`, and the rival's; called before the number of rows
        changes.
        """
        self._advance(now)
        if self._rival is not None:
            self._rival._advance(now)

    def _advance(self, now: float) -> None:
        if self._undisturbed:
            self._progress = now
        elif self._live:
            self._progress += max(0.0, now - max(self._time, self._free_at)) / self._slowness()
        self._time = now

    def _end(self, now: float, row: _Row, *, completed: bool) -> Span | None:
        self._move(now)
        del self._rows[row.work]
        row.over, job, span = True, row.job, None
        job.left -= 1
        if job.begun:
            self._live -= 1
            self._taken -= not job.left
            self.busy += now - row.start
            self.completed += completed
            span = Span(row.work, row.start, now, completed)
        if self._queue:
            self._fill(now)
        return span

    def _fill(self, now: float) -> None:
        """Give free slots to waiting jobs."""
        self._move(now)
        while self._queue and (self._slots is None or self._taken < self._slots):
            job = self._queue.popleft()
            job.begun = job.left > 0
            self._taken += job.begun
            if job.begun and job.stall:
                self._stall(max(now, self._free_at) + job.stall)
            for row in job.rows:
                if not row.over:
                    row.start, row.goal = now, self._progress + row.length
                    self.begun += 1
                    heapq.heappush(self._goals, (row.goal, self.begun, row))
            self._live += job.left
        self.peak = max(self.peak, self._live)

    def _stall(self, until: float) -> None:
        self._free_at = until
        if self._rival is not None:
            self._rival._free_at = until
