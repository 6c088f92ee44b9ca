"""Looks further ahead as long as the run is fast. On another machine, or a busy one, it
makes another choice.
"""

from __future__ import annotations

from lr.trace import Stats

COST = 0.2
MOST = 6


class Controller:
    """Fed with a clock."""

    def depth(self, stats: Stats) -> int:
        """Wrong: seconds depend on the weather."""
        return MOST if stats.seconds * 4 < stats.steps else 2
