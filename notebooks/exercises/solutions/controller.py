"""A reference solution of controller.py: believe the last verdicts more than the old
ones, then do what theory says.
"""

from __future__ import annotations

from lr.theory.synchronous import sync_best_k
from lr.trace import Stats

COST = 0.2
MOST = 6
MEMORY = 0.9
"""What a verdict counts for after one more."""


class Controller:
    """An average of the verdicts that forgets, begun at one half."""

    def __init__(self) -> None:
        self.last = Stats()
        self.hits = 0.5
        self.trials = 1.0

    def depth(self, stats: Stats) -> int:
        """The best depth at the rate that is believed now, but at least one step, in
        order to go on learning.
        """
        judged = stats.judged - self.last.judged
        accepted = stats.accepted - self.last.accepted
        self.last = stats
        self.hits = self.hits * MEMORY**judged + accepted
        self.trials = self.trials * MEMORY**judged + judged
        rate = min(0.99, self.hits / self.trials)
        return max(1, sync_best_k(rate, COST, limit=MOST + 1) - 1)
