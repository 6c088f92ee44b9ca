"""Drafting stops where it does not pay. But who does not draft gets no verdicts, and
never learns that things are better now.
"""

from __future__ import annotations

from lr.theory.synchronous import sync_best_k
from lr.trace import Stats

COST = 0.2
MOST = 6


class Controller:
    """Right for each moment, and stuck for ever."""

    def __init__(self) -> None:
        self.accepted = self.judged = 0
        self.hits, self.trials = 0.5, 1.0

    def depth(self, stats: Stats) -> int:
        """Wrong: zero is a depth from which there is no way back."""
        judged, accepted = stats.judged - self.judged, stats.accepted - self.accepted
        self.judged, self.accepted = stats.judged, stats.accepted
        faded = 0.9**judged
        self.hits, self.trials = (
            self.hits * faded + accepted,
            self.trials * faded + judged,
        )
        return min(MOST, sync_best_k(min(0.99, self.hits / self.trials), COST) - 1)
