"""Writing steps: many branches at once, each up to its own boundary. Also plain decoding, which is nothing but steps in a row.

A `StepWriter` is a model in its role: the runner, how it samples, where steps end, its stream of randomness. `write` takes one job
per branch and samples token by token, in one ragged forward per token over all jobs that are not finished; a finished job leaves the
batch. When it returns, each branch ends in its new step, all of it cached except the last token, which is pending. That state is what
the survivor law lives from: the next step can begin with the next `feed`.

This module speaks to a runner through a small protocol and does not know the model, the draft's rival or the verifier.
Read next: `reference.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from lr.rng import Stream
from lr.spec.sampling import distribution, sample
from lr.spec.steps import BoundaryDetector, Segmenter
from lr.trace import StepEmitted, StepWritten, Trace
from lr.types import EmittedStep, Finish, Origin, Role, SamplingParams, Step, require


class Branch(Protocol):
    """A sequence of tokens in a runner's cache."""

    tokens: list[int]

    @property
    def pending(self) -> list[int]: ...

    def append(self, token: int) -> None: ...

    def extend(self, tokens: Sequence[int]) -> None: ...

    def __len__(self) -> int: ...


class Runner(Protocol):
    """What this room needs of `engine.runner.ModelRunner`."""

    def open(self, tokens: Sequence[int]) -> Branch: ...

    def fork(self, branch: Branch) -> Branch: ...

    def rewind(self, branch: Branch, length: int) -> None: ...

    def close(self, branch: Branch) -> None: ...

    def feed(self, branches: Sequence[Branch], logits: Literal["last", "all"] = "last") -> list[Tensor]: ...


@dataclass(frozen=True)
class Limits:
    """How long a chain and its steps may become, in tokens, and what follows from a cut step."""

    max_tokens: int
    max_step_tokens: int = 100
    ignore_half_sentence: bool = True

    def __post_init__(self) -> None:
        require(self.max_tokens > 0, "max_tokens", self.max_tokens, "a whole number > 0")
        require(self.max_step_tokens > 0, "max_step_tokens", self.max_step_tokens, "a whole number > 0")

    def step_limit(self, written: int) -> int:
        """The longest next step when the chain already has `written` tokens; 0 when nothing more may come."""
        return max(0, min(self.max_step_tokens, self.max_tokens - written))


@dataclass
class StepJob:
    """One step to be written at the end of `branch`, the chain's step number `index`, of at most `limit` tokens."""

    branch: Branch
    index: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None


@dataclass
class StepWriter:
    """A model in its role. `stream` is the role's own; the draw for a token is keyed by (stream, step index, offset in the step)."""

    role: Role
    runner: Runner
    sampling: SamplingParams
    segmenter: Segmenter
    eos_ids: frozenset[int]
    stream: Stream
    trace: Trace

    def write(self, jobs: Sequence[StepJob], logits: Sequence[Tensor] | None = None) -> list[Step]:
        """Write one step per job. `logits` are those of the first tokens ([v] each), where the caller has them already."""
        detectors = [self.segmenter.start() for _ in jobs]
        streams = [self.stream.child(job.index) for job in jobs]
        live = list(range(len(jobs)))
        rows = self.runner.feed([job.branch for job in jobs]) if logits is None else logits
        while True:
            probs = distribution(torch.stack(tuple(rows)), self.sampling)
            tokens = sample(probs, [streams[i].key(len(jobs[i].tokens)) for i in live])
            for i, token in zip(live, tokens, strict=True):
                self._take(jobs[i], token, detectors[i])
            live = [i for i in live if jobs[i].finish is None]
            if not live:
                return [self._written(job) for job in jobs]
            rows = self.runner.feed([jobs[i].branch for i in live])

    def _take(self, job: StepJob, token: int, detector: BoundaryDetector) -> None:
        """Append a token to its step and see whether the step ends with it: end of sequence first, boundary, then the limit."""
        job.branch.append(token)
        job.tokens.append(token)
        if token in self.eos_ids:
            job.finish = Finish.EOS
        elif detector.feed(token):
            job.finish = Finish.BOUNDARY
        elif len(job.tokens) >= job.limit:
            job.finish = Finish.LENGTH

    def _written(self, job: StepJob) -> Step:
        assert job.finish is not None
        step = Step(tuple(job.tokens), job.finish)
        self.trace.record(StepWritten(self.role, job.index, step))
        return step


def decode_plainly(prompt: Sequence[int], target: StepWriter, limits: Limits) -> Iterator[EmittedStep]:
    """Plain decoding of the target, step by step: the baseline of every comparison, with the keys that Lookahead Reasoning uses."""
    branch = target.runner.open(prompt)
    try:
        index = written = 0
        while limit := limits.step_limit(written):
            [step] = target.write([StepJob(branch, index, limit)])
            emitted = EmittedStep(index, step, Origin.TARGET)
            target.trace.record(StepEmitted(emitted))
            yield emitted
            if step.finish is Finish.EOS:
                return
            index, written = index + 1, written + len(step.tokens)
    finally:
        target.runner.close(branch)
