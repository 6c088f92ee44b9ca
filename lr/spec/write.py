"""Writing steps on many branches at once, each up to its own boundary.

Per ragged forward, a `StepWriter` writes one token (or one round of token-level
speculation) on every branch. A finished job leaves the batch. Its branch then ends in
the new step, cached except for the last token, so deciding moves no cache.

A step ends at a blank line, as in the paper (`lr/spec/segmenters.py` has other rules).
Boundaries are found in bytes, token by token: in Qwen's vocabulary hundreds of tokens
contain a blank line, many of them with part of a word, and two line feeds also make
one. The token that completes the boundary is the last of its step. No step ends before
its first visible character. Tokens are never split, and text is never encoded again.
Read next: `token_sd.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lr.kvcache.branch import Branch
from lr.rng import Stream
from lr.spec.checks import check_bool
from lr.spec.proposal import Draws
from lr.spec.protocol import NodeId
from lr.spec.runner import Runner
from lr.spec.sampling import distribution, draw, root_scaled, step_logprobs
from lr.spec.token_sd import Context, Speculation, round_detail, speculate
from lr.trace import StepWritten, TokenRound, TokenWritten, Trace
from lr.types import Finish, Role, SamplingParams, Step

TokenBytes = Callable[[int], bytes]  # maps a token id to its exact bytes
WHITE_SPACE = b" \t\r\n\v\f"
BLANK_LINE = re.compile(rb"\n[ \t\r\v\f]*\n")


@runtime_checkable
class Segmenter(Protocol):
    """Reads the tokens of one step in order; each step gets a new one. To write your
    own rule, write a class like the one below and pass it as `Variant.segmenter`.
    """

    def feed(self, token: int) -> bool:
        """Take the next token; True if it completes the boundary."""
        ...


class BlankLineSegmenter:
    r"""Ends a step at the first blank line after a visible character: a step is a
    paragraph. Example: b"So", b" 4", b".\n", b"\nNext" end at the fourth token; leading
    b"\n\n" ends nothing. White space on the line (b"\n \n", b"\r\n\r\n") leaves it blank.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self.token_bytes = token_bytes
        self.visible = False
        self.carry = b""  # the last line feed and what follows, if it may become blank

    def feed(self, token: int) -> bool:
        text = self.token_bytes(token)  # none for a special token
        if not self.visible:
            text = text.lstrip(WHITE_SPACE)
            self.visible = bool(text)  # white space before a step ends nothing
        text = self.carry + text
        _, line_feed, line = text.rpartition(b"\n")  # b"a\n \n" is b"a\n ", b"\n", b""
        self.carry = line_feed + line if line_feed and not line.strip() else b""
        return BLANK_LINE.search(text) is not None  # it may lie across two tokens


@dataclass(eq=False)
class StepJob:
    """Step number `index`, to be written at the end of `branch`, at most `limit` tokens
    long.

    `stream` is the step's randomness: token t is drawn with the key (stream, t).
    `trace` records the step under the name `node`. `tokens`: those written so far.
    `finish` is None until the step is finished; a step that was `given_up` is never
    read. `begun`: tokens of the step that the branch ends in already. `logprobs`: of the
    drawn tokens under the raw logits, if the writer keeps them. `max_draft_tokens`: per
    round (None: the run's number). `segmenter` finds the boundary; the writer sets it.
    """

    branch: Branch
    index: int
    limit: int
    stream: Stream
    trace: Trace = field(default_factory=Trace)
    node: NodeId | None = None
    begun: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    given_up: bool = False
    logprobs: list[float] = field(default_factory=list)
    max_draft_tokens: int | None = None
    segmenter: Segmenter = field(init=False, repr=False)

    @property
    def room(self) -> int:
        """How many tokens may be proposed now. A round also writes one token of the
        model's own."""
        left = self.limit - len(self.tokens) - 1  # - 1: the model's own token
        return (
            left if self.max_draft_tokens is None else min(left, self.max_draft_tokens)
        )

    @property
    def step(self) -> Step:
        assert self.finish is not None
        return Step(tuple(self.tokens), self.finish)


def above(floor: float, tokens: Sequence[int], logprobs: Sequence[float]) -> bool:
    """Whether the root-scaled log-probabilities are not below `floor`."""
    return not root_scaled(logprobs) < floor  # NaN, of no tokens, goes on


@dataclass(frozen=True)
class WriterConfig:
    """How a model writes, as data that can be sent to another process.

    `segmenter` makes a step's segmenter from the function that maps a token id to its
    bytes. With `speculation` the tokens inside each step are drafted ahead; without it
    every token takes one forward. `keeps_logprobs`: keep the drawn tokens'
    log-probabilities under the raw logits.
    `goes_on`: a step is given up once this says no of its tokens and their `logprobs`.
    """

    role: Role
    sampling: SamplingParams
    eos_ids: frozenset[int]
    segmenter: Callable[[TokenBytes], Segmenter] = BlankLineSegmenter
    speculation: Speculation | None = None
    keeps_logprobs: bool = False
    goes_on: Callable[[Sequence[int], Sequence[float]], bool] | None = None


