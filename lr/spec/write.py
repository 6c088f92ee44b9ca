"""Writing steps: many branches at once, each up to its own boundary.

A `StepWriter` is a model in its role: the runner, how it samples, where steps end. It writes one
token (or one round of token-level speculation) on every branch per ragged forward; a job that is
finished leaves the batch. A branch then ends in its new step, all of it cached except the last
token, so the next step can begin with the next `forward`: deciding about steps moves no cache.
Read next: `lr/lookahead.py`, `lr/engine/loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log
from typing import ClassVar

import torch
from torch import Tensor

from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.acceptance import Draws
from lr.spec.drafters import Context
from lr.spec.protocol import NodeId
from lr.spec.runner import Runner
from lr.spec.sampling import distribution, sample
from lr.spec.segmenters import BlankLineSegmenter, Segmenter, TokenBytes
from lr.spec.token_sd import RoundEnd, Speculation, speculate
from lr.trace import StepWritten, TokenRound, TokenWritten, Trace
from lr.types import Finish, Role, SamplingParams, Step


@dataclass(eq=False)
class StepJob:
    """One step to be written at the end of `branch`: number `index` of the answer, at most `limit`
    tokens.

    `stream` is the step's randomness and `trace` records it; None: the writer's (of its stream the
    child `index`). `node` names the step in the trace. `tokens`: what is written; those that it
    begins with are on the branch. `finish` is None until it is written. `logprobs`: of the tokens
    that were drawn, under the sampling distribution, if the writer keeps them.
    """

    branch: Branch
    index: int
    limit: int
    stream: Stream | None = None
    trace: Trace | None = None
    node: NodeId | None = None
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    logprobs: list[float] = field(default_factory=list)

    @property
    def step(self) -> Step:
        """The finished step."""
        assert self.finish is not None
        return Step(tuple(self.tokens), self.finish)


@dataclass(frozen=True)
class _Live:
    """A job that is being written, with its randomness and what finds its boundary."""

    job: StepJob
    stream: Stream
    trace: Trace
    segmenter: Segmenter

    @property
    def context(self) -> Context:
        """What a drafter gets to see. The round's last token is not drafted, hence the - 1."""
        job, written = self.job, len(self.job.tokens)
        return Context(job.branch, job.limit - written - 1, Draws(self.stream, written))


NO_STREAM = Stream.root(0)


@dataclass(frozen=True)
class Writing:
    """How a model writes, as data that can be sent to another process. The fields are those of
    `StepWriter`; the segmenter is made from the function that maps a token id to its bytes.
    """

    role: Role
    sampling: SamplingParams
    eos_ids: frozenset[int]
    segmenter: Callable[[TokenBytes], Segmenter] = BlankLineSegmenter
    speculation: Speculation | None = None
    keeps_logprobs: bool = False

    def writer(self, runner: Runner, token_bytes: TokenBytes) -> StepWriter:
        """A writer for jobs that bring their own stream and trace."""
        return StepWriter(
            role=self.role,
            runner=runner,
            sampling=self.sampling,
            segmenter=partial(self.segmenter, token_bytes),
            eos_ids=self.eos_ids,
            speculation=self.speculation,
            keeps_logprobs=self.keeps_logprobs,
        )


