"""The draft's side of one request: a branch per node, and the steps that are being written on them.

`DraftSide` is all that a `Request` knows of the draft. Nodes are names and steps are token ids, so
the model may just as well be in another process (`worker.py`). `LocalDrafts` has the model at hand;
the worker uses the very same object, so what is drafted does not depend on where.

Example: `open(R, prompt)`; `draft(A, R, ...)` forks R's branch and begins to write on the fork;
some time later `take()` gives (A, step), and A's branch ends in that step. `follow(R, S, tokens)`:
the target's step was emitted after R; the branch is S's from now on, with those tokens to be
computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.protocol import NodeId
from lr.spec.write import StepJob, StepWriter
from lr.trace import Trace
from lr.types import Step


class DraftSide(Protocol):
    """What a request asks of the draft. Calls return at once; `take` collects what they began."""

    def open(self, node: NodeId, tokens: Sequence[int]) -> None:
        """A branch for `node` that begins with `tokens` (at least one)."""
        ...

    def draft(self, node: NodeId, parent: NodeId, limit: int, stream: Stream) -> None:
        """Fork the parent's branch for `node` and begin to write the step that leads there: at most
        `limit` tokens, drawn from `stream`.
        """
        ...

    def cancel(self, node: NodeId) -> None:
        """Stop writing the step that leads to `node`. It may arrive nevertheless."""
        ...

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        """The branch of `old` is the branch of `new` from now on, with `tokens` after it."""
        ...

    def close(self, node: NodeId) -> None:
        """Give the branch of `node` back."""
        ...

    def flush(self) -> None:
        """Send what was asked since the last time, where it has to be sent."""
        ...

    def end(self) -> None:
        """The request is over: stop everything and give everything back."""
        ...

    def take(self) -> list[tuple[NodeId, Step]]:
        """The steps that were finished since the last call, each with the node it leads to."""
        ...


@dataclass
class LocalDrafts:
    """The draft's side with its model at hand. Requests share the `writer`, which writes when the
    loop calls its `poll`; `trace` is that of this request.
    """

    writer: StepWriter
    trace: Trace
    jobs: dict[NodeId, StepJob] = field(default_factory=dict)
    _places: dict[NodeId, tuple[Branch, NodeId | None]] = field(default_factory=dict)

    def open(self, node: NodeId, tokens: Sequence[int]) -> None:
        """See `DraftSide`. Raises what `ModelRunner.open` raises."""
        self._give(node, self.writer.runner.open(tokens), None)

    def draft(self, node: NodeId, parent: NodeId, limit: int, stream: Stream) -> None:
        branch = self.writer.runner.fork(self._places[parent][0])
        self._give(node, branch, parent)
        job = StepJob(branch, parent.index, limit, stream, self.trace, node)
        self.jobs[node] = job
        self.writer.begin([job])

    def cancel(self, node: NodeId) -> None:
        job = self.jobs.pop(node, None)
        if job is not None:
            self.writer.cancel(job)

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        branch, _ = self._places.pop(old)
        branch.extend(tokens)
        self._give(new, branch, None)

    def close(self, node: NodeId) -> None:
        """See `DraftSide`. Closing twice changes nothing.

        A step is written on a fork, so a parent never computes what is still to be computed of its
        own tokens; a child that is closed leaves that to it. Example: the prompt (50 tokens) is to
        be computed on the root; its child computes it, writes 7 tokens and is rejected. Cut back to
        49 tokens, the child's cache is what the root lacked.
        """
        branch, above = self._places.pop(node, (None, None))
        if branch is None:
            return
        parent = self._places[above][0] if above is not None and above in self._places else None
        if parent is not None and parent.cached < min(branch.cached, len(parent) - 1):
            runner, tokens = self.writer.runner, parent.tokens
            heir = runner.fork(branch)
            runner.rewind(heir, min(branch.cached, len(tokens) - 1))
            runner.become(parent, heir)
            parent.tokens = tokens
        self.writer.close(branch)

    def flush(self) -> None:
        """Nothing has to be sent."""

    def take(self) -> list[tuple[NodeId, Step]]:
        finished = [(node, job.step) for node, job in self.jobs.items() if job.finish is not None]
        for node, _ in finished:
            del self.jobs[node]
        return finished

    def end(self) -> None:
        for node in list(self.jobs):
            self.cancel(node)
        for node in reversed(list(self._places)):
            self.close(node)

    def _give(self, node: NodeId, branch: Branch, parent: NodeId | None) -> None:
        self._places[node] = branch, parent
        if self.trace.detailed:
            self.writer.runner.belongs(branch, node)
