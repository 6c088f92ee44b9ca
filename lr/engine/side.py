"""One model's part in one answer: a branch per node, and the steps being written.

Draft and target use the same class. Both write the step of a node at the end of that
node's branch; they differ only in what a node's branch holds at first.

    draft    the prefix of its parent; the step written here leads to the node
    target   the prefix of the node; the step written here is the target's own

So if the target's step is emitted, its branch already holds the new prefix, and if the
draft's is, the accepted node's branches do: after a decision no model runs and no block
is copied. (Where the verifier needs no target step, a rejection asks for one, and an
acceptance may first have to read the prefix.)
Example: at root R the draft step a leads to node A, and b from there to B. The target
wrote s after R, and a is rejected. R's target branch holds "... s", cached but for the
last token, and becomes the new root's. R's draft branch gets s as uncomputed tokens. A
and B are closed.

Each side carries out the scheduler's commands by itself, so the draft's may be in
another process (`worker.py`). Answers share the writers, which write when their `poll`
is called. Read next: `worker.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from lr.kvcache.branch import Branch, common_length
from lr.rng import Stream
from lr.spec.protocol import (
    FIRST_NODE,
    Cancel,
    Command,
    Draft,
    Emit,
    Limits,
    NodeId,
    Release,
    Target,
    WorkKind,
)
from lr.spec.runner import WORTH_A_FORWARD, fork_at, read_up_to, reuse_computed
from lr.spec.sampling import draw
from lr.spec.write import StepJob, StepWriter
from lr.trace import Trace
from lr.types import Finish, Step


class Written(NamedTuple):
    """A finished step (None: given up), the node at whose branch it was written and, if
    they are kept, its tokens' log-probabilities under the raw logits."""

    node: NodeId
    step: Step | None
    logprobs: tuple[float, ...] = ()


class Side:
    """One model's branches in one answer, by node, and the steps that it writes
    there. Methods only begin work; only a fork may run the model, to read a long prefix
    (and with it what else is being written). `collect` returns finished steps."""

    def __init__(self, writer: StepWriter, trace: Trace, prompt: Sequence[int]) -> None:
        self.writer = writer
        self.trace = trace
        self.branches: dict[NodeId, Branch] = {}
        self.jobs: dict[NodeId, StepJob] = {}
        # uncomputed; the first step reads it
        self.adopt(FIRST_NODE, writer.runner.open(prompt))

    def fork(self, parent: NodeId, length: int, tokens: Sequence[int] = ()) -> Branch:
        """A branch that belongs to no node yet: the first `length` tokens of that of
        `parent`, then `tokens`, which are uncomputed."""
        runner = self.writer.runner
        origin = self.branches[parent]
        if length - origin.num_computed_tokens > WORTH_A_FORWARD:  # read them once
            if parent in self.jobs:
                self.writer.poll()  # the step that is being written there reads them
            else:
                read_up_to(runner, origin, length - 1)
        return fork_at(runner, origin, length, tokens)

    def adopt(self, node: NodeId, branch: Branch) -> None:
        """Make a branch that of `node`."""
        self.branches[node] = branch
        self.writer.runner.tag(branch, node)  # for traces of the cache

    def write(self, node: NodeId, job: StepJob) -> None:
        """Begin a step at the end of the branch of `node`."""
        self.jobs[node] = job
        self.writer.begin(job)

    def collect(self) -> list[Written]:
        """The steps that have finished since the last call."""
        written = []
        for node, job in list(self.jobs.items()):
            if job.finish is not None:
                del self.jobs[node]
                step = None if job.given_up else job.step  # the target writes this one
                written.append(Written(node, step, tuple(job.logprobs)))
        return written

    def cancel(self, node: NodeId) -> None:
        """Stop writing the step of `node`."""
        job = self.jobs.pop(node, None)
        if job is not None:  # else it has finished, or never began
            self.writer.cancel(job)

    def rename(self, old: NodeId, new: NodeId, tokens: Sequence[int] = ()) -> None:
        """Give the branch of `old`, followed by `tokens`, to `new`."""
        branch = self.branches.pop(old)
        branch.extend(tokens)
        self.adopt(new, branch)

    def succeed(self, parent: NodeId, node: NodeId, length: int) -> None:
        """After an acceptance, let the `Branch` object of `parent` go on as that of
        `node`, `length` tokens long: a token drafter keeps its own branches by that
        object, and need not begin anew. Not if a step is or was written at `node`: the
        drafter follows that object already."""
        child = self.branches[node]
        is_new = node not in self.jobs and len(child) == length
        if is_new and self.writer.config.speculation is not None:
            branch = self.branches.pop(parent)
            self.writer.runner.replace(branch, child)
            self.adopt(node, branch)

    def close(self, node: NodeId) -> None:
        """Close the branch of `node`, if it has one."""
        branch = self.branches.pop(node, None)
        if branch is not None:
            self.writer.close(branch)

    def end(self) -> None:
        """Stop all work and close all branches."""
        for node in list(self.jobs):
            self.cancel(node)
        for node in reversed(list(self.branches)):  # blocks return in order
            self.close(node)


