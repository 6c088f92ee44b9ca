"""Writing steps: many branches at once, each up to its own boundary. Plain decoding is steps in a
row.

A `StepWriter` is a model in its role: the runner, how it samples, where steps end. It writes one
token (or one round of token-level speculation) on every branch per ragged forward; a job that is
finished leaves the batch. A branch then ends in its new step, all of it cached except the last
token, so the next step can begin with the next `forward`: deciding about steps moves no cache.

A runner is known here by a small protocol (`runner.py`), and a model not at all. Read next:
`lr/lookahead.py`, `lr/engine/loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.acceptance import Draws
from lr.spec.drafters import Context
from lr.spec.protocol import Limits, NodeId
from lr.spec.runner import Runner
from lr.spec.sampling import distribution, sample
from lr.spec.segmenters import BlankLineSegmenter, BoundaryDetector, Segmenter, TokenBytes
from lr.spec.token_sd import RoundEnd, Speculation, speculate
from lr.trace import StepWritten, TokenRound, TokenWritten, Trace, emission
from lr.types import EmittedStep, Finish, Origin, Role, SamplingParams, Step


@dataclass(eq=False)
class StepJob:
    """One step to be written at the end of `branch`: number `index` of the answer, at most `limit`
    tokens.

    `stream` is the step's randomness and `trace` records it; None: the writer's (of its stream the
    child `index`). `node` names the step in the trace. `finish` is None until it is written.
    """

    branch: Branch
    index: int
    limit: int
    stream: Stream | None = None
    trace: Trace | None = None
    node: NodeId | None = None
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def step(self) -> Step:
        """The finished step."""
        assert self.finish is not None
        return Step(tuple(self.tokens), self.finish)


@dataclass(frozen=True)
class _Live:
    """A job that is being written, with its randomness and the detector of its boundary."""

    job: StepJob
    stream: Stream
    trace: Trace
    detector: BoundaryDetector

    @property
    def draws(self) -> Draws:
        return Draws(self.stream, len(self.job.tokens))

    @property
    def context(self) -> Context:
        """What a drafter gets to see. The round's last token is not drafted, so drafts may be one
        token shorter than what the limit leaves.
        """
        return Context(self.job.branch, self.job.limit - len(self.job.tokens) - 1, self.draws)


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

    def writer(self, runner: Runner, token_bytes: TokenBytes) -> StepWriter:
        """A writer for jobs that bring their own stream and trace."""
        return StepWriter(
            role=self.role,
            runner=runner,
            sampling=self.sampling,
            segmenter=self.segmenter(token_bytes),
            eos_ids=self.eos_ids,
            speculation=self.speculation,
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
    segmenter: Segmenter
    eos_ids: frozenset[int]
    stream: Stream = NO_STREAM
    trace: Trace = field(default_factory=Trace)
    speculation: Speculation | None = None
    here: ClassVar[bool] = True
    live: list[_Live] = field(default_factory=list, init=False)

    def write(self, jobs: Sequence[StepJob], logits: Sequence[Tensor] | None = None) -> list[Step]:
        """Write one step per job. `logits` are those of the first tokens ([v] each), where the
        caller has them already.
        """
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
            self.live.append(_Live(job, stream, job.trace or self.trace, self.segmenter.start()))

    def cancel(self, job: StepJob) -> None:
        """Stop writing a step. Its branch is left as it is."""
        self.live = [one for one in self.live if one.job is not job]

    @property
    def busy(self) -> bool:
        """Whether any step is being written."""
        return bool(self.live)

    def poll(self, wait: float | None = 0.0) -> list[StepJob]:
        """The jobs that are finished now: one `tick`, if anything is being written. `wait` is for
        writers whose model is elsewhere.
        """
        return self.tick() if self.live else []

    def tick(self) -> list[StepJob]:
        """One forward, or one round of token-level speculation, for all that is being written;
        returns the jobs that it finished.
        """
        if self.speculation is None:
            return self._sample(
                self.live, self.runner.forward([one.job.branch for one in self.live])
            )
        return self._speculate(self.live, self.speculation)

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
        probs = distribution(torch.stack(tuple(logits)), self.sampling)
        keys = [one.draws.sample_key(0) for one in live]
        tokens = sample(probs, keys)
        if any(one.trace.detailed for one in live):
            self._report_tokens(live, probs, tokens, keys)
        for one, token in zip(live, tokens, strict=True):
            one.job.branch.append(token)
            self._take(one, token)
        return self._part_with_finished()

    def _speculate(self, live: Sequence[_Live], speculation: Speculation) -> list[StepJob]:
        """One round of token-level speculation for each; what was decided after a step's end is
        taken back.
        """
        detailed = any(one.trace.detailed for one in live)
        ends = speculate(
            self.runner,
            self.sampling,
            speculation,
            [one.context for one in live],
            detailed=detailed,
        )
        for one, end in zip(live, ends, strict=True):
            self._take_round(one, end)
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
        branch, start = one.job.branch, len(one.job.branch) - len(end.tokens)
        offset = len(one.job.tokens)
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
            job, detail = one.job, end.detail if one.trace.detailed else None
            numbers = (end.proposed, end.depth, end.accepted, taken)
            one.trace.record(TokenRound(self.role, job.index, *numbers, job.node, detail))
        elif one.trace.detailed and end.detail is not None:
            self._report_token(one, offset, end.tokens[0], end.detail.p, end.detail.key)

    def _report_tokens(
        self, live: Sequence[_Live], probs: Tensor, tokens: Sequence[int], keys: Sequence[int]
    ) -> None:
        """Details for the trace: every token, its probability from probs [b, v], its key."""
        if len(tokens) == 1:
            likely = [probs[0, tokens[0]].item()]
        else:
            likely = probs.gather(1, torch.tensor(tokens, device=probs.device)[:, None])[
                :, 0
            ].tolist()
        for one, token, p, key in zip(live, tokens, likely, keys, strict=True):
            if one.trace.detailed:
                self._report_token(one, len(one.job.tokens), token, p, key)

    def _report_token(self, one: _Live, offset: int, token: int, p: float, key: int) -> None:
        job = one.job
        one.trace.record(TokenWritten(self.role, job.node, job.index, offset, token, p, key))

    def _take(self, one: _Live, token: int) -> None:
        """Count a token to its step and see whether the step ends with it: end of sequence first,
        boundary, then the limit.
        """
        job = one.job
        job.tokens.append(token)
        if token in self.eos_ids:
            job.finish = Finish.EOS
        elif one.detector.feed(token):
            job.finish = Finish.BOUNDARY
        elif len(job.tokens) >= job.limit:
            job.finish = Finish.LENGTH


def decode_plainly(
    prompt: Sequence[int], target: StepWriter, limits: Limits
) -> Iterator[EmittedStep]:
    """Plain decoding of the target, step by step: the baseline of every comparison, with the keys
    that Lookahead Reasoning uses.
    """
    branch = target.runner.open(prompt)
    try:
        index = written = 0
        while limit := limits.step_limit(written):
            [step] = target.write([StepJob(branch, index, limit)])
            emitted = EmittedStep(index, step, Origin.TARGET)
            target.trace.record(emission(emitted))
            yield emitted
            if step.finish is Finish.EOS:
                return
            index, written = index + 1, written + len(step.tokens)
    finally:
        target.close(branch)
