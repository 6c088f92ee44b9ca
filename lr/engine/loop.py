"""The loop that answers: one piece of work after the other, in which draft and target
run alternately or at the same time:

    verdicts on complete pairs;  the draft, up to `draft_forwards` times;
    verdicts on complete pairs;  the target, once;  and again

A model in this thread runs one forward for everything that is being written for all
answers. A draft in a worker writes meanwhile, and the loop takes in what has arrived.
On one thread, another row in a forward of the target costs little, and the forward as
much as several of the draft. So the draft may run several steps ahead. The output does
not depend on who shares a forward, nor on timing: draws are keyed, rows are ragged, and
the scheduler ignores late events. The one exception is `late_drafts=reject`.

For a verifier that needs to know what the target makes of a draft step, the target
reads that step (`read_drafts`). Read next: `answer.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lr.engine.answer import Answer
from lr.engine.question import Question
from lr.engine.recorder import CacheRecorder
from lr.engine.runner import IdleRunners, ModelRunner
from lr.engine.side import DraftSide, GivenStep, TargetSide
from lr.engine.worker import DraftPart, DraftWorker
from lr.errors import OutOfBlocks, SettingError
from lr.kvcache.branch import Branch
from lr.result import AnswerStep
from lr.spec.checks import check_steps
from lr.spec.protocol import NodeId
from lr.spec.sampling import step_logprobs
from lr.spec.verifiers.base import NEEDS_READING, Requires, Verifier, verdicts_of
from lr.spec.write import StepWriter
from lr.trace import ForwardPass, SourceCall, VerifierCall
from lr.types import Role


class Loop:
    """One call of `Engine.serve`: alike answers that are `waiting` or in progress
    (`live`), and the writers that they share. `worker`: writes the draft's steps, if it
    is to. `blocks`: of each cache.
    """

    def __init__(
        self,
        answers: Sequence[Answer],
        concurrency: int,
        runners: Mapping[Role, IdleRunners],
        worker: DraftWorker | None,
        blocks: int,
        stack: ExitStack,
    ) -> None:
        question = answers[0].question
        options = question.options
        self.waiting = deque(answers)  # for room in the cache
        self.concurrency = concurrency
        self.runners = runners
        token_bytes = question.codec.token_bytes
        self.blocks = blocks
        # the cache's events belong to an answer that is alone here
        self.records_cache = answers[0].trace.detailed and concurrency == 1
        self.stack = stack  # gives back what was borrowed
        self.live: list[Answer] = []  # in progress
        self.borrowed: dict[str, ModelRunner] = {}
        self.verifier = question.verifier
        self.worker = worker
        self.draft_writer: StepWriter | None = None  # without a worker
        if worker is not None:
            self._begin(worker, question)
        elif options.looks_ahead:
            runner = self._borrow("draft", Role.DRAFT, 1 + options.drafts_tokens)
            config = question.writer_config(Role.DRAFT)
            self.draft_writer = StepWriter(config, runner, token_bytes)
        self.draft_forwards = options.draft_forwards
        self.forwards_left = self.draft_forwards  # of the draft, until the target's
        # By now the draft's worker has recorded its CUDA graphs: two must not record at
        # once.
        drafter_runner = None
        # The draft model proposes tokens on branches that follow the target's. They share
        # the cache of the steps that it writes, unless that is in another process.
        if options.drafts_tokens:
            drafter_runner = (
                self._borrow("drafter", Role.DRAFT)
                if self.draft_writer is None
                else self.draft_writer.runner
            )
        runner = self._borrow("target", Role.TARGET)
        config = question.writer_config(Role.TARGET, drafter_runner)
        self.target_writer = StepWriter(config, runner, token_bytes)
        runner.watch(question.watched_layer(config.speculation))
        stack.callback(self.close)

    def _begin(self, worker: DraftWorker, question: Question) -> None:
        config = question.writer_config(Role.DRAFT)
        variant = question.variant
        source = variant.step_source
        gives_up = source is not None and source.gives_up
        if variant.segmenter or gives_up or (variant.rule and config.speculation):
            raise SettingError(
                "the draft's worker runs no segmenter, rule or goes_on of a variant; use "
                "driver lockstep."
            )
        # waits until the draft is ready
        worker.begin(config, self.blocks, detailed=self.records_cache)
        self.stack.callback(worker.end)

    def _borrow(self, name: str, role: Role, uses: int = 1) -> ModelRunner:
        runners = self.runners[role]
        runner = runners.lend(self.blocks, uses)
        runner.observer = partial(self.passed, role)  # every forward is recorded
        self.borrowed[name] = runner
        self.stack.callback(runners.put_back, runner)
        return runner

    def admit(self) -> None:
        """Begin the answers for which the cache has room; each reserves what it may
        need. Raises `OutOfBlocks` for one that needs more than the cache has."""
        while self.waiting and len(self.live) < self.concurrency:
            needed = self.waiting[0].question.blocks
            in_use = sum(answer.question.blocks for answer in self.live)
            if needed > self.blocks:
                raise OutOfBlocks(needed, self.blocks, self.blocks)
            if in_use + needed > self.blocks:
                break
            self._admit(self.waiting.popleft())

    def _admit(self, answer: Answer) -> None:
        """Begin an answer. Its clock starts now."""
        question = answer.question
        trace = answer.trace
        trace.start = trace.clock()
        if self.records_cache:
            for name, runner in self.borrowed.items():
                runner.cache.pool.restart()  # block ids from 0: they are drawn
                runner.cache.observer = CacheRecorder(trace, name)
        draft: DraftPart | None = None
        if self.worker is not None:
            draft = self.worker.side(trace, question.draft_plan())
        elif self.draft_writer is not None:
            draft = DraftSide(self.draft_writer, trace, question.draft_plan())
        target = TargetSide(
            self.target_writer,
            trace,
            question.prompt,
            question.options.width,
            question.role_stream(Role.TARGET),
        )
        self.live.append(answer)
        answer.begin(target, draft)

    def hand_over(self) -> Iterator[tuple[Answer, AnswerStep]]:
        """The steps that were decided since the last call. Complete or stopped answers
        leave first."""
        for answer in list(self.live):
            if answer.scheduler.done or answer.stopped:
                self._remove(answer)
            for emitted in answer.emitted[len(answer.steps) :]:
                complete = len(answer.steps) + 1 == len(answer.emitted)
                last = answer.scheduler.done and complete
                yield answer, answer.hand_over(emitted, last=last)

    def _remove(self, answer: Answer) -> None:
        self.live.remove(answer)
        answer.end()

    def close(self) -> None:
        """Stop all work and free all branches."""
        for answer in list(self.live):
            self._remove(answer)

    def step(self) -> None:
        """Do one piece of work: report finished steps, judge the complete pairs, or run
        a model once. While the target has nothing to do, a worker is waited for."""
        self._ask_step_source()
        if self.worker is not None:
            self.worker.poll(wait=False)
        if self._report_steps():  # the scheduler may have asked for something else
            return
        draft = self.draft_writer
        drafting = draft is not None and draft.busy and self.forwards_left > 0
        begins = self.forwards_left == self.draft_forwards  # the target has just run
        if (begins or not drafting) and self._judge():  # verdicts first
            return
        if drafting and draft is not None:
            self.forwards_left -= 1
            draft.poll()
            self._report_steps()
            return
        self.forwards_left = self.draft_forwards
        if self.target_writer.busy:
            self.target_writer.poll()
            self._report_steps()
        elif self.worker is not None and self.worker.busy:
            self.worker.poll(wait=True)  # nothing to do here until it reports
        elif draft is None or not draft.busy:
            assert all(answer.scheduler.done for answer in self.live), "nothing goes on"

    def _ask_step_source(self) -> None:
        """Let a step source write where draft steps have begun, in all answers by one
        call."""
        due = [(answer, node) for answer in self.live for node in answer.places]
        if not due:
            return
        question = self.live[0].question
        source = question.variant.step_source
        assert source is not None
        places = [answer.places.pop(node) for answer, node in due]
        started = time.perf_counter()
        steps = source.write(places)
        seconds = (time.perf_counter() - started) / len(places)  # a share each
        check_steps(source, steps, len(places), question.codec.vocab_size)
        for (answer, node), step in zip(due, steps, strict=True):
            answer.trace.record(SourceCall(seconds))
            if step and answer.draft_side is not None:  # else the draft model writes it
                answer.draft_side.carry_out(GivenStep(node, tuple(step)))

    def _report_steps(self) -> bool:
        """Report finished steps of all answers. Whether there were any."""
        reported = [answer.report_steps() for answer in self.live]
        return any(reported)

    def _judge(self) -> bool:
        """Judge the waiting pairs of all answers in one batch, and report the verdicts
        one by one: each may cancel others. Returns whether there were any."""
        waiting = [(answer, node) for answer in self.live for node in answer.pairs]
        if not waiting:
            return False
        verifier = self.verifier
        assert isinstance(verifier, Verifier), "nothing is drafted without one"
        # The target's own step is written already where the verifier compares.
        compares = Requires.TARGET_STEP in verifier.requires
        logits_before = {}
        if verifier.requires & NEEDS_READING:
            logits_before = read_drafts(waiting)
        started = time.perf_counter()
        passes_before = verifier.passes  # of its own models
        pairs = [answer.pairs[node] for answer, node in waiting]
        verdicts = verdicts_of(verifier, pairs)
        seconds = (time.perf_counter() - started) / len(waiting)  # a share each
        # counted once per answer
        passes = {answer: verifier.passes - passes_before for answer, _ in waiting}
        for (answer, node), verdict in zip(waiting, verdicts, strict=True):
            call = VerifierCall(1, seconds, passes.pop(answer, 0))
            answer.trace.record(call)
            corrects = not (verdict.aligned or compares or verdict.keep)
            before = logits_before.get((answer, node))
            # the node may be cancelled by now
            if corrects and before is not None and node in answer.pairs:
                answer.target_side.begin_correction(node, before)
            answer.report_verdict(node, verdict)
        return True

    def passed(self, role: Role, branches: int, tokens: int, seconds: float) -> None:
        """Record a forward that served all live answers: each trace gets its share of
        the time."""
        for answer in self.live:
            share = seconds / len(self.live)
            answer.trace.record(ForwardPass(role, branches, tokens, share))


def read_drafts(
    waiting: Sequence[tuple[Answer, NodeId]],
) -> dict[tuple[Answer, NodeId], Tensor]:
    """Let the target read draft steps, and store the results in their pairs. Returns
    the logits [t, v] before each token of these steps.

    This is one forward, the prefill that the target must do anyway.

    Example: the prefix ends in "x", the draft step is "a b c". The forward reads x a b
    c. The logits after x, a, b are those of a, b, c. Then the branch is cut back by one,
    since the last token of a branch must be uncomputed.
    """
    runner = waiting[0][0].target_side.writer.runner  # one for all answers
    branches: list[Branch] = []
    num_rows: list[int] = []  # before each token of the step, and after the last: t + 1
    try:
        for answer, node in waiting:
            side = answer.target_side
            parent = side.parent(node)
            side.reach(parent)  # a draft step may be far ahead of the target
            prefix = answer.pairs[node].prefix
            # after the prefix's last token come the logits of the step's first
            tokens = (prefix[-1], *answer.pairs[node].draft_step.tokens)
            branches.append(side.fork(parent, len(prefix) - 1, tokens))
            num_rows.append(len(tokens))
        readings = runner.forward(branches, num_rows)  # [t + 1, v] each
    except BaseException:
        for branch in branches:
            runner.close(branch)
        raise
    states: Sequence[Tensor | None] = [None] * len(branches)
    if runner.hidden:
        states = torch.cat(runner.hidden).split(num_rows)
    logits_before = {}
    for (answer, node), branch, logits, hidden in zip(
        waiting, branches, readings, states, strict=True
    ):
        pair = answer.pairs[node]
        tokens = pair.draft_step.tokens
        runner.rewind(branch, len(branch) - 1)
        branch.append(tokens[-1])
        if node in answer.target_side.branches:
            runner.close(branch)
        else:  # keep the branch: the tokens are computed
            answer.target_side.adopt(node, branch)
        logits_before[answer, node] = logits[:-1]  # [t, v]
        answer.pairs[node] = replace(
            pair,
            logprobs=step_logprobs(logits[:-1], tokens),
            logits=logits if Requires.LOGITS in answer.question.requires else None,
            hidden=hidden,
        )
    return logits_before
