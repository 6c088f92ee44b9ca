"""One problem on its way through the scheduler: which branches belong to which node, and what the scheduler's commands do to them.

The survivor law, in code. Every node has a branch on the target's side that ends in the node's prefix and, once the target has written
its step there, in that step; and one on the draft's side that ends in the prefix. Accepting a draft step or falling back to the target's
makes one of them the new root's; the others are closed. No outcome runs a model or copies a block.

Example: root R, draft step a leads to node A, b from there to B. When the target wrote s behind R and a is rejected: R's target branch
holds "... s", all but its last token cached; it becomes the new root's. R's draft branch gets s as pending tokens. A and B are closed.

This module moves branches and keeps the books; when anything runs is up to the driver (`lockstep.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.commands import (
    Cancel,
    Command,
    Draft,
    Drafted,
    Emit,
    Event,
    Judge,
    Kind,
    NodeId,
    Release,
    Score,
    Survive,
    Target,
    Targeted,
    Work,
)
from lr.spec.drafters.mirror import follow
from lr.spec.drafters.step import StepDrafter
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.verifiers.base import Pair
from lr.spec.write import StepJob, StepWriter
from lr.trace import StepEmitted, StepJudged, Trace
from lr.types import Coupling, EmittedStep


@dataclass(frozen=True)
class Streams:
    """Where the two models of one problem draw from. `coupling` shared: the first alternative of a draft uses the target's noise."""

    target: Stream
    draft: Stream
    coupling: Coupling = Coupling.INDEPENDENT

    def of_target(self, index: int) -> Stream:
        return self.target.child(index)

    def of_draft(self, index: int, sibling: int) -> Stream:
        """Alternatives never share noise with each other."""
        if sibling == 0:
            return self.target.child(index) if self.coupling is Coupling.SHARED else self.draft.child(index)
        return self.draft.child(index, sibling)


@dataclass
class _Place:
    """What a node has: its branches, and the number of tokens of its prefix. `target` is None until the target has to look there."""

    draft: Branch
    length: int
    target: Branch | None = None
    parent: NodeId | None = None


