"""Two parts of a variant in a request: its corrector and its controller.

`lr/spec/variant.py` defines both. This file is loaded when a variant has one of
them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lr.rng import uniform
from lr.spec.checks import VariantError, check_begun, check_bool, check_number
from lr.spec.protocol import Emit, Schedule
from lr.spec.variant import (
    MOST_ATTEMPTS,
    Controller,
    Correction,
    Corrector,
    Progress,
)
from lr.spec.write import StepJob
from lr.trace import Stats, stats_of

if TYPE_CHECKING:
    from lr.engine.request import Request


@dataclass(eq=False)
class Corrections:
    """How the target writes the steps that replace rejected draft steps."""

    request: Request
    corrector: Corrector
    correction: Correction | None = (
        None  # for the step being written, if it replaces any
    )

    def begin(self, job: StepJob) -> None:
        """Give the target the first tokens of the step that it is about to write."""
        request, node = self.request, job.node
        root, self.correction = request.scheduler.root, None
        if root.id == node and any(child.verdict for child in root.children):
            state = request.nodes[node]
            rejected, sampling = (
                tuple(state.judged.values()),
                request.target.config.sampling,
            )
            note = request.trace.at(node)
            self.correction = Correction(
                state.tokens, rejected, sampling, prompt=len(request.prompt), note=note
            )
            self._put(job, self.correction)

    def keeps(self, job: StepJob) -> bool:
        """Whether to keep a step. If not, the target has begun to write another."""
        request, correction, node = self.request, self.correction, job.node
        if correction is None:
            return True
        assert node is not None
        number = uniform(job.stream.fold_in("keep").key(correction.attempt))
        drawn = replace(correction, logprobs=tuple(job.logprobs))
        keeps = self.corrector.keep(drawn, job.step, number)
        check_bool("corrector", self.corrector.keep, keeps)
        if keeps:
            self.correction = None
            return True
        if correction.attempt >= MOST_ATTEMPTS:
            raise VariantError(
                f"the variant's corrector {type(self.corrector).__qualname__} kept none of "
                f"{MOST_ATTEMPTS} steps of the target; expected `keep` to be True in the end."
            )
        correction.note(
            "corrector", keeps=False, attempt=correction.attempt, number=number
        )
        self.correction = replace(correction, attempt=correction.attempt + 1)
        prefix = correction.prefix
        request.target.runner.rewind(job.branch, len(prefix) - 1)
        job.branch.append(prefix[-1])
        stream = request.streams.target.fold_in(
            job.index, "correction", correction.attempt + 1
        )
        job = replace(job, stream=stream, tokens=[], logprobs=[], finish=None)
        self._put(job, self.correction)
        request.jobs[node] = job
        request.target.begin([job])
        return False

    def _put(self, job: StepJob, correction: Correction) -> None:
        begun = self.corrector.begin(correction)
        check_begun(self.corrector, begun, correction.rejected, job.limit)
        job.branch.extend(begun)
        job.tokens += begun


@dataclass(eq=False)
class Steering:
    """A controller, and its latest decisions.

    `max_draft_tokens`: per round, in steps that begin from now on."""

    request: Request
    controller: Controller
    max_draft_tokens: int | None = None
    _stats: Stats = field(default_factory=Stats)
    _read: int = 0  # events of the trace that `_stats` includes

    def __post_init__(self) -> None:
        self._most = self.request.scheduler.config.depth

    def ask(self, emit: Emit) -> None:
        """Call the controller with the counts as of this step, even if more is known by
        now."""
        request, controller = self.request, self.controller
        news = request.trace.events[self._read :]
        self._read += len(news)
        self._stats += stats_of(news)
        progress = Progress.of(self._stats, request.trace.at(None))
        depth = controller.depth(progress)
        check_number("controller", controller.depth, depth, 0)
        least = 1 if request.scheduler.config.schedule is Schedule.PAPER else 0
        depth = max(least, min(depth, self._most))
        tokens = controller.tokens(progress)
        if tokens is not None:
            check_number("controller", controller.tokens, tokens, 0)
        self.max_draft_tokens = tokens
        chosen: dict[str, object] = {"depth": depth, "tokens": tokens}
        request.trace.tell("controller", request.scheduler.root.id, chosen)
        request.scheduler.set_depth(depth)
