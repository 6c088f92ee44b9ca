"""The engine keeps models, their caches and CUDA graphs, and runs the loop that answers
questions with them.

    engine = reasoner.engine
    answers = [reasoner.run(question) for question in questions]
    for answer, step in engine.serve(answers, concurrency=4):
        ...

`Engine.serve` answers one question or many by one `Loop`, in which draft and target run
alternately or at the same time:

    verdicts on complete pairs;  the draft, up to `draft_forwards` times;
    verdicts on complete pairs;  the target, once;  and again

A model in this thread runs one forward for everything that is being written for all
answers. A draft in a worker writes meanwhile, and the loop takes in what has arrived.
On one thread, another row in a forward of the target costs little, and the forward as
much as several of the draft. So the draft may run several steps ahead. The output does
not depend on who shares a forward, nor on timing: draws are keyed, rows are ragged, and
the scheduler ignores late events. The one exception is `late_drafts=reject`. Read next:
`answer.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lr.engine.answer import Answer, Steps
from lr.engine.loading import DraftCheckpoint, Loader
from lr.engine.readings import begin_correction, read_drafts
from lr.engine.recorder import CacheRecorder
from lr.engine.runner import ModelRunner, Runners, room
from lr.engine.side import DraftPart, DraftSide, Side
from lr.engine.worker import DraftWorker, Parts
from lr.errors import OutOfBlocks, SettingError
from lr.model.codec import Codec
from lr.model.device import can_share_weights, is_one_gpu, own_stream
from lr.model.pack import is_packed
from lr.model.qwen import CausalLM
from lr.options import GenerateOptions, Mode
from lr.spec.verifiers.base import Requires, Verifier, verdicts_of
from lr.spec.write import StepWriter, WriterConfig
from lr.trace import ForwardPass, VerifierCall
from lr.types import Role, require

ROUND = 256  # blocks; CUDA caches are rounded up, so a longer question can use cache and graphs too

OWN: dict[str, Any] = {
    "sample": 0,
    "seed": 0,
    "max_tokens": None,
    "system": None,
    "enable_thinking": None,
}
"""The options in which answers that are served together may differ."""


@dataclass(eq=False)
class Engine:
    """The models of a `Reasoner` and what runs them; answers questions.

    The draft's tokenizer knows only ids below `known_tokens`. `worker` writes the
    drafts of driver "overlapped"; if it is a thread, with the caches `beside`.
    `num_blocks`: as in `Reasoner`. `loader` loads further models, such as a
    judge. `names`: those by which target, draft, judge and verifier were loaded.
    """

    codec: Codec
    target: CausalLM
    draft: CausalLM | None = None
    known_tokens: int | None = None
    num_blocks: int | None = None
    worker: DraftWorker | None = None
    loader: Loader = field(default_factory=Loader)
    names: Mapping[str, str | Path | None] = field(default_factory=dict)
    runners: dict[Role, Runners] = field(init=False)
    beside: Runners | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        vocab_size = self.codec.vocab_size
        target = Runners(self.target, vocab_size, None, self.num_blocks)
        self.runners = {Role.TARGET: target}
        if self.draft is None:
            return
        drafts = Runners(self.draft, vocab_size, self.known_tokens, self.num_blocks)
        self.runners[Role.DRAFT] = drafts
        self.worker = self.worker or self._new_worker(self.draft, drafts)

    def _new_worker(self, draft: CausalLM, drafts: Runners) -> DraftWorker:
        """A process, which reads these weights if it can and else loads the checkpoint
        too; a thread if the draft has no checkpoint, or shares a GPU with the target."""
        name = self.names.get("draft")
        token_bytes = self.codec.token_bytes
        if name is None or is_one_gpu(draft.device, self.target.device):
            self.beside = beside = replace(drafts, idle=[])
            return DraftWorker(partial(_given, (beside, token_bytes)), as_thread=True)
        weights = draft.state_dict().values()
        size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
        can_share = can_share_weights(draft.device, size) and not is_packed(draft)
        checkpoint = DraftCheckpoint(
            self.loader,
            name,
            draft.device,
            model=draft if can_share else None,
            pieces=tuple(map(token_bytes, range(self.codec.vocab_size))),
            known_tokens=self.known_tokens,
            num_blocks=self.num_blocks,
        )
        return DraftWorker(checkpoint)

    @property
    def usual_mode(self) -> Mode:
        """The mode of an answer whose options name none: what the target's checkpoint
        names, else the fastest that the models allow."""
        if self.draft is None:
            return "ar"
        stated: Mode | None = self.codec.generation_config.get("mode")
        return stated or "lr+sd"

    def overlaps(self, options: GenerateOptions) -> bool:
        """Whether the draft writes in the worker."""
        return options.driver == "overlapped" and options.looks_ahead

    def serve(self, answers: Sequence[Answer], concurrency: int = 1) -> Steps:
        """Answer questions, at most `concurrency` at a time, and yield each step once
        it is decided. The answers share forwards, and may differ only in question,
        sample and length. The tokens of an answer do not depend on the others. At the
        end, or on an error, all caches are given back.

        An answer waits until its cache blocks are free. Raises `OutOfBlocks` instead of
        starting an answer that needs more than the cache has.
        """
        require(concurrency >= 1, "concurrency", concurrency, "a whole number >= 1")
        if not answers:
            return
        require_alike(answers)
        theirs = answers[0].engine is self
        require(theirs, "answers", "those of another reasoner", "answers of this one")
        blocks = self.cache_size(answers, concurrency)
        waiting = deque(answers)
        with ExitStack() as stack:
            stream = stack.enter_context(own_stream(self.target.device))
            with stream():
                loop = Loop(self, answers[0], blocks, stack, alone=concurrency == 1)
            while waiting or loop.live:
                with stream():
                    # 1. Begin the answers for which the cache has room.
                    while waiting and len(loop.live) < concurrency:
                        in_use = sum(answer.blocks for answer in loop.live)
                        if waiting[0].blocks > blocks:
                            raise OutOfBlocks(waiting[0].blocks, blocks, blocks)
                        if in_use + waiting[0].blocks > blocks:
                            break
                        loop.add(waiting.popleft())
                    # 2. Do one piece of work.
                    loop.step()
                # 3. Hand over the steps that were decided.
                for answer in list(loop.live):
                    if answer.scheduler.done or answer.stopped:
                        loop.remove(answer)
                    for emitted in answer.emitted[len(answer.steps) :]:
                        complete = len(answer.steps) + 1 == len(answer.emitted)
                        last = answer.scheduler.done and complete
                        yield answer, answer.hand_over(emitted, last=last)

    def cache_size(self, answers: Sequence[Answer], concurrency: int) -> int:
        """How many blocks each cache is to have: `num_blocks`, or what the answers
        need, on CUDA at most what fits. Raises `OutOfBlocks` if they are too few for
        the first answer."""
        largest = max(answer.blocks for answer in answers)
        blocks = largest * min(concurrency, len(answers))
        if self.num_blocks is not None:
            blocks = self.num_blocks
        elif (fitting := room(self._caches(answers[0].options))) is not None:
            rounded = -(-blocks // ROUND) * ROUND
            blocks = min(rounded if 16 * rounded <= fitting else blocks, fitting)
        if answers[0].blocks > blocks:
            raise OutOfBlocks(answers[0].blocks, blocks, blocks)
        return blocks

    def _caches(self, options: GenerateOptions) -> list[Runners]:
        """The caches that an answer with these options uses. A worker's process has one
        like the draft's here."""
        caches = [self.runners[Role.TARGET]]
        if options.looks_ahead:
            beside = self.beside if self.overlaps(options) else None
            caches.append(beside or self.runners[Role.DRAFT])
        if options.drafts_tokens:
            caches.append(self.runners[Role.DRAFT])
        return caches

    def close(self) -> None:
        """End the draft's worker, if any, and free the caches with their CUDA graphs."""
        if self.worker is not None:
            self.worker.close()
        for runners in (self.beside, *self.runners.values()):
            if runners is not None:
                runners.end()
        self.target.close()