@dataclass
class Chain:
    """One problem. `emitted` are its steps so far; `asked` are pairs that wait for the verifier, by the node they are about.

    `step_drafter`, if the target speculates with one, is offered the draft's version of every step that the target writes.
    """

    prompt: Sequence[int]
    scheduler: LookaheadScheduler
    target: StepWriter
    draft: StepWriter
    streams: Streams
    trace: Trace
    step_drafter: StepDrafter | None = None
    emitted: list[EmittedStep] = field(default_factory=list)
    asked: dict[Work, Pair] = field(default_factory=dict)
    jobs: dict[Work, StepJob] = field(default_factory=dict)
    _places: dict[NodeId, _Place] = field(default_factory=dict)

    def start(self) -> None:
        """Open the prompt on both sides and carry out the first commands."""
        root = self.scheduler.root.id
        opened = _Place(self.draft.runner.open(self.prompt), len(self.prompt))
        self._places[root] = opened
        opened.target = self.target.runner.open(self.prompt)
        self._carry_out(self.scheduler.start())

    def finished(self, job: StepJob) -> None:
        """A step of ours is written: tell the scheduler, and do what it says."""
        work = next(work for work, ours in self.jobs.items() if ours is job)
        del self.jobs[work]
        event: Event = (Drafted if work.kind is Kind.DRAFT else Targeted)(work.node, job.step)
        if work.kind is Kind.DRAFT:
            self._places[work.node].length = len(job.branch)
            self._offer(work.node)
        self.tell(event)

    def tell(self, event: Event) -> None:
        """Hand an event to the scheduler and carry out what follows."""
        self._carry_out(self.scheduler.handle(event))

    def close(self) -> None:
        """Give everything back, wherever the chain stands."""
        for job in self.jobs.values():
            self.target.cancel(job)
            self.draft.cancel(job)
        self.jobs.clear()
        self.asked.clear()
        for node in list(self._places):
            self._release(node)

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Draft():
                    self._begin_drafts(command)
                case Target(node, limit):
                    self._begin(Work(Kind.TARGET, node), self._target_branch(node), node.index, limit)
                    for other in list(self._places):
                        if self._places[other].parent == node and Work(Kind.DRAFT, other) not in self.jobs:
                            self._offer(other)
                case Judge(node, parent, draft, target):
                    self.asked[Work(Kind.JUDGE, node)] = Pair(self._prefix(parent), draft, target)
                case Score(node, parent, draft):
                    self.asked[Work(Kind.SCORE, node)] = Pair(self._prefix(parent), draft)
                case Cancel(work):
                    self._cancel(work)
                case Emit(emitted, verdicts):
                    for verdict in verdicts:
                        self.trace.record(StepJudged(emitted.index, verdict))
                    self.trace.record(StepEmitted(emitted))
                    self.emitted.append(emitted)
                case Survive(node, root):
                    self._survive(node, root)
                case Release(node):
                    self._release(node)

    def _begin_drafts(self, command: Draft) -> None:
        origin = self._places[command.node]
        for sibling, child in enumerate(command.children):
            branch = self.draft.runner.fork(origin.draft)
            self._places[child] = _Place(branch, origin.length, parent=command.node)
            self._begin(Work(Kind.DRAFT, child), branch, command.node.index, command.limit, sibling)

    def _begin(self, work: Work, branch: Branch, index: int, limit: int, sibling: int = 0) -> None:
        drafting = work.kind is Kind.DRAFT
        stream = self.streams.of_draft(index, sibling) if drafting else self.streams.of_target(index)
        job = self.jobs[work] = StepJob(branch, index, limit, stream, self.trace)
        (self.draft if drafting else self.target).begin([job])

    def _offer(self, node: NodeId) -> None:
        """Let the target, where it writes the step that leads to `node` itself, see how the draft wrote it (first alternatives only)."""
        place = self._places[node]
        if self.step_drafter is None or place.parent is None or node.number % self.scheduler.config.width:
            return
        rival = self._places.get(place.parent)
        if rival is not None and rival.target is not None:
            self.step_drafter.offer(rival.target, rival.length, place.draft.tokens[rival.length :])

    def _cancel(self, work: Work) -> None:
        self.asked.pop(work, None)
        job = self.jobs.pop(work, None)
        if job is not None:
            (self.draft if work.kind is Kind.DRAFT else self.target).cancel(job)

    def _target_branch(self, node: NodeId) -> Branch:
        """The target's branch of a node: its parent's, forked, cut back to the parent's prefix, with the draft step pending."""
        place = self._places[node]
        if place.target is None:
            assert place.parent is not None, "the first root has its branch"
            origin = self._target_branch(place.parent)
            length = self._places[place.parent].length
            self._catch_up(origin, length)
            branch = self.target.runner.fork(origin)
            self.target.runner.rewind(branch, length)
            branch.extend(place.draft.tokens[length:])
            place.target = branch
        return place.target

    def _catch_up(self, branch: Branch, length: int) -> None:
        """Feed what is pending of a prefix, its last token excepted, so that forks share it instead of repeating it."""
        if branch.cached < length - 1:
            rest = branch.tokens[length - 1 :]
            del branch.tokens[length - 1 :]
            self.target.runner.feed([branch])
            branch.extend(rest)

    def _prefix(self, node: NodeId) -> tuple[int, ...]:
        place = self._places[node]
        return tuple(place.draft.tokens[: place.length])

    def _survive(self, node: NodeId, root: NodeId) -> None:
        """The new root's branches: for an accepted draft step the node's own; else the old root's, the target's step behind its prefix."""
        if node == root:
            self._target_branch(node)  # its parent is about to be closed
            return
        place = self._places.pop(node)
        assert place.target is not None
        follow(self.draft.runner, place.draft, place.target.tokens)
        place.length = len(place.target)
        self._places[root] = place

    def _release(self, node: NodeId) -> None:
        place = self._places.pop(node, None)
        if place is not None:
            self.draft.close(place.draft)
            if place.target is not None:
                self.target.close(place.target)
