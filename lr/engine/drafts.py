"""The draft's side of a request: its branches, and the steps that it writes.

It knows nodes only by name and steps only as token ids, so the model can be in another
process. `RemoteDrafts` has the same methods as `LocalDrafts` and forwards the calls to
a `LocalDrafts` in the worker (`worker.py`), so both write the same steps. Read next:
`spec/write.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.protocol import Limits, NodeId
from lr.spec.runner import read_up_to
from lr.spec.write import StepJob, StepWriter
from lr.trace import Trace
from lr.types import Coupling, Finish, Step

if TYPE_CHECKING:
    from lr.engine.worker import RemoteRun

AHEAD = 2
"""Steps that a worker may write unasked. Each node has room for one, and there are at
least two."""


@dataclass(frozen=True)
class Streams:
    """The randomness of one question. With `coupling` shared, the first alternative of
    each draft step is drawn with the target's noise; the others never are. `ahead`: the
    limits of steps that the draft may write before they are asked for, one per
    position; None: it may not.
    """

    target: Stream
    draft: Stream
    coupling: Coupling = Coupling.INDEPENDENT
    ahead: Limits | None = None

    def of_draft(self, index: int, sibling: int) -> Stream:
        if sibling:
            return self.draft.fold_in(index, sibling)
        shared = self.coupling is Coupling.SHARED
        return (self.target if shared else self.draft).fold_in(index)


class Written(NamedTuple):
    """A finished draft step (None: it will not come), the node that it leads to and, if
    they are kept, its tokens' log-probabilities under the draft's sampling
    distribution.
    """

    node: NodeId
    step: Step | None
    logprobs: tuple[float, ...] | None = None


@dataclass
class LocalDrafts:
    """The draft's side of a request, with the model in this process. Requests share the
    `writer`, which writes when its `poll` is called. Methods only begin work; `take`
    collects the results.
    """

    writer: StepWriter
    trace: Trace
    jobs: dict[NodeId, StepJob] = field(default_factory=dict)
    streams: Streams = field(init=False)
    _places: dict[NodeId, tuple[Branch, NodeId | None]] = field(default_factory=dict)
    _unasked: dict[NodeId, StepJob] = field(default_factory=dict)
    _prompt: int = 0  # tokens before the answer
    _tip: NodeId | None = None  # the node to which the last step that was taken leads

    def open(self, node: NodeId, tokens: Sequence[int], streams: Streams) -> None:
        """Open the first branch, for `node`, with these tokens (at least one), and set
        streams."""
        self._give(node, self.writer.runner.open(tokens, shared=True), None)
        self.streams, self._prompt = streams, len(tokens)

    def write_ahead(self) -> None:
        """Begin the step that is asked for next unless a draft is rejected. Its name,
        randomness and limit are known, so the draft need not wait for the end of the
        target's forward.
        """
        tip, limits = self._tip, self.streams.ahead
        if limits is None or tip not in self._places or len(self._unasked) >= AHEAD:
            return
        node, branch = tip.child(0, 1), self._places[tip][0]
        limit = limits.step_limit(len(branch) - self._prompt)
        if node not in self._places and limit > 0:
            unseen = Trace()
            unseen.start = self.trace.start
            self._begin(node, tip, limit, self.streams.of_draft(tip.index, 0), unseen)
            self._unasked[node] = self.jobs[node]

    def draft(
        self,
        parent: NodeId,
        limit: int,
        children: Sequence[NodeId],
        steps: Mapping[NodeId, Step],
    ) -> None:
        """Fork the parent's branch for each child and begin the step that leads to the
        child, at most `limit` tokens long, or append the step given in `steps`.
        """
        above = self._places[parent][0]
        if len(children) > 1:  # compute once what every child needs
            read_up_to(self.writer.runner, above, len(above) - 1)
        for sibling, node in enumerate(children):
            stream = self.streams.of_draft(parent.index, sibling)
            if (job := self._unasked.pop(node, None)) is not None:
                assert (job.limit, job.stream) == (limit, stream), (
                    "not what was to be asked for"
                )
                self.trace.events += job.trace.events
                job.trace = self.trace
            elif node in steps:
                branch = self.writer.runner.fork(above)
                self._give(node, branch, parent)
                branch.extend(steps[node].tokens)
            else:
                self._begin(node, parent, limit, stream, self.trace)

    def _begin(
        self, node: NodeId, parent: NodeId, limit: int, stream: Stream, trace: Trace
    ) -> None:
        branch = self.writer.runner.fork(self._places[parent][0])
        self._give(node, branch, parent)
        self.jobs[node] = job = StepJob(
            branch, parent.index, limit, stream, trace, node
        )
        self.writer.begin([job])

    def cancel(self, node: NodeId) -> None:
        """Stop writing the step that leads to `node`. It may still arrive."""
        job = self.jobs.pop(node, None)
        if job is not None:
            self.writer.cancel(job)

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        """Give the branch of `old` to `new`, and append `tokens` to it."""
        self._drop_unasked(old)
        branch, _ = self._places.pop(old)
        branch.extend(tokens)
        self._give(new, branch, None)

    def close(self, node: NodeId) -> None:
        """Close the branch of `node`. Closing twice changes nothing.

        Steps are written on forks, so a parent does not compute its own uncomputed
        tokens; it takes their cache from a child that is closed. Example: a prompt of
        50 tokens is uncomputed on the root. Its child computes it, writes 7 tokens and
        is rejected. The root gets its first 49.
        """
        self._drop_unasked(node)
        branch, above = self._places.pop(node, (None, None))
        if branch is None:
            return
        parent = (
            self._places[above][0]
            if above is not None and above in self._places
            else None
        )
        shared = (
            0 if parent is None else min(branch.num_computed_tokens, len(parent) - 1)
        )
        if parent is not None and parent.num_computed_tokens < shared:
            runner, tokens = self.writer.runner, parent.tokens
            fork = runner.fork(branch)
            runner.rewind(fork, shared)
            runner.swap(parent, fork)
            parent.tokens = tokens
        self.writer.close(branch)

    def take(self) -> list[Written]:
        """The steps that have finished since the last call."""
        keeps, written = self.writer.config.keeps_logprobs, []
        for node in [node for node, job in self.jobs.items() if job.finish is not None]:
            job = self.jobs.pop(node)
            self._tip = node if job.finish is Finish.BOUNDARY else None
            logprobs = tuple(job.logprobs) if keeps else None
            written.append(Written(node, job.step, logprobs))
        return written

    def _drop_unasked(self, parent: NodeId) -> None:
        node = parent.child(0, 1)
        if self._unasked.pop(node, None) is not None:
            self.cancel(node)
            self.close(node)

    def end(self) -> None:
        """Stop all work and close all branches."""
        self._unasked.clear()
        for node in list(self.jobs):
            self.cancel(node)
        for node in reversed(list(self._places)):
            self.close(node)

    def _give(self, node: NodeId, branch: Branch, parent: NodeId | None) -> None:
        self._places[node] = branch, parent
        self.writer.runner.tag(branch, node)


@dataclass
class RemoteDrafts:
    """As `LocalDrafts`, but calls go to a worker. `awaited`: nodes whose steps were
    asked for and not taken. `arrived`: finished steps that were not taken; some were
    not asked for yet.
    """

    run: RemoteRun
    number: int
    trace: Trace
    awaited: set[NodeId] = field(default_factory=set)
    arrived: dict[NodeId, Written] = field(default_factory=dict)

    def _call(self, method: str, *arguments: Any) -> None:
        self.run.calls.append(
            (self.run.number, "call", self.number, method, *arguments)
        )

    def open(self, node: NodeId, tokens: Sequence[int], streams: Streams) -> None:
        self._call("open", node, tokens, streams)

    def draft(
        self,
        parent: NodeId,
        limit: int,
        children: Sequence[NodeId],
        steps: Mapping[NodeId, Step],
    ) -> None:
        self.awaited |= set(children) - set(steps)
        self._call("draft", parent, limit, children, steps)

    def cancel(self, node: NodeId) -> None:
        self.awaited.discard(node)
        self._call("cancel", node)

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        self.arrived.clear()  # a new tree begins
        self._call("follow", old, new, tokens)

    def close(self, node: NodeId) -> None:
        self._call("close", node)

    def end(self) -> None:
        self._call("end")
        del self.run.sides[self.number]

    def take(self) -> list[Written]:
        ready = [node for node in self.arrived if node in self.awaited]
        self.awaited.difference_update(ready)
        return [self.arrived.pop(node) for node in ready]
