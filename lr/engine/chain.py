"""One problem on its way through the scheduler: which branches belong to which node, and what the
scheduler's commands do to them.

The survivor law, in code. Every node has a branch on the target's side that ends in the node's
prefix and, once the target has written its step there, in that step; and one on the draft's side
that ends in the prefix. Accepting a draft step or falling back to the target's makes one of them
the new root's; the others are closed. No outcome runs a model or copies a block.

Example: root R, draft step a leads to node A, b from there to B. When the target wrote s behind R
and a is rejected: R's target branch holds "... s", all but its last token cached; it becomes the
new root's. R's draft branch gets s as pending tokens. A and B are closed.

This module moves branches and keeps the books. The target's branches are here; the draft's are
behind `drafts.py`, perhaps in another process. When anything runs is up to the driver
(`lockstep.py`, `overlapped.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lr.engine.drafts import DraftJob, DraftSide
from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.drafters import StepDrafter
from lr.spec.protocol import (
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
    Target,
    Targeted,
    Work,
)
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.verifiers.base import Pair
from lr.spec.write import StepJob, StepWriter
from lr.trace import Trace
from lr.types import Coupling, EmittedStep


@dataclass(frozen=True)
class Streams:
    """Where the two models of one problem draw from. `coupling` shared: the first alternative of a
    draft uses the target's noise.
    """

    target: Stream
    draft: Stream
    coupling: Coupling = Coupling.INDEPENDENT

    def of_target(self, index: int) -> Stream:
        return self.target.child(index)

    def of_draft(self, index: int, sibling: int) -> Stream:
        """Alternatives never share noise with each other."""
        if sibling == 0:
            return (
                self.target.child(index)
                if self.coupling is Coupling.SHARED
                else self.draft.child(index)
            )
        return self.draft.child(index, sibling)


@dataclass
class _Place:
    """What a node has: the tokens of its prefix, and its branch on the target's side; None until
    the target has to look there.
    """

    tokens: tuple[int, ...]
    target: Branch | None = None
    parent: NodeId | None = None


@dataclass
class Chain:
    """One problem. `emitted` are its steps so far; `asked` are pairs that wait for the verifier, by
    the node they are about; `jobs` the steps that the target is writing.

    `step_drafter`, if the target speculates with one, is offered the draft's version of every step
    that the target writes.
    """

    prompt: Sequence[int]
    scheduler: LookaheadScheduler
    target: StepWriter
    drafts: DraftSide
    streams: Streams
    trace: Trace
    step_drafter: StepDrafter | None = None
    emitted: list[EmittedStep] = field(default_factory=list)
    asked: dict[Work, Pair] = field(default_factory=dict)
    jobs: dict[NodeId, StepJob] = field(default_factory=dict)
    drafting: set[NodeId] = field(default_factory=set)
    _places: dict[NodeId, _Place] = field(default_factory=dict)

    def start(self) -> None:
        """Open the prompt on both sides and carry out the first commands."""
        root = self.scheduler.root.id
        self.drafts.open(root, self.prompt)
        self._places[root] = _Place(tuple(self.prompt))
        self._settle(root, self.target.runner.open(self.prompt))
        self._carry_out(self.scheduler.start())

    def written(self, job: StepJob) -> bool:
        """The target has finished a step: if it is ours, tell the scheduler and do what it says.
        Returns whether it is ours.
        """
        node = next((node for node, ours in self.jobs.items() if ours is job), None)
        if node is not None:
            del self.jobs[node]
            self.tell(Targeted(node, job.step))
        return node is not None

    def drafted(self) -> None:
        """Hand on what the draft has finished. A step that was cancelled meanwhile is the
        scheduler's to ignore.
        """
        for node, step in self.drafts.take():
            if node in self.drafting:
                self.drafting.discard(node)
                self._places[node].tokens += step.tokens
                self._offer(node)
            self.tell(Drafted(node, step))

    def tell(self, event: Event) -> None:
        """Hand an event to the scheduler and carry out what follows."""
        if self.trace.detailed:
            self.trace.record(event)
        self._carry_out(self.scheduler.handle(event))

    def fork_before(self, node: NodeId) -> Branch:
        """A fork of the target's branch at the end of the prefix behind which the draft step that
        leads to `node` stands; the last token of the prefix is pending. Raises what
        `ModelRunner.feed` raises."""
        parent = self._places[node].parent
        assert parent is not None, "a draft step leads there"
        origin, length = self._target_branch(parent), len(self._places[parent].tokens)
        self._catch_up(origin, length)
        branch = self.target.runner.fork(origin)
        self.target.runner.rewind(branch, length - 1)
        branch.append(self._places[parent].tokens[-1])
        return branch

    def take_reading(self, node: NodeId, branch: Branch) -> None:
        """`branch` came from `fork_before` and has read the draft step, its last token excepted: it
        is the node's, if that has none yet.
        """
        place = self._places[node]
        if place.target is None:
            self._settle(node, branch)
        else:
            self.target.runner.close(branch)

    def close(self) -> None:
        """Give everything back, wherever the chain stands."""
        for job in self.jobs.values():
            self.target.cancel(job)
        self.jobs.clear()
        self.asked.clear()
        for node in list(self._places):
            if node in self.drafting:
                self.drafts.cancel(node)
            self._release(node)
        self.drafting.clear()

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if self.trace.detailed or isinstance(command, Emit):
                self.trace.record(command)
            match command:
                case Draft():
                    self._begin_drafts(command)
                case Target(node, limit):
                    self._begin_target(node, limit)
                case Judge(node, parent, draft, target):
                    pair = Pair(self._places[parent].tokens, draft, target)
                    self.asked[Work(Kind.JUDGE, node)] = pair
                case Cancel(work):
                    self._cancel(work)
                case Emit(emitted, _, node, root):
                    self.emitted.append(emitted)
                    if root is not None:
                        self._survive(node, root)
                case Release(node):
                    self._release(node)

    def _begin_drafts(self, command: Draft) -> None:
        parent, index = command.node, command.node.index
        for sibling, child in enumerate(command.children):
            self._places[child] = _Place(self._places[parent].tokens, parent=parent)
            self.drafting.add(child)
            stream = self.streams.of_draft(index, sibling)
            self.drafts.draft(DraftJob(child, parent, index, command.limit, stream))

    def _begin_target(self, node: NodeId, limit: int) -> None:
        stream = self.streams.of_target(node.index)
        job = self.jobs[node] = StepJob(
            self._target_branch(node), node.index, limit, stream, self.trace, node
        )
        self.target.begin([job])
        for other, place in self._places.items():
            if place.parent == node and other not in self.drafting:
                self._offer(other)

    def _offer(self, node: NodeId) -> None:
        """Let the target, where it writes the step that leads to `node` itself, see how the draft
        wrote it (first alternatives only).
        """
        place = self._places[node]
        if (
            self.step_drafter is None
            or place.parent is None
            or node.number % self.scheduler.config.width
        ):
            return
        rival = self._places.get(place.parent)
        if rival is not None and rival.target is not None:
            start = len(rival.tokens)
            self.step_drafter.offer(rival.target, start, place.tokens[start:])

    def _cancel(self, work: Work) -> None:
        self.asked.pop(work, None)
        if work.kind is Kind.DRAFT:
            self.drafting.discard(work.node)
            self.drafts.cancel(work.node)
        elif work.kind is Kind.TARGET:
            self.target.cancel(self.jobs.pop(work.node))

    def _target_branch(self, node: NodeId) -> Branch:
        """The target's branch of a node: its parent's, forked, cut back to the parent's prefix,
        with the draft step pending.
        """
        place = self._places[node]
        if place.target is None:
            assert place.parent is not None, "the first root has its branch"
            origin = self._target_branch(place.parent)
            length = len(self._places[place.parent].tokens)
            self._catch_up(origin, length)
            branch = self.target.runner.fork(origin)
            self.target.runner.rewind(branch, length)
            branch.extend(place.tokens[length:])
            return self._settle(node, branch)
        return place.target

    def _settle(self, node: NodeId, branch: Branch) -> Branch:
        """`branch` is the node's on the target's side."""
        self._places[node].target = branch
        if self.trace.detailed:
            self.target.runner.belongs(branch, node)
        return branch

    def _catch_up(self, branch: Branch, length: int) -> None:
        """Feed what is pending of a prefix, its last token excepted, so that forks share it instead
        of repeating it.
        """
        if branch.cached < length - 1:
            rest = branch.tokens[length - 1 :]
            del branch.tokens[length - 1 :]
            self.target.runner.feed([branch])
            branch.extend(rest)

    def _survive(self, node: NodeId, root: NodeId) -> None:
        """The new root's branches: for an accepted draft step the node's own; else the old root's,
        the target's step behind its prefix.
        """
        if node == root:
            self._target_branch(node)  # its parent is about to be closed
            return
        place = self._places.pop(node)
        assert place.target is not None
        step = tuple(place.target.tokens[len(place.tokens) :])
        self.drafts.follow(node, root, step)
        place.tokens += step
        self._places[root] = place
        self._settle(root, place.target)

    def _release(self, node: NodeId) -> None:
        place = self._places.pop(node, None)
        if place is not None:
            self.drafts.close(node)
            if place.target is not None:
                self.target.close(place.target)
