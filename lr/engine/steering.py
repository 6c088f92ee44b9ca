"""A variant's controller during an answer. `lr/spec/variant.py` defines it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lr.spec.checks import check_number
from lr.spec.protocol import Schedule
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.variant import Controller, Progress
from lr.trace import Stats, Trace, stats_of


@dataclass(eq=False)
class Steering:
    """A controller, and its latest decisions. `max_draft_tokens`: per round, in target
    steps that begin from now on."""

    controller: Controller
    scheduler: LookaheadScheduler
    trace: Trace
    max_draft_tokens: int | None = None
    stats: Stats = field(default_factory=Stats)
    num_events: int = 0  # of the trace, that `stats` includes

    def __post_init__(self) -> None:
        self.deepest = self.scheduler.config.depth  # the run's own depth

    def decide(self) -> None:
        """Ask the controller after an emitted step, with the counts up to that step."""
        controller = self.controller
        news = self.trace.events[self.num_events :]  # since the last decision
        self.num_events += len(news)
        self.stats += stats_of(news)
        progress = Progress.of(self.stats)  # counts, no times
        depth = controller.depth(progress)
        check_number("controller", controller.depth, depth, 0)
        tokens = controller.tokens(progress)
        if tokens is not None:
            check_number("controller", controller.tokens, tokens, 0)
        # `paper` needs a pair in flight
        shallowest = 1 if self.scheduler.config.schedule is Schedule.PAPER else 0
        depth = max(shallowest, min(depth, self.deepest))
        self.max_draft_tokens = tokens
        self.scheduler.set_depth(depth)