class GivenStep(NamedTuple):
    """What a variant's step source writes to `node`, whose draft step has just begun."""

    node: NodeId
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class DraftPlan:
    """How an answer's draft steps are written, as data for another process.

    The first alternative of each step is drawn from `first`, which is the target's
    randomness with coupling shared; the others from `others`. `window`: with how many
    open branches the draft may begin another step before it is asked for.
    """

    prompt: tuple[int, ...]
    limits: Limits
    first: Stream
    others: Stream
    window: int = 0

    def stream(self, index: int, sibling: int) -> Stream:
        """The randomness of alternative `sibling` of step `index`."""
        if sibling == 0:
            return self.first.fold_in(index)
        return self.others.fold_in(index, sibling)


class DraftSide(Side):
    """The draft's side. `last`: where the last step leads, if another may follow it."""

    last: NodeId | None = None

    def __init__(self, writer: StepWriter, trace: Trace, plan: DraftPlan) -> None:
        super().__init__(writer, trace, plan.prompt)
        self.plan = plan

    def carry_out(self, command: Command | GivenStep) -> None:
        """Do the draft's part of a command."""
        match command:
            case Draft(parent, children, limit):
                for sibling, node in enumerate(children):
                    if node not in self.branches:  # else it was begun ahead
                        self.draft(parent, node, sibling, limit)
            case GivenStep(node, tokens):
                self.writer.give(self.jobs[node], tokens)  # finished without a forward
            case Cancel((WorkKind.DRAFT, node)):
                self.cancel(node)
            case Emit(emitted, _, node, NodeId() as root) if root != node:
                for rejected in [branch for branch in self.branches if branch != node]:
                    self.cancel(rejected)
                    self.close(rejected)
                self.rename(node, root, emitted.step.tokens)
                # Read later, but for what another branch of this runner has computed (the
                # token drafter's).
                reuse_computed(self.writer.runner, self.branches[root])
            case Release(node):
                self.close(node)

    def draft(self, parent: NodeId, node: NodeId, sibling: int, limit: int) -> None:
        """Begin the draft step from `parent` to `node`, on a branch of its own."""
        branch = self.fork(parent, len(self.branches[parent]))
        self.adopt(node, branch)
        index = parent.index
        stream = self.plan.stream(index, sibling)
        self.write(node, StepJob(branch, index, limit, stream, self.trace, node))

    def go_on(self) -> None:
        """Begin the next step before it is asked for, so the draft need not wait for
        the target's forward to end. If a draft step is rejected, this was in vain."""
        plan = self.plan
        parent = self.last
        if parent is None or parent not in self.branches:
            return
        if len(self.branches) > plan.window:  # enough is open
            return
        written = len(self.branches[parent]) - len(plan.prompt)
        limit = plan.limits.draft_limit(written, None)  # no step before it was cut
        if limit > 0:
            self.draft(parent, parent.child(0, 1), 0, limit)

    def collect(self) -> list[Written]:
        finished = super().collect()
        for node, step, _ in finished:
            # after eos or a cut nothing follows
            goes_on = step is not None and step.finish is Finish.BOUNDARY
            self.last = node if goes_on else None
        return finished


@dataclass
class TargetNode:
    """A node: the tokens of its prefix, prompt included. `drafted`: the draft step that
    leads here; `targeted`: the target's own step from here. `begun`: the first tokens of
    that step, if they are decided: by the reading of a rejected draft step, or by a
    verdict that keeps some of its tokens."""

    tokens: tuple[int, ...]
    drafted: Written | None = None
    targeted: Written | None = None
    begun: tuple[int, ...] = ()


