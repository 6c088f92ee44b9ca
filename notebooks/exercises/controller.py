"""Exercise: how far to look ahead. Grade it with `make grade EX=controller`.

In the synchronous schedule a cycle of g draft steps takes 1 + g * COST units of time (a
target step takes one). What share of the drafts is accepted you do not know, and it may
change: a problem has easy and hard parts. A controller is asked for the depth g after
every step of the answer. Look too far ahead, and drafts are wasted; not far enough, and
time is.

The grader runs the package's own scheduler in worlds with different acceptance rates
and compares the time with that of the best constant depth in each world. `lr.theory`
knows what would be best if the rate were known, for example
`lr.theory.synchronous.sync_best_k`.
"""

from __future__ import annotations

from lr.trace import Stats

COST = 0.2
"""A draft step, in target steps."""
MOST = 6
"""The largest depth that is possible; the run begins with it."""


class Controller:
    """Made anew for every run, so it may remember what it has seen."""

    def depth(self, stats: Stats) -> int:
        """How many steps to look ahead from now on, 0 to MOST.

        `stats` has the counts since the beginning: `steps` emitted, `drafted` draft
        steps, `judged` ones, and `accepted` ones. Its seconds are of no use: a decision
        must depend on counts alone, or no run could ever be repeated. Who looks no step
        ahead learns nothing more.
        """
        raise NotImplementedError(
            "write Controller.depth in notebooks/exercises/controller.py: a whole number, 0 to MOST"
        )
