"""Two parts of a variant in a request: its corrector and its controller.

`lr/spec/variant.py` defines both. This file is loaded when a variant has one of
them."""

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
            self.correction = Correction(state.tokens, rejected, sampling, note=note)
            self._put(job, self.correction)

    def keeps(self, job: StepJob) -> bool:
        """Whether to keep a step. If not, the target has begun to write another."""
        request, correction, node = self.request, self.correction, job.node
        if correction is None:
            return True
        assert node is not None
        number = uniform(job.stream.fold_in("keep").key(correction.attempt))
        drawn = replace(correction, logprobs=tuple(job.logprobs))
        if self.corrector.keep(drawn, job.step, number):
            self.correction = None
            return True
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
        job = replace(
            job, stream=stream, tokens=[], logprobs=[], entropies=[], finish=None
        )
        self._put(job, self.correction)
        request.jobs[node] = job
        request.target.begin([job])
        return False

    def _put(self, job: StepJob, correction: Correction) -> None:
        begun = tuple(self.corrector.begin(correction))
        whole = [pair.draft.tokens[: len(begun)] for pair in correction.rejected]
        if begun and (begun not in whole or len(begun) >= job.limit):
            raise SettingError(
                f"the corrector began with the tokens {begun}, expected the beginning of one of "
                f"the rejected draft steps, with fewer than {job.limit} tokens."
            )
        job.branch.extend(begun)
        job.tokens += begun


@dataclass(eq=False)
class Steering:
    """A controller, and its latest decisions.

    `max_draft_tokens`: per round, in steps that begin from now on. `entropies`: of the
    draft's step that leads to a node, and of the target's step after a node."""

    request: Request
    controller: Controller
    max_draft_tokens: int | None = None
    entropies: dict[tuple[Role, NodeId], float | None] = field(default_factory=dict)
    _stats: Stats = field(default_factory=Stats)
    _read: int = 0  # events of the trace that `_stats` includes
    _widths: dict[int, int | None] = field(
        default_factory=dict
    )  # by index of the new root

    def __post_init__(self) -> None:
        self._most = self.request.scheduler.config.depth

    def width(self, node: NodeId) -> int | None:
        """How many drafts may follow a node (None: all).

        This is the controller's last answer before the node could begin, for any
        timing."""
        return self._widths.get(max(node.stem, node.index - self._most + 1))

    def ask(self, emit: Emit) -> None:
        """Call the controller with the statistics as of this step, even if more is
        known by now."""
        request, controller = self.request, self.controller
        news = request.trace.events[self._read :]
        self._read += len(news)
        last, new = self._stats.seconds, stats_of(news)
        self._stats = replace(self._stats + new, seconds=max(last, new.seconds))
        config, kept = request.scheduler.config, emit.emitted.origin is Origin.ACCEPTED
        place = emit.node.parent(config.width) if kept else emit.node
        draft = self.entropies.get((Role.DRAFT, place.child(0, config.width)))
        target = self.entropies.get((Role.TARGET, place))
        told = StepStats(
            **vars(self._stats), draft_entropy=draft, target_entropy=target
        )
        least = 1 if config.schedule is Schedule.PAPER else 0
        depth = max(least, min(controller.depth(told), self._most))
        self.max_draft_tokens, width = controller.tokens(told), controller.width(told)
        self._widths[emit.emitted.index + 1] = width
        chosen = dict[str, object](
            depth=depth, tokens=self.max_draft_tokens, width=width
        )
        request.trace.tell("controller", request.scheduler.root.id, chosen)
        request.scheduler.set_depth(depth)
