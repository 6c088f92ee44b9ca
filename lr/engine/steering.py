"""Two parts of a variant during an answer: its corrector and its controller.
`lr/spec/variant.py` defines both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lr.rng import Stream, uniform
from lr.spec.checks import VariantError, check_bool, check_number
from lr.spec.protocol import Schedule
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.variant import (
    MOST_ATTEMPTS,
    Controller,
    Correction,
    Corrector,
    Progress,
)
from lr.trace import Stats, Trace, stats_of
from lr.types import Step


@dataclass(eq=False)
class CorrectedStep:
    """A step that the target writes in place of rejected draft steps, under a
    corrector. `limit`: its longest length. `stream`: the target's randomness for this
    step."""

    corrector: Corrector
    correction: Correction
    limit: int
    stream: Stream

    def draws(self) -> Stream:
        """The randomness of the present attempt."""
        attempt = self.correction.attempt
        return self.stream.fold_in("correction", attempt) if attempt else self.stream

    def keeps(self, step: Step, logprobs: Sequence[float]) -> bool:
        """Whether to keep the step that was written; if not, another attempt
        follows."""
        correction = self.correction
        number = uniform(self.draws().fold_in("keep").key(correction.attempt))
        drawn = replace(correction, logprobs=tuple(logprobs))
        keeps = self.corrector.keep(drawn, step, number)
        check_bool("corrector", self.corrector.keep, keeps)
        if keeps:
            return True
        if correction.attempt >= MOST_ATTEMPTS:
            raise VariantError(
                f"the variant's corrector {type(self.corrector).__qualname__} kept none of "
                f"{MOST_ATTEMPTS} steps of the target; expected `keep` to be True in the end."
            )
        self.correction = replace(correction, attempt=correction.attempt + 1)
        return False


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
        self.deepest = self.scheduler.config.depth

    def decide(self) -> None:
        """Ask the controller after an emitted step, with the counts up to that step."""
        controller = self.controller
        news = self.trace.events[self.num_events :]
        self.num_events += len(news)
        self.stats += stats_of(news)
        progress = Progress.of(self.stats)
        depth = controller.depth(progress)
        check_number("controller", controller.depth, depth, 0)
        tokens = controller.tokens(progress)
        if tokens is not None:
            check_number("controller", controller.tokens, tokens, 0)
        shallowest = 1 if self.scheduler.config.schedule is Schedule.PAPER else 0
        depth = max(shallowest, min(depth, self.deepest))
        self.max_draft_tokens = tokens
        self.scheduler.set_depth(depth)