def _given(parts: Parts) -> Parts:
    """The parts of a worker that shares those here; a lambda could not be pickled."""
    return parts


def require_alike(answers: Sequence[Answer]) -> None:
    """Raise `SettingError` unless the answers can share verifier and writers."""
    shared = [
        (answer.engine, answer.verifier, answer.variant, replace(answer.options, **OWN))
        for answer in answers
    ]
    alike = all(each == shared[0] for each in shared)
    expected = "of one verifier, variant and options, except " + ", ".join(OWN)
    require(alike, "answers", "a list of unlike ones", expected)


class Loop:
    """One call of `Engine.serve`: the answers in progress, `live`, and the writers that
    they share. `alone`: only one answer at a time. `blocks`: of each cache.
    """

    def __init__(
        self,
        engine: Engine,
        answer: Answer,
        blocks: int,
        stack: ExitStack,
        *,
        alone: bool,
    ) -> None:
        options = answer.options
        self.engine = engine
        self.blocks = blocks
        # Events of the cache belong to one answer.
        self.records_cache = answer.trace.detailed and alone
        self.stack = stack  # gives back what was borrowed
        self.live: list[Answer] = []
        self.borrowed: dict[str, ModelRunner] = {}
        self.verifier = answer.verifier
        self.worker: DraftWorker | None = None  # writes the draft's steps, or else
        self.draft: StepWriter | None = None  # this one, here
        if engine.overlaps(options):
            self.worker = self._begin_worker(answer)
        elif options.looks_ahead:
            self.draft = self._writer(answer.writer_config(Role.DRAFT))
        self.draft_forwards = options.draft_forwards
        self.forwards_left = self.draft_forwards  # of the draft, until the target's
        # By now the draft's worker has recorded its CUDA graphs: two must not record at
        # once.
        drafter_runner = None
        # The draft model proposes tokens on branches that follow the target's. They have
        # a cache of their own: that of the steps it writes may be in another process.
        if options.drafts_tokens:
            drafter_runner = self._borrow("drafter", Role.DRAFT)
        config = answer.writer_config(Role.TARGET, drafter_runner)
        self.target = self._writer(config)
        stack.callback(self.close)

    def _begin_worker(self, answer: Answer) -> DraftWorker:
        worker = self.engine.worker
        assert worker is not None, "there is a draft"
        config = answer.writer_config(Role.DRAFT)
        variant = answer.variant
        if variant.segmenter is not None or (variant.rule and config.speculation):
            raise SettingError(
                "the draft's worker runs no segmenter or rule of a variant; use driver "
                "lockstep."
            )
        worker.begin(config, self.blocks, detailed=self.records_cache)
        self.stack.callback(worker.end)
        return worker

    def _writer(self, config: WriterConfig) -> StepWriter:
        runner = self._borrow(config.role.value, config.role)
        return StepWriter(config, runner, self.engine.codec.token_bytes)

    def _borrow(self, name: str, role: Role) -> ModelRunner:
        runners = self.engine.runners[role]
        runner = runners.lend(self.blocks)
        runner.observer = partial(self.passed, role)
        self.borrowed[name] = runner
        self.stack.callback(runners.take_back, runner)
        return runner

    def add(self, answer: Answer) -> None:
        """Begin an answer. Its clock starts now."""
        answer.trace.start = answer.trace.clock()
        if self.records_cache:
            for name, runner in self.borrowed.items():
                runner.cache.pool.restart()
                runner.cache.observer = CacheRecorder(answer.trace, name)
        draft: DraftPart | None = None
        if self.worker is not None:
            draft = self.worker.side(answer.trace, answer.draft_plan())
        elif self.draft is not None:
            draft = DraftSide(self.draft, answer.trace, answer.draft_plan())
        self.live.append(answer)
        answer.begin(Side(self.target, answer.trace), draft)

    def remove(self, answer: Answer) -> None:
        """Stop answering, whether the answer is complete or not."""
        self.live.remove(answer)
        answer.end()

    def close(self) -> None:
        """Stop all work and free all branches."""
        for answer in list(self.live):
            self.remove(answer)

    def step(self) -> None:
        """Do one piece of work: report finished steps, judge the complete pairs, or run
        a model once. While the target has nothing to do, a worker is waited for."""
        if self.worker is not None:
            self.worker.poll(wait=False)
        if self._take():
            return
        draft = self.draft
        drafting = draft is not None and draft.busy and self.forwards_left > 0
        begins = self.forwards_left == self.draft_forwards
        if (begins or not drafting) and self._judge():
            return
        if drafting and draft is not None:
            self.forwards_left -= 1
            draft.poll()
            self._take()
            return
        self.forwards_left = self.draft_forwards
        if self.target.busy:
            self.target.poll()
            self._take()
        elif self.worker is not None and self.worker.busy:
            self.worker.poll(wait=True)
        elif draft is None or not draft.busy:
            assert all(answer.scheduler.done for answer in self.live), "nothing goes on"

    def _take(self) -> bool:
        """Report finished steps. Whether there were any."""
        took = [answer.take() for answer in self.live]
        return any(took)

    def _judge(self) -> bool:
        """Judge the waiting pairs of all answers in one batch, and report the verdicts
        one by one: each may cancel others. Returns whether there were any."""
        waiting = [(answer, node) for answer in self.live for node in answer.pairs]
        if not waiting:
            return False
        verifier = self.verifier
        assert isinstance(verifier, Verifier), "nothing is drafted without one"
        compares = Requires.TARGET_STEP in verifier.requires
        logits_before = {}
        if Requires.TARGET_LOGPROBS in verifier.requires:
            logits_before = read_drafts(waiting)
        started = time.perf_counter()
        passes_before = verifier.passes
        pairs = [answer.pairs[node] for answer, node in waiting]
        verdicts = verdicts_of(verifier, pairs)
        seconds = (time.perf_counter() - started) / len(waiting)
        passes = {answer: verifier.passes - passes_before for answer, _ in waiting}
        for (answer, node), verdict in zip(waiting, verdicts, strict=True):
            call = VerifierCall(1, seconds, passes.pop(answer, 0))
            answer.trace.record(call)
            corrects = not (verdict.aligned or compares)
            before = logits_before.get((answer, node))
            if corrects and before is not None and node in answer.pairs:
                begin_correction(answer, node, before)
            answer.take_verdict(node, verdict)
        return True

    def passed(self, role: Role, branches: int, tokens: int, seconds: float) -> None:
        """Record a forward that served all live answers: each trace gets its share of
        the time."""
        for answer in self.live:
            share = seconds / len(self.live)
            answer.trace.record(ForwardPass(role, branches, tokens, share))
