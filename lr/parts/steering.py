"""Two parts of a variant at work in a request: its corrector and its controller.

`spec/variant.py` says what each is asked. This file is loaded when a variant has one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lr.errors import SettingError
from lr.rng import uniform
from lr.spec.protocol import Emit, NodeId, Schedule
from lr.spec.variant import Controller, Correction, Corrector, StepStats
from lr.spec.write import StepJob
from lr.trace import Stats, stats_of
from lr.types import Origin, Role

if TYPE_CHECKING:
    from lr.engine.request import Request


@dataclass(eq=False)
class Corrections:
    """How the target writes the steps that replace rejected ones."""

    request: Request
    corrector: Corrector
    correction: Correction | None = None  # of the step that is being written, if it replaces any

    def begin(self, job: StepJob) -> None:
        """The target is about to write a step: give it the tokens that it begins with."""
        request, node = self.request, job.node
        root, self.correction = request.scheduler.root, None
        if root.id == node and any(child.verdict for child in root.children):
            place = request.places[node]
            rejected, sampling = tuple(place.judged.values()), request.target.config.sampling
            note = request.trace.at(node)
            self.correction = Correction(place.tokens, rejected, sampling, note=note)
            self._put(job, self.correction)

    def keeps(self, job: StepJob) -> bool:
        """Whether a step stays; else the target is already writing another one."""
        request, correction, node = self.request, self.correction, job.node
        if correction is None:
            return True
        assert node is not None
        number = uniform(job.stream.fold_in("keep").key(correction.attempt))
        drawn = replace(correction, logprobs=tuple(job.logprobs))
        if self.corrector.keep(drawn, job.step, number):
            self.correction = None
            return True
        correction.note("corrector", keeps=False, attempt=correction.attempt, number=number)
        self.correction = replace(correction, attempt=correction.attempt + 1)
        prefix = correction.prefix
        request.target.runner.rewind(job.branch, len(prefix) - 1)
        job.branch.append(prefix[-1])
        stream = request.streams.target.fold_in(job.index, "correction", correction.attempt + 1)
        job = replace(job, stream=stream, tokens=[], logprobs=[], entropies=[], finish=None)
        self._put(job, self.correction)
        request.jobs[node] = job
        request.target.begin([job])
        return False

    def _put(self, job: StepJob, correction: Correction) -> None:
        begun = tuple(self.corrector.begin(correction))
        whole = [pair.draft.tokens[: len(begun)] for pair in correction.rejected]
        if begun and (begun not in whole or len(begun) >= job.limit):
            raise SettingError(
                f"the corrector began with the tokens {begun}; expected less than a step of "
                f"{job.limit} tokens, and the beginning of one of the rejected draft steps."
            )
        job.branch.extend(begun)
        job.tokens += begun


@dataclass(eq=False)
class Steering:
    """A controller, and what it has said: `max_draft_tokens` of a round, in the steps that begin
    now. `entropies`: of the step that the draft wrote to a node, of the step that the target wrote
    after one.
    """

    request: Request
    controller: Controller
    max_draft_tokens: int | None = None
    entropies: dict[tuple[Role, NodeId], float | None] = field(default_factory=dict)
    _stats: Stats = field(default_factory=Stats)
    _read: int = 0  # events of the trace that are in it
    _widths: dict[int, int | None] = field(default_factory=dict)  # by the index of the new root

    def __post_init__(self) -> None:
        self._most = self.request.scheduler.config.depth

    def width(self, node: NodeId) -> int | None:
        """How many drafts may follow a node: the last answer that came before it could begin,
        whoever is faster. None: all.
        """
        return self._widths.get(max(node.stem, node.index - self._most + 1))

    def ask(self, emit: Emit) -> None:
        """The controller is told what is known as of this step, whatever else is decided by now."""
        request, controller = self.request, self.controller
        news = request.trace.events[self._read :]
        self._read += len(news)
        last, new = self._stats.seconds, stats_of(news)
        self._stats = replace(self._stats + new, seconds=max(last, new.seconds))
        config, kept = request.scheduler.config, emit.emitted.origin is Origin.ACCEPTED
        place = emit.node.parent(config.width) if kept else emit.node
        draft = self.entropies.get((Role.DRAFT, place.child(0, config.width)))
        target = self.entropies.get((Role.TARGET, place))
        told = StepStats(**vars(self._stats), draft_entropy=draft, target_entropy=target)
        least = 1 if config.schedule is Schedule.PAPER else 0
        depth = max(least, min(controller.depth(told), self._most))
        self.max_draft_tokens, width = controller.tokens(told), controller.width(told)
        self._widths[emit.emitted.index + 1] = width
        chosen = dict[str, object](depth=depth, tokens=self.max_draft_tokens, width=width)
        request.trace.tell("controller", request.scheduler.root.id, chosen)
        request.scheduler.set_depth(depth)
