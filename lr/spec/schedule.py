"""When may a draft be written, when a target step? The three schedules as one rule each, and the
settings of the scheduler.

`level` counts from the node at which a cycle began (sync) or from the root as it is now (paper,
depth); the root has level 0.

    schedule            a draft may follow a node of level    the target may write at a node of level    barrier
    sync   (depth g)    0 .. g-1                              0 .. g, when all drafts are there          yes
    paper  (depth k)    0 .. k-1                              0 .. k-1                                   no
    depth  (depth D)    0 .. D-1                              0 .. D                                     no

`sync` is Algorithm 1 of the paper (arXiv 2506.19830): g drafts, then g + 1 target steps, of which
the last is the bonus. `paper` is the asynchronous process of its Appendix B, k pairs of draft and
target step in flight. `depth` is what the official code does: at most D drafts that are not
verified. Without a barrier the window slides with the root, so level 0 moves up and new work begins
behind.

This module does not know nodes or events. Read next: `scheduler.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lr.spec.limits import Limits
from lr.spec.seams import Router
from lr.types import require


class Schedule(Enum):
    """When work may begin; see the table above."""

    SYNC = "sync"
    PAPER = "paper"
    DEPTH = "depth"


class LateDrafts(Enum):
    """What becomes of a draft that is not there when the root's target step is."""

    WAIT = "wait"
    """It is waited for and judged: the output does not depend on time."""
    REJECT = "reject"
    """It is rejected, as the official code does. The output then depends on what happens to be
    faster.
    """


@dataclass(frozen=True)
class SchedulerConfig:
    """The settings of a `LookaheadScheduler`.

    `depth`: g, k or D of the table above (0, not with `paper`: no drafts, plain decoding). `width`:
    alternatives per position, W. `max_target_rows`: never more target steps (and scores) than that
    in flight, None for no limit; nodes nearer to the root go first. `needs_target_step`: False for
    a verifier that judges a draft step by itself; the target then writes a step only where no draft
    step was accepted. `router` decides who writes a step, where it is not always the draft first.
    """

    limits: Limits
    schedule: Schedule = Schedule.DEPTH
    depth: int = 4
    width: int = 1
    max_target_rows: int | None = None
    late_drafts: LateDrafts = LateDrafts.WAIT
    needs_target_step: bool = True
    router: Router | None = None

    def __post_init__(self) -> None:
        least = 1 if self.schedule is Schedule.PAPER else 0
        require(
            _whole(self.depth) and self.depth >= least,
            "depth",
            self.depth,
            f"a whole number >= {least}",
        )
        require(_whole(self.width) and self.width >= 1, "width", self.width, "a whole number >= 1")
        rows = self.max_target_rows
        require(
            rows is None or (_whole(rows) and rows >= 1),
            "max_target_rows",
            rows,
            "a whole number >= 1, or None (no limit)",
        )
        late = self.late_drafts
        require(
            late is LateDrafts.WAIT or (self.schedule is Schedule.DEPTH and self.needs_target_step),
            "late_drafts",
            late.value,
            'wait: "reject" exists only for schedule "depth" with a verifier that needs the target\'s step',
        )

    @property
    def barrier(self) -> bool:
        """Whether each stage (drafts, target steps, verdicts) waits for all of the one before."""
        return self.schedule is Schedule.SYNC

    def drafts_at(self, level: int) -> bool:
        """Whether drafts may follow a node of this level."""
        return level < self.depth

    def targets_at(self, level: int) -> bool:
        """Whether the target may write at a node of this level. Only `paper` gates both alike: a
        pair is in flight or it is not.
        """
        return level < self.depth or self.schedule is not Schedule.PAPER


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