@dataclass
class StepWriter:
    """A model in its role. The draw for a token is keyed by (stream, step index, offset in the
    step).

    With `speculation` the tokens inside each step are guessed ahead; without it every token takes
    one forward. Jobs join (`begin`) and leave (`cancel`) between two forwards (`tick`); `write`
    writes jobs to their end.
    """

    role: Role
    runner: Runner
    sampling: SamplingParams
    segmenter: Callable[[], Segmenter]
    eos_ids: frozenset[int]
    stream: Stream = NO_STREAM
    trace: Trace = field(default_factory=Trace)
    speculation: Speculation | None = None
    keeps_logprobs: bool = False
    here: ClassVar[bool] = True
    live: list[_Live] = field(default_factory=list, init=False)

    def write(self, jobs: Sequence[StepJob], logits: Sequence[Tensor] | None = None) -> list[Step]:
        """Write one step per job. `logits`: those of the first tokens ([v] each), if known."""
        self.begin(jobs)
        try:
            if logits is not None:
                self._sample(self.live, logits)
            while self.live:
                self.tick()
        finally:
            self.end()  # after a failed forward nothing is half in work
        return [job.step for job in jobs]

    def begin(self, jobs: Sequence[StepJob]) -> None:
        """Take jobs in; the next `tick` writes their first tokens."""
        for job in jobs:
            stream = self.stream.fold_in(job.index) if job.stream is None else job.stream
            segmenter = self.segmenter()
            for token in job.tokens:
                segmenter.feed(token)
            self.live.append(_Live(job, stream, job.trace or self.trace, segmenter))

    def cancel(self, job: StepJob) -> None:
        """Stop writing a step. Its branch is left as it is."""
        self.live = [one for one in self.live if one.job is not job]

    @property
    def busy(self) -> bool:
        """Whether any step is being written."""
        return bool(self.live)

    def poll(self, wait: float | None = 0.0) -> list[StepJob]:
        """One `tick`, if anything is being written. `wait` is for models that are elsewhere."""
        return self.tick() if self.live else []

    def tick(self) -> list[StepJob]:
        """One forward, or one round of speculation, for all; returns the jobs that it finished."""
        if self.speculation is None:
            branches = [one.job.branch for one in self.live]
            return self._sample(self.live, self.runner.forward(branches))
        ends = speculate(
            self.runner,
            self.sampling,
            self.speculation,
            [one.context for one in self.live],
            detailed=any(one.trace.detailed for one in self.live),
        )
        for one, end in zip(self.live, ends, strict=True):
            self._take_round(one, end)
        return self._part_with_finished()

    def end(self) -> None:
        """Stop writing everything. Branches are left as they are."""
        self.live = []

    def close(self, branch: Branch) -> None:
        """Close a branch of this writer's runner, and what a drafter keeps for it."""
        if self.speculation is not None:
            self.speculation.drafter.forget([branch])
        self.runner.close(branch)

    def _sample(self, live: Sequence[_Live], logits: Sequence[Tensor]) -> list[StepJob]:
        """One token for each, from its logits [v]."""
        probs = distribution(torch.stack(tuple(logits)), self.sampling)  # [b, v]
        keys = [one.context.draws.sample_key(0) for one in live]
        tokens = sample(probs, keys)
        if self.keeps_logprobs or any(one.trace.detailed for one in live):
            drawn = torch.tensor(tokens, device=probs.device)[:, None]  # [b, 1]
            likely = probs.gather(1, drawn)[:, 0].tolist()
            for one, token, p, key in zip(live, tokens, likely, keys, strict=True):
                self._report(one, len(one.job.tokens), token, p, key)
                one.job.logprobs += [log(p)] if self.keeps_logprobs else []
        for one, token in zip(live, tokens, strict=True):
            one.job.branch.append(token)
            self._take(one, token)
        return self._part_with_finished()

    def _part_with_finished(self) -> list[StepJob]:
        finished = [one for one in self.live if one.job.finish is not None]
        if finished:
            self.live = [one for one in self.live if one.job.finish is None]
        for one in finished:
            one.trace.record(StepWritten(self.role, one.job.index, one.job.step, one.job.node))
        return [one.job for one in finished]

    def _take_round(self, one: _Live, end: RoundEnd) -> None:
        """Take a round's tokens up to the step's end. Its last token stays pending, the cache holds
        everything before.

        Example: "a b \n\n c" was decided on a branch of 10 tokens: the step ends with the third, so
        the branch is cut back to 12 tokens and the boundary is appended again: 13 tokens, 12 of
        them cached.
        """
        job, offset, taken = one.job, len(one.job.tokens), 0
        while taken < len(end.tokens) and job.finish is None:
            self._take(one, end.tokens[taken])
            taken += 1
        if surplus := len(end.tokens) - taken:
            self.runner.rewind(job.branch, len(job.branch) - surplus - 1)
            job.branch.append(end.tokens[taken - 1])
        if end.proposed:
            detail = end.detail if one.trace.detailed else None
            numbers = (end.proposed, end.depth, end.accepted, taken)
            one.trace.record(TokenRound(self.role, job.index, *numbers, job.node, detail))
        elif end.detail is not None:
            self._report(one, offset, end.tokens[0], end.detail.p, end.detail.key)

    def _report(self, one: _Live, offset: int, token: int, p: float, key: int) -> None:
        """Tell a detailed trace of a token, its probability and its key."""
        if one.trace.detailed:
            job = one.job
            one.trace.record(TokenWritten(self.role, job.node, job.index, offset, token, p, key))

    def _take(self, one: _Live, token: int) -> None:
        """Add a token to its step, which may end: end of sequence first, boundary, then limit."""
        job = one.job
        job.tokens.append(token)
        if token in self.eos_ids:
            job.finish = Finish.EOS
        elif one.segmenter.feed(token):
            job.finish = Finish.BOUNDARY
        elif len(job.tokens) >= job.limit:
            job.finish = Finish.LENGTH
