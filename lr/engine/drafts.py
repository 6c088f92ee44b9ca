"""The draft's side of one problem: a branch per node, and the steps that are being written on them.

`DraftSide` is all that a `Chain` knows of the draft: six calls, in which nodes are names and steps
are token ids, so that whatever is behind them may just as well run in another process
(`remote.py`). `LocalDrafts` is the side that has the model: the lockstep driver uses it directly,
the worker of the overlapped driver behind a pipe.

Example: `open(R, prompt)`; `draft(DraftJob(A, parent=R, ...))` forks R's branch and begins to write
on the fork; `take()` some time later gives (A, step), and A's branch then ends in that step.
`follow(R, S, tokens)`: the target's step was emitted behind R; the branch is called S from now on
and has the target's tokens pending. This module does not know when anything runs, nor what a step
is good for.
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


@dataclass(frozen=True)
class DraftJob:
    """Write the step that leads from `parent` to `node`: number `index` of the chain, at most
    `limit` tokens, drawn from `stream`.
    """

    node: NodeId
    parent: NodeId
    index: int
    limit: int
    stream: Stream


class DraftSide(Protocol):
    """What a chain asks of the draft. Calls return at once; what they set going is collected with
    `take`.
    """

    def open(self, node: NodeId, tokens: Sequence[int]) -> None:
        """A branch for `node`, which begins with `tokens` (at least one)."""
        ...

    def draft(self, job: DraftJob) -> None:
        """Fork the parent's branch for `job.node` and begin to write its step."""
        ...

    def cancel(self, node: NodeId) -> None:
        """Stop writing the step that leads to `node`; what may arrive of it nevertheless is the
        chain's to ignore.
        """
        ...

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        """The branch of `old` is the branch of `new` from now on, with `tokens` behind it."""
        ...

    def close(self, node: NodeId) -> None:
        """Give the branch of `node` back."""
        ...

    def take(self) -> list[tuple[NodeId, Step]]:
        """The steps that were finished since the last call, each by the node it leads to."""
        ...


@dataclass(frozen=True)
class _Place:
    branch: Branch
    parent: NodeId | None


@dataclass
class LocalDrafts:
    """The draft's side with its model at hand. Several problems, each with its own `LocalDrafts`,
    share one `writer`; it writes when its owner calls `writer.tick()`. `trace` hears of this
    problem's steps."""

    writer: StepWriter
    trace: Trace
    jobs: dict[NodeId, StepJob] = field(default_factory=dict)
    _places: dict[NodeId, _Place] = field(default_factory=dict)

    def open(self, node: NodeId, tokens: Sequence[int]) -> None:
        """See `DraftSide`. Raises what `ModelRunner.open` raises."""
        self._places[node] = _Place(self.writer.runner.open(tokens), None)
        self._name(node)

    def draft(self, job: DraftJob) -> None:
        """See `DraftSide`."""
        branch = self.writer.runner.fork(self._places[job.parent].branch)
        self._places[job.node] = _Place(branch, job.parent)
        self._name(job.node)
        step_job = self.jobs[job.node] = StepJob(
            branch, job.index, job.limit, job.stream, self.trace, job.node
        )
        self.writer.begin([step_job])

    def cancel(self, node: NodeId) -> None:
        """See `DraftSide`."""
        job = self.jobs.pop(node, None)
        if job is not None:
            self.writer.cancel(job)

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        """See `DraftSide`."""
        branch = self._places.pop(old).branch
        branch.extend(tokens)
        self._places[new] = _Place(branch, None)
        self._name(new)

    def close(self, node: NodeId) -> None:
        """See `DraftSide`. Closing what is closed already changes nothing."""
        place = self._places.pop(node, None)
        if place is None:
            return
        parent = self._places.get(place.parent) if place.parent is not None else None
        if parent is not None and parent.branch.cached < min(
            place.branch.cached, len(parent.branch) - 1
        ):
            self._bequeath(place.branch, parent.branch)
        self.writer.close(place.branch)

    def take(self) -> list[tuple[NodeId, Step]]:
        """See `DraftSide`."""
        finished = [(node, job.step) for node, job in self.jobs.items() if job.finish is not None]
        for node, _ in finished:
            del self.jobs[node]
        return finished

    def clear(self) -> None:
        """Stop everything and give everything back."""
        for node in list(self.jobs):
            self.cancel(node)
        for node in reversed(list(self._places)):
            self.close(node)

    def _name(self, node: NodeId) -> None:
        if self.trace.detailed:
            self.writer.runner.belongs(self._places[node].branch, node)

    def _bequeath(self, child: Branch, parent: Branch) -> None:
        """Before a child is closed, its parent takes over what it has read of their common
        beginning.

        A step is written on a fork, so the parent itself never reads what was pending on it.
        Example: the prompt (50 tokens) is pending on the root; its child reads it, writes 7 tokens
        and is rejected. Cut back to 49 tokens the child's cache is what the root lacked; without it
        the next draft would read the prompt again.
        """
        runner, tokens = self.writer.runner, parent.tokens
        heir = runner.fork(child)
        runner.rewind(heir, min(child.cached, len(tokens) - 1))
        runner.become(parent, heir)
        parent.tokens = tokens
