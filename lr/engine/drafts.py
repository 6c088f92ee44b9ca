"""The draft's side of a question: where drafts are written.

Nodes are names there and steps are token ids, so the model may just as well be in another process:
`worker.py` has `RemoteDrafts`, with the methods that a request calls here. The worker uses the very
same `LocalDrafts`, so what is drafted does not depend on where. Read next: `spec/write.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.protocol import Limits, NodeId
from lr.spec.runner import read_up_to
from lr.spec.write import StepJob, StepWriter
from lr.trace import Trace
from lr.types import Coupling, Finish, Step

AHEAD = 2
"""Steps that a worker writes unasked; its cache has room for one more per node, at least two."""


@dataclass(frozen=True)
class Streams:
    """The randomness of one question. With `coupling` shared, the first alternative of a draft step
    is drawn with the target's noise; other alternatives never share noise. `ahead`: if steps may be
    written that nobody has asked for yet, one alternative per position, how long they may become.
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
    """A finished draft step (None: it will not come), the node that it leads to and, of the draft's
    sampling distribution, its tokens' log-probabilities and the mean entropy, where they are kept.
    """

    node: NodeId
    step: Step | None
    logprobs: tuple[float, ...] | None = None
    entropy: float | None = None


@dataclass
class LocalDrafts:
    """The draft's side with its model at hand. Requests share the `writer`, which writes when the
    loop calls its `poll`; `trace` is that of this request. Calls return at once; `take` collects
    what they began.
    """

    writer: StepWriter
    trace: Trace
    jobs: dict[NodeId, StepJob] = field(default_factory=dict)
    streams: Streams = field(init=False)
    _places: dict[NodeId, tuple[Branch, NodeId | None]] = field(default_factory=dict)
    _unasked: dict[NodeId, StepJob] = field(default_factory=dict)
    _prompt: int = 0  # tokens before the answer
    _tip: NodeId | None = None  # where the last step that was taken leads to

    def open(self, node: NodeId, tokens: Sequence[int], streams: Streams) -> None:
        """A branch for `node` of these tokens, at least one, and the randomness of what follows."""
        self._give(node, self.writer.runner.open(tokens, shared=True), None)
        self.streams, self._prompt = streams, len(tokens)

    def write_ahead(self) -> None:
        """Begin the step that will be asked for next, if all goes well: the name, the randomness
        and the limit of it are known. So the draft need not wait for the target's forward to end.
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
        self, parent: NodeId, limit: int, children: Sequence[NodeId], steps: Mapping[NodeId, Step]
    ) -> None:
        """Fork the parent's branch for each child and begin to write the step that leads there, of
        at most `limit` tokens; one that is among `steps` is put there.
        """
        above = self._places[parent][0]
        if len(children) > 1:  # what all of them would compute of it is computed once
            read_up_to(self.writer.runner, above, len(above) - 1)
        for sibling, node in enumerate(children):
            stream = self.streams.of_draft(parent.index, sibling)
            if (job := self._unasked.pop(node, None)) is not None:
                assert (job.limit, job.stream) == (limit, stream), "not what was to be asked for"
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
        self.jobs[node] = job = StepJob(branch, parent.index, limit, stream, trace, node)
        self.writer.begin([job])

    def cancel(self, node: NodeId) -> None:
        """Stop writing the step that leads to `node`. It may arrive nevertheless."""
        job = self.jobs.pop(node, None)
        if job is not None:
            self.writer.cancel(job)

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        """The branch of `old` is the branch of `new` from now on, with `tokens` after it."""
        self._drop_unasked(old)
        branch, _ = self._places.pop(old)
        branch.extend(tokens)
        self._give(new, branch, None)

    def close(self, node: NodeId) -> None:
        """Give the branch of `node` back. Closing twice changes nothing.

        A step is written on a fork, so a parent never computes the rest of its own tokens; a
        child that is closed leaves that to it. Example: the prompt (50 tokens) is to be computed on
        the root; its child computes it, writes 7 tokens and is rejected. Cut back to 49 tokens, the
        child's cache is what the root lacked.
        """
        self._drop_unasked(node)
        branch, above = self._places.pop(node, (None, None))
        if branch is None:
            return
        parent = self._places[above][0] if above is not None and above in self._places else None
        shared = 0 if parent is None else min(branch.num_computed_tokens, len(parent) - 1)
        if parent is not None and parent.num_computed_tokens < shared:
            runner, tokens = self.writer.runner, parent.tokens
            fork = runner.fork(branch)
            runner.rewind(fork, shared)
            runner.swap(parent, fork)
            parent.tokens = tokens
        self.writer.close(branch)

    def take(self) -> list[Written]:
        """The steps that were finished since the last call."""
        keeps, written = self.writer.config.keeps_logprobs, []
        for node in [node for node, job in self.jobs.items() if job.finish is not None]:
            job = self.jobs.pop(node)
            self._tip = node if job.finish is Finish.BOUNDARY else None
            logprobs = tuple(job.logprobs) if keeps else None
            written.append(Written(node, job.step, logprobs, job.entropy))
        return written

    def _drop_unasked(self, parent: NodeId) -> None:
        node = parent.child(0, 1)
        if self._unasked.pop(node, None) is not None:
            self.cancel(node)
            self.close(node)

    def end(self) -> None:
        """The request is over: stop everything and give everything back."""
        self._unasked.clear()
        for node in list(self.jobs):
            self.cancel(node)
        for node in reversed(list(self._places)):
            self.close(node)

    def _give(self, node: NodeId, branch: Branch, parent: NodeId | None) -> None:
        self._places[node] = branch, parent
        self.writer.runner.tag(branch, node)
