"""The draft's side of a question: where drafts are written.

`DraftSide` is all that a request knows of the draft: nodes are names there and steps are token ids,
so the model may just as well be in another process (`worker.py`). `LocalDrafts` has the model at
hand; the worker uses the very same object, so what is drafted does not depend on where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.protocol import NodeId
from lr.spec.runner import read_up_to
from lr.spec.write import StepJob, StepWriter
from lr.trace import Trace
from lr.types import Step


class Written(NamedTuple):
    """A finished draft step, the node that it leads to, and the log-probabilities of its tokens
    under the draft's sampling distribution, where they are kept.
    """

    node: NodeId
    step: Step
    logprobs: tuple[float, ...] | None = None


class DraftSide(Protocol):
    """What a request asks of the draft. Calls return at once; `take` collects what they began."""

    def open(self, node: NodeId, tokens: Sequence[int]) -> None:
        """A branch for `node` that begins with `tokens` (at least one)."""

    def draft(self, parent: NodeId, limit: int, children: Mapping[NodeId, Stream | Step]) -> None:
        """Fork the parent's branch for each child, and begin to write the step that leads there: at
        most `limit` tokens, drawn from the child's stream. With a step instead of a stream, that
        step is put there, and nothing is written.
        """

    def cancel(self, node: NodeId) -> None:
        """Stop writing the step that leads to `node`. It may arrive nevertheless."""

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        """The branch of `old` is the branch of `new` from now on, with `tokens` after it."""

    def close(self, node: NodeId) -> None:
        """Give the branch of `node` back. Closing twice changes nothing."""

    def flush(self) -> None:
        """Send what was asked since the last time, where it has to be sent."""

    def end(self) -> None:
        """The request is over: stop everything and give everything back."""

    def take(self) -> list[Written]:
        """The steps that were finished since the last call."""


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
        self._give(node, self.writer.runner.open(tokens), None)

    def draft(self, parent: NodeId, limit: int, children: Mapping[NodeId, Stream | Step]) -> None:
        above = self._places[parent][0]
        if len(children) > 1:  # what all of them would compute of it is computed once
            read_up_to(self.writer.runner, above, len(above) - 1)
        for node, source in children.items():
            branch = self.writer.runner.fork(above)
            self._give(node, branch, parent)
            if isinstance(source, Step):
                branch.extend(source.tokens)
            else:
                job = StepJob(branch, parent.index, limit, source, self.trace, node)
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
        """A step is written on a fork, so a parent never computes the rest of its own tokens; a
        child that is closed leaves that to it. Example: the prompt (50 tokens) is to be computed on
        the root; its child computes it, writes 7 tokens and is rejected. Cut back to 49 tokens, the
        child's cache is what the root lacked.
        """
        branch, above = self._places.pop(node, (None, None))
        if branch is None:
            return
        parent = self._places[above][0] if above is not None and above in self._places else None
        if parent is not None and parent.num_computed_tokens < min(
            branch.num_computed_tokens, len(parent) - 1
        ):
            runner, tokens = self.writer.runner, parent.tokens
            heir = runner.fork(branch)
            runner.rewind(heir, min(branch.num_computed_tokens, len(tokens) - 1))
            runner.swap(parent, heir)
            parent.tokens = tokens
        self.writer.close(branch)

    def flush(self) -> None:
        pass

    def take(self) -> list[Written]:
        finished = [node for node, job in self.jobs.items() if job.finish is not None]
        keeps, jobs = self.writer.config.keeps_logprobs, [self.jobs.pop(node) for node in finished]
        return [
            Written(node, job.step, tuple(job.logprobs) if keeps else None)
            for node, job in zip(finished, jobs, strict=True)
        ]

    def end(self) -> None:
        for node in list(self.jobs):
            self.cancel(node)
        for node in reversed(list(self._places)):
            self.close(node)

    def _give(self, node: NodeId, branch: Branch, parent: NodeId | None) -> None:
        self._places[node] = branch, parent
        if self.trace.detailed:
            self.writer.runner.tag(branch, node)