@dataclass
class StepWriter:
    """A model that writes steps. Jobs join (`begin`) and leave (`cancel`) between two
    forwards (`poll`). `live`: the unfinished jobs.
    """

    config: WriterConfig
    runner: Runner
    token_bytes: TokenBytes
    live: list[StepJob] = field(default_factory=list, init=False)

    def begin(self, job: StepJob) -> None:
        """Add a job for the next `poll`. One whose `begun` tokens end the step leaves at
        once."""
        job.segmenter = self.config.segmenter(self.token_bytes)
        self.live.append(job)  # before `_leave`, which removes it
        self._add(job, job.begun)
        if job.finish is not None:
            self._leave(job)

    def cancel(self, job: StepJob) -> None:
        """Stop writing a step; its branch stays as it is."""
        self.live = [live for live in self.live if live is not job]

    @property
    def busy(self) -> bool:
        return bool(self.live)

    @torch.inference_mode()
    def poll(self) -> None:
        """Run one forward or round for all jobs; finished ones leave."""
        if not self.live:
            return
        if self.config.speculation is None:
            # logits [v] each
            self._sample(self.runner.forward([job.branch for job in self.live]))
        else:
            self._speculate(self.config.speculation)
        goes_on = self.config.goes_on
        if goes_on is not None:
            for job in self.live:
                more = goes_on(job.tokens, job.logprobs)
                if not check_bool("step source", goes_on, more):
                    job.given_up = True
                    job.finish = job.finish or Finish.LENGTH  # never read
        # a copy: `_leave` changes the list
        for job in [job for job in self.live if job.finish is not None]:
            self._leave(job)

    def give(self, job: StepJob, tokens: Sequence[int]) -> None:
        """Let `tokens` be the step of a job that has just begun, up to where the step
        ends. If it does not end, the model writes the step."""
        segmenter = self.config.segmenter(self.token_bytes)
        eos_ids = self.config.eos_ids
        limited = tokens[: job.limit]  # a source may offer too much
        if any(token in eos_ids or segmenter.feed(token) for token in limited):
            # `_add` cuts the branch back if the step ends before `tokens` do.
            job.branch.extend(tokens)
            self._add(job, tokens)
            self._leave(job)

    def _leave(self, job: StepJob) -> None:
        self.live.remove(job)
        job.trace.record(StepWritten(self.config.role, job.index, job.step, job.node))

    def _speculate(self, speculation: Speculation) -> None:
        """Run one round of token-level speculation for all jobs."""
        contexts = [
            Context(job.branch, job.room, Draws(job.stream, len(job.tokens)))
            for job in self.live
        ]
        config = self.config
        ends = speculate(self.runner, config.sampling, speculation, contexts)
        for job, end in zip(self.live, ends, strict=True):
            proposal = end.proposal
            if not proposal.tokens:  # a plain token
                self._report(job, end.tokens[0], end.p_rows[0])
            offset = len(job.tokens)  # of the round's first token in its step
            num_written = self._add(job, end.tokens)
            if config.keeps_logprobs:
                job.logprobs += end.logprobs()[:num_written]  # without the surplus
            if proposal.tokens:
                detail = None
                if job.trace.detailed:
                    detail = round_detail(speculation.rule, end, offset)
                job.trace.record(
                    TokenRound(
                        config.role,
                        job.index,
                        proposed=len(proposal),
                        depth=max(proposal.depths()),
                        accepted=len(end.decision.nodes),
                        emitted=num_written,
                        node=job.node,
                        detail=detail,
                    )
                )

    def close(self, branch: Branch) -> None:
        """Close a branch of this writer's runner, and free what a drafter keeps for
        it."""
        if self.config.speculation is not None:
            self.config.speculation.drafter.forget([branch])
        self.runner.close(branch)

    def _sample(self, logits: Sequence[Tensor]) -> None:
        """Write one token per job, from the job's logits [v]."""
        config = self.config
        rows = torch.stack(tuple(logits))  # [b, v]
        # token t: (stream, t)
        keys = [job.stream.key(len(job.tokens)) for job in self.live]
        tokens = draw(rows, config.sampling, keys)
        if config.keeps_logprobs:
            logprobs = step_logprobs(rows, tokens)  # of the raw logits
            for job, logprob in zip(self.live, logprobs, strict=True):
                job.logprobs.append(logprob)
        if any(job.trace.detailed for job in self.live):
            probs = distribution(rows, config.sampling)
            for job, token, p_row in zip(self.live, tokens, probs, strict=True):
                self._report(job, token, p_row)
        for job, token in zip(self.live, tokens, strict=True):
            job.branch.append(token)  # uncomputed until the next forward
            self._add(job, (token,))

    def _report(self, job: StepJob, token: int, p_row: Tensor) -> None:
        """Record the next token, drawn from `p_row` [v], in a detailed trace."""
        if job.trace.detailed:
            role = self.config.role
            offset = len(job.tokens)
            p = p_row[token].item()
            job.trace.record(TokenWritten(role, job.node, job.index, offset, token, p))

    def _add(self, job: StepJob, tokens: Sequence[int]) -> int:
        """Add `tokens`, the last ones of its branch, to a step until it ends: at end of
        sequence, a boundary, or its limit. Cut the branch back to the step's end, the
        last token uncomputed. Returns how many tokens stay.

        Example: a round added "a b \n\n c" to a branch of 10 tokens. The step ends at
        the third, so the branch is cut back to 12 tokens and the boundary appended
        again: 12 of 13 are cached.
        """
        segmenter = job.segmenter
        count = 0  # tokens that stay
        while count < len(tokens) and job.finish is None:
            token = tokens[count]
            count += 1
            job.tokens.append(token)
            if token in self.config.eos_ids:
                job.finish = Finish.EOS  # eos has no bytes: no segmenter sees it
            elif check_bool("segmenter", segmenter.feed, segmenter.feed(token)):
                job.finish = Finish.BOUNDARY
            elif len(job.tokens) >= job.limit:
                job.finish = Finish.LENGTH
        # Cut off the surplus and the last token, then append that again, uncomputed.
        if count < len(tokens):
            self.runner.rewind(job.branch, len(job.branch) - len(tokens) + count - 1)
            job.branch.append(job.tokens[-1])
        return count
