"""A question while it is being answered: its scheduler, its branches, its steps so far.

A node where the target writes has a branch of the target. It ends in the node's prefix
or, once the step is written, in that step; all but the last token is cached. The draft
has a branch per node, which ends in the prefix. So if the verifier needs target steps,
the new root already has its branches: no model runs and no block is copied.

Example: at root R, draft step a leads to node A, and b from there to B. The target
wrote s after R, and a is rejected. R's target branch holds "... s", cached except for
the last token, and becomes the new root's. R's draft branch gets s as uncomputed
tokens. A and B are closed.

Read next: `spec/protocol.py` and `spec/scheduler.py`, which decide; `drafts.py`, the
draft's side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from lr.engine.drafts import LocalDrafts, RemoteDrafts, Streams, Written
from lr.kvcache.branch import Branch
from lr.registry import find
from lr.spec import protocol as messages
from lr.spec.protocol import Choice, NodeId, Place
from lr.spec.runner import read_up_to
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.variant import Controller, Variant
from lr.spec.verifiers.base import Pair
from lr.spec.write import StepJob, StepWriter
from lr.trace import StepWritten, Trace
from lr.types import EmittedStep, Role, Step, Verdict

if TYPE_CHECKING:
    from lr.engine.steering import Corrections, Steering


@dataclass
class RequestNode:
    """A node: the tokens of its prefix; the target's branch, once it is needed; the
    draft step that leads here, with its log-probabilities; the judged pairs of its
    children.
    """

    tokens: tuple[int, ...]
    target: Branch | None = None
    step: Step | None = None
    logprobs: tuple[float, ...] | None = None
    judged: dict[NodeId, Pair] = field(default_factory=dict)


@dataclass(eq=False)
class Request:
    """One question. `emitted`: its steps so far. `asked`: pairs that wait for the
    verifier, by the node that the draft step leads to. `jobs`: the steps that the
    target is writing.

    `drafts` is None for plain decoding (a scheduler of depth 0). `variant`: its
    `corrector` decides how the target writes after a rejection. `controller` sets the
    depth after every step
    (`parts/steering.py` runs both). `proposals`: draft steps that no model writes.
    """

    prompt: Sequence[int]
    scheduler: LookaheadScheduler
    target: StepWriter
    drafts: LocalDrafts | RemoteDrafts | None
    streams: Streams
    trace: Trace
    variant: Variant = field(default_factory=Variant)
    controller: Controller | None = None
    proposals: Callable[[Sequence[int], int, int], list[Step | None]] | None = None
    emitted: list[EmittedStep] = field(default_factory=list)
    asked: dict[NodeId, Pair] = field(default_factory=dict)
    jobs: dict[NodeId, StepJob] = field(default_factory=dict)
    _proposed: dict[NodeId, Step] = field(default_factory=dict)  # not reported yet
    nodes: dict[NodeId, RequestNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.scheduler.config
        self._choose = config.choose
        corrector = self.variant.corrector
        self.corrections: Corrections | None = None
        self.steering: Steering | None = None
        if corrector is not None:
            self.corrections = find("lr.engine.steering:Corrections")(self, corrector)
        if self.controller is not None:
            self.steering = find("lr.engine.steering:Steering")(self, self.controller)
        speculation = self.target.config.speculation
        self.drafter = None if speculation is None else speculation.drafter
        self.scheduler.config = replace(config, choose=self.choose)

    @property
    def done(self) -> bool:
        return self.scheduler.done

    def start(self) -> None:
        """Open the prompt on both sides and carry out the first commands."""
        root, config = self.scheduler.root.id, self.scheduler.config
        if self.drafts is not None:
            # A worker may write steps unasked if it is to write all steps. Not for a
            # detailed trace, which shows only steps that were asked for.
            plain = self.proposals is None and config.width == 1
            ahead = config.limits if plain and not self.trace.detailed else None
            self.drafts.open(root, self.prompt, replace(self.streams, ahead=ahead))
        self.nodes[root] = RequestNode(tuple(self.prompt))
        self.give(root, self.target.runner.open(self.prompt, shared=True))
        self._carry_out(self.scheduler.start())

    def take(self) -> bool:
        """Report finished steps to the scheduler (it ignores cancelled ones). Whether
        any came."""
        drafts = [] if self.drafts is None else self.drafts.take()
        if self._proposed:
            drafts = [
                Written(node, step, ()) for node, step in self._proposed.items()
            ] + drafts
            self._proposed.clear()
        written = [node for node, job in self.jobs.items() if job.finish is not None]
        for node, step, logprobs in drafts:
            state = self.nodes.get(node)
            if step is not None and state is not None:
                state.tokens += step.tokens
                state.step, state.logprobs = step, logprobs
                self._offer(node)
            self.tell(messages.Drafted(node, step))
        for node in written:
            # An earlier report may have cancelled this job.
            job = self.jobs.get(node)
            if job is not None and (
                self.corrections is None or self.corrections.keeps(job)
            ):
                del self.jobs[node]
                self.tell(messages.Targeted(node, job.step))
        return bool(drafts or written)

    def tell(self, event: messages.Event) -> None:
        """Report an event to the scheduler and carry out its commands."""
        if self.trace.detailed:
            self.trace.record(event)
        self._carry_out(self.scheduler.handle(event))

    def judged(self, node: NodeId, verdict: Verdict | None) -> None:
        """Report the verdict on a pair, unless an earlier verdict has cancelled it."""
        pair = self.asked.pop(node, None)
        if pair is not None:
            self.nodes[self.parent(node)].judged[node] = pair
            self.tell(messages.Judged(node, verdict))

    def choose(self, place: Place) -> Choice:
        """The verifier's choice, given the pairs that it saw."""
        judged = self.nodes[place.node].judged
        pairs = tuple(map(judged.get, place.children))
        return self._choose(replace(place, pairs=pairs, note=self.trace.at(place.node)))

    def close(self) -> None:
        """Stop all work and close all branches, in any state of the request."""
        for job in self.jobs.values():
            self.target.cancel(job)
        self.jobs.clear()
        self.asked.clear()
        self._proposed.clear()
        for state in self.nodes.values():
            if state.target is not None:
                self.target.close(state.target)
        self.nodes.clear()
        if self.drafts is not None:
            self.drafts.end()
        self.trace.events.sort(key=itemgetter(0))

    def parent(self, node: NodeId) -> NodeId:
        """The node at which the draft step to `node` begins."""
        return node.parent(self.scheduler.config.width)

    def _carry_out(self, commands: Sequence[messages.Command]) -> None:
        for command in commands:
            if self.trace.detailed or isinstance(command, messages.Emit):
                self.trace.record(command)
            match command:
                case messages.Draft():
                    self._begin_drafts(command)
                case messages.Target(node, limit):
                    self._begin_target(node, limit)
                case messages.Judge(node, parent, draft, target):
                    prefix, logprobs = (
                        self.nodes[parent].tokens,
                        self.nodes[node].logprobs,
                    )
                    stream = self.streams.target.fold_in(
                        parent.index, "verdict", node.number
                    )
                    pair = Pair(
                        prefix, draft, target, draft_sampling=logprobs, stream=stream
                    )
                    self.asked[node] = replace(
                        pair,
                        note=self.trace.at(node),
                        index=parent.index,
                        prompt=len(self.prompt),
                    )
                case messages.Cancel((messages.WorkKind.DRAFT, node)):
                    assert self.drafts is not None
                    if self._proposed.pop(node, None) is None:
                        self.drafts.cancel(node)
                case messages.Cancel((messages.WorkKind.TARGET, node)):
                    self.target.cancel(self.jobs.pop(node))
                case messages.Cancel((_, node)):
                    self.asked.pop(node, None)
                case messages.Emit(emitted, _, node, root):
                    self.emitted.append(emitted)
                    if root is not None:
                        self._move_root(node, root, emitted.step)
                    if self.steering is not None:
                        self.steering.ask(command)
                case messages.Release(node) if node in self.nodes:
                    state = self.nodes.pop(node)
                    if self.drafts is not None:
                        self.drafts.close(node)
                    if state.target is not None:
                        self.target.close(state.target)

    def _begin_drafts(self, command: messages.Draft) -> None:
        """Put proposed steps on the draft's branches, and let the draft write the other
        ones."""
        parent, limit, tokens = (
            command.node,
            command.limit,
            self.nodes[command.node].tokens,
        )
        assert self.drafts is not None
        proposed: list[Step | None] = []
        if self.proposals is not None:
            proposed = self.proposals(tokens, self.scheduler.config.width, limit)
            lengths = [None if step is None else len(step.tokens) for step in proposed]
            self.trace.tell("step_source", parent, {"tokens": lengths})
        children = command.children
        self.nodes |= {child: RequestNode(tokens) for child in children}
        written = zip(children, proposed, strict=False)
        steps = {node: step for node, step in written if step is not None}
        self.drafts.draft(parent, limit, children, steps)
        for child, step in steps.items():
            self.trace.record(StepWritten(Role.DRAFT, parent.index, step, child))
        self._proposed |= steps

    def _begin_target(self, node: NodeId, limit: int) -> None:
        branch, stream = (
            self._target_branch(node),
            self.streams.target.fold_in(node.index),
        )
        job = StepJob(branch, node.index, limit, stream, self.trace, node)
        job.max_draft_tokens = (
            None if self.steering is None else self.steering.max_draft_tokens
        )
        if self.corrections is not None:
            self.corrections.begin(job)
        self.jobs[node] = job
        self.target.begin([job])
        if self.drafter is not None:
            for other, state in self.nodes.items():
                if self.parent(other) == node and state.step is not None:
                    self._offer(other)

    def _offer(self, node: NodeId) -> None:
        """Offer the draft step to `node`, if it is a first alternative, to the target's
        drafter."""
        if self.drafter is None or node.number % self.scheduler.config.width:
            return
        rival = self.nodes[self.parent(node)]
        if rival.target is not None:
            start = len(rival.tokens)
            self.drafter.offer(rival.target, start, self.nodes[node].tokens[start:])

    def _target_branch(self, node: NodeId) -> Branch:
        """The target's branch of `node`: a fork of its parent's, with the draft step
        uncomputed."""
        state = self.nodes[node]
        if state.target is None:
            parent = self.parent(node)
            length = len(self.nodes[parent].tokens)
            branch = self.fork(parent, length)
            branch.extend(state.tokens[length:])
            return self.give(node, branch)
        return state.target

    def fork(self, node: NodeId, length: int) -> Branch:
        """A fork of the target's branch of `node`, cut back to `length` tokens. First
        the branch computes the uncomputed part of the node's prefix, except for the
        last token, so that forks share it; if a row is being written there, the
        target's pass is run now. Example: two draft steps arrive together. The row
        after the first begins at once, in the same batch as all other rows; the row
        after the second begins one pass later.
        """
        origin, known = self._target_branch(node), len(self.nodes[node].tokens) - 1
        if node in self.jobs and origin.num_computed_tokens < known:
            self.target.poll()
        read_up_to(self.target.runner, origin, known)
        branch = self.target.runner.fork(origin)
        self.target.runner.rewind(branch, length)
        return branch

    def give(self, node: NodeId, branch: Branch) -> Branch:
        """Make `branch` the target's branch of `node`."""
        self.nodes[node].target = branch
        self.target.runner.tag(branch, node)
        return branch

    def _move_root(self, node: NodeId, root: NodeId, step: Step) -> None:
        """Give the new root its branches: those of the accepted node, or the old
        root's."""
        if node == root:
            self._target_branch(
                node
            )  # fork it now, because its parent is about to be closed
            return
        state = self.nodes.pop(node)
        assert state.target is not None
        if self.drafts is not None:
            self.drafts.follow(node, root, step.tokens)
        state.tokens += step.tokens
        state.judged = {}
        self.nodes[root] = state
        self.give(root, state.target)