class TargetSide(Side):
    """The target's side. `nodes`: of the live tree; `width`: alternatives per position;
    `stream`: the randomness of the target's steps; `max_draft_tokens`: a round, in steps
    that begin from now on."""

    def __init__(
        self,
        writer: StepWriter,
        trace: Trace,
        prompt: tuple[int, ...],
        width: int,
        stream: Stream,
    ) -> None:
        super().__init__(writer, trace, prompt)
        self.width = width
        self.stream = stream
        self.max_draft_tokens: int | None = None
        self.nodes = {FIRST_NODE: TargetNode(prompt)}

    def carry_out(self, command: Command) -> None:
        """Do the target's part of a command."""
        match command:
            case Draft(node, children):  # room for the tokens of these steps
                tokens = self.nodes[node].tokens
                self.nodes |= {child: TargetNode(tokens) for child in children}
            case Target():
                self._begin(command)
            case Cancel((WorkKind.TARGET, node)):
                self.cancel(node)
            case Emit(_, _, node, root) if root == node:  # an accepted draft step
                self.reach(node)  # now, because its parent is about to be closed
                self.succeed(self.parent(node), node, len(self.nodes[node].tokens))
            case Emit(emitted, _, node, NodeId() as root):
                # The branch ends in the target's step already.
                tokens = self.nodes.pop(node).tokens + emitted.step.tokens
                self.nodes[root] = TargetNode(tokens)
                self.rename(node, root)
            case Release(node):
                self.nodes.pop(node, None)
                self.close(node)

    def add_draft(self, written: Written) -> None:
        """A draft step is written: its node now has a prefix."""
        node = self.nodes.get(written.node)
        # No node: the draft was cancelled. No step: it was given up.
        if node is not None and written.step is not None:
            node.tokens += written.step.tokens
            node.drafted = written

    def collect(self) -> list[Written]:
        finished = super().collect()
        for written in finished:
            self.nodes[written.node].targeted = written
        return finished

    def parent(self, node: NodeId) -> NodeId:
        """The node at which the draft step to `node` begins."""
        return node.parent(self.width)

    def reach(self, node: NodeId) -> None:
        """Make the branch of `node`, if there is none: its parent's, followed by the
        draft step."""
        if node in self.branches:
            return
        parent = self.parent(node)
        self.reach(parent)  # may lack a branch itself, up to the root
        length = len(self.nodes[parent].tokens)  # where the draft step begins
        draft_tokens = self.nodes[node].tokens[length:]
        self.adopt(node, self.fork(parent, length, draft_tokens))

    def _begin(self, target: Target) -> None:
        node = target.node
        self.reach(node)
        state = self.nodes[node]
        branch = self.branches[node]
        stream = self.stream.fold_in(node.index)
        if target.begun:
            # New randomness: the step written so far may have had a say in the verdict.
            stream = stream.fold_in("kept")
            state.begun = target.begun
            self.writer.runner.rewind(branch, len(state.tokens) - 1)
            branch.extend((state.tokens[-1], *state.begun))
        job = StepJob(branch, node.index, target.limit, stream, self.trace, node)
        job.begun = state.begun
        job.max_draft_tokens = self.max_draft_tokens
        self.write(node, job)

    def begin_correction(self, node: NodeId, before: Tensor) -> None:
        """Let the correction begin with what the reading of a rejected draft step, the
        one to `node`, decides.

        `before` [t, v]: the target's logits before each token of that step. The target's
        token at offset i of its own step is drawn with a key that depends on step and
        offset alone. As long as it is the draft's token, the next row of the reading is
        the target's own. So this changes no token of an answer in mode lr (as sample
        matching does not, `lr/spec/acceptance.py`), and the tokens need no pass.

        Example: the draft step is "a b c d", the target's draws along it are a, b, x, d.
        Its own step begins with "a b x": a and b are cached already, x is uncomputed.
        """
        parent = self.parent(node)
        state = self.nodes[parent]
        draft_tokens = self.nodes[node].tokens[len(state.tokens) :]
        stream = self.stream.fold_in(parent.index)
        # as plain decoding draws
        keys = [stream.key(offset) for offset in range(len(draft_tokens))]
        drawn = draw(before, self.writer.config.sampling, keys)
        begun = tuple(drawn[: common_length(drawn, draft_tokens) + 1])
        if len(begun) <= len(state.begun):
            return  # another alternative has shown more of the same step
        runner = self.writer.runner
        # the prefix, and what both steps have in common
        length = len(state.tokens) + len(begun) - 1
        branch = fork_at(runner, self.branches[node], length, begun[-1:])
        runner.replace(self.branches[parent], branch)
        state.begun = begun
