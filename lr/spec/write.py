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

import torch
from torch import Tensor

from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.acceptance import Draws
from lr.spec.drafters.base import Context
from lr.spec.limits import Limits
from lr.spec.runner import Runner
from lr.spec.sampling import distribution, sample
from lr.spec.steps import BoundaryDetector, Segmenter
from lr.spec.token_sd import RoundEnd, Speculation, speculate
from lr.trace import StepEmitted, StepWritten, TokenRound, Trace
from lr.types import EmittedStep, Finish, Origin, Role, SamplingParams, Step


@dataclass
class StepJob:
    """One step to be written at the end of `branch`, the chain's step number `index`, of at most `limit` tokens."""

    branch: Branch
    index: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None


@dataclass(frozen=True)
class _Live:
    """A job that is being written, with its own randomness and its own eye for the boundary."""

    job: StepJob
    stream: Stream
    detector: BoundaryDetector

    @property
    def draws(self) -> Draws:
        return Draws(self.stream, len(self.job.tokens))

    @property
    def context(self) -> Context:
        """What a drafter gets to see. One token comes without being drafted, so one less than the limit may be."""
        return Context(self.job.branch, self.job.limit - len(self.job.tokens) - 1, self.draws)


@dataclass
class StepWriter:
    """A model in its role. `stream` is the role's own; the draw for a token is keyed by (stream, step index, offset in the step).

    With `speculation` the tokens inside each step are guessed ahead; without it every token takes one forward.
    """

    role: Role
    runner: Runner
    sampling: SamplingParams
    segmenter: Segmenter
    eos_ids: frozenset[int]
    stream: Stream
    trace: Trace
    speculation: Speculation | None = None

    def write(self, jobs: Sequence[StepJob], logits: Sequence[Tensor] | None = None) -> list[Step]:
        """Write one step per job. `logits` are those of the first tokens ([v] each), where the caller has them already."""
        live = [_Live(job, self.stream.child(job.index), self.segmenter.start()) for job in jobs]
        if logits is not None:
            live = self._sample(live, logits)
        while live:
            if self.speculation is None:
                live = self._sample(live, self.runner.feed([one.job.branch for one in live]))
            else:
                live = self._speculate(live, self.speculation)
        return [self._written(job) for job in jobs]

    def close(self, branch: Branch) -> None:
        """Close a branch of this writer's runner, and what a drafter keeps for it."""
        if self.speculation is not None:
            self.speculation.drafter.forget([branch])
        self.runner.close(branch)

    def _sample(self, live: Sequence[_Live], logits: Sequence[Tensor]) -> list[_Live]:
        """One token for each, from its logits [v]; returns those that are not finished."""
        probs = distribution(torch.stack(tuple(logits)), self.sampling)
        tokens = sample(probs, [one.draws.sample_key(0) for one in live])
        for one, token in zip(live, tokens, strict=True):
            one.job.branch.append(token)
            self._take(one, token)
        return [one for one in live if one.job.finish is None]

    def _speculate(self, live: Sequence[_Live], speculation: Speculation) -> list[_Live]:
        """One round of token-level speculation for each; what was decided behind a step's end is taken back."""
        ends = speculate(self.runner, self.sampling, speculation, [one.context for one in live])
        for one, end in zip(live, ends, strict=True):
            self._take_round(one, end)
        return [one for one in live if one.job.finish is None]

    def _take_round(self, one: _Live, end: RoundEnd) -> None:
        """Take a round's tokens up to the step's end. Its last token stays pending, the cache holds everything before.

        Example: "a b \n\n c" was decided on a branch of 10 tokens: the step ends with the third, so the branch is cut back to
        12 tokens and the boundary is appended again: 13 tokens, 12 of them cached.
        """
        branch, start = one.job.branch, len(one.job.branch) - len(end.tokens)
        taken = 0
        for token in end.tokens:
            taken += 1
            self._take(one, token)
            if one.job.finish is not None:
                break
        if taken < len(end.tokens):
            self.runner.rewind(branch, start + taken - 1)
            branch.append(end.tokens[taken - 1])
        if end.proposed:
            self.trace.record(TokenRound(self.role, one.job.index, end.proposed, end.depth, end.accepted, taken))

    def _take(self, one: _Live, token: int) -> None:
        """Count a token to its step and see whether the step ends with it: end of sequence first, boundary, then the limit."""
        job = one.job
        job.tokens.append(token)
        if token in self.eos_ids:
            job.finish = Finish.EOS
        elif one.detector.feed(token):
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
        target.close(branch)
