"""The engine keeps models, their caches and CUDA graphs, and answers questions with
them.

`Engine.serve` answers one question or many: it borrows a runner per model, makes the
writers and the loop, and starts each request when the cache has room for it. Read next:
`loop.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

import torch

from lr.engine.drafts import LocalDrafts, Streams
from lr.engine.loop import READINGS, Loop, Part
from lr.engine.request import Request
from lr.engine.runner import ModelRunner, Runners, num_kv_blocks_needed, room
from lr.engine.worker import DraftWorker, RemoteDrafts, RemoteRun
from lr.errors import CheckpointError, ContextError, OutOfBlocks, SettingError
from lr.model.codec import Codec
from lr.model.device import own_stream
from lr.model.qwen import CausalLM
from lr.options import GenerateOptions
from lr.registry import find
from lr.result import AnswerStep, Result
from lr.rng import Stream
from lr.spec.acceptance import RULES
from lr.spec.drafters import SourcedSteps, make_drafter
from lr.spec.protocol import Limits, Schedule, SchedulerConfig, first_aligned
from lr.spec.runner import Runner
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.token_sd import DrafterSetup, Speculation
from lr.spec.variant import Controller, Variant, apply_settings
from lr.spec.verifiers.base import Requires, Verifier
from lr.spec.write import (
    BlankLineSegmenter,
    Segmenter,
    StepWriter,
    TokenBytes,
    WriterConfig,
)
from lr.trace import Trace, Warned
from lr.types import Coupling, EmittedStep, Role, SamplingParams, require

LONGEST_ANSWER = 32768  # tokens, if `max_tokens` is not given
ROUND = 256  # blocks; CUDA caches are rounded up, so a longer question can use cache and graphs too


class ModelElsewhere(Protocol):
    """A target or draft outside this process, say on a server. `context`: its length in
    tokens."""

    context: int

    def prepare(self, run: Run) -> None:
        """Raise `SettingError` if the model lacks something that the run needs."""

    def writer(self, config: WriterConfig) -> StepWriter:
        """A writer that sends requests to the model."""


Steps: TypeAlias = (
    "Iterator[tuple[Run, AnswerStep]]"  # each step, once decided, with its run
)


@dataclass(eq=False)
class Models:
    """What a `Reasoner` has loaded. A target or draft outside this process is a
    `ModelElsewhere`; the types below do not say so, because most code needs the network
    itself.

    The draft's tokenizer knows only ids below `known_tokens`. `worker` writes the
    drafts of driver "overlapped". `names`: those by which target, draft, judge and
    verifier were loaded. `judge`: the verifier's own model, if it is in this process.
    `num_blocks`: as in `Reasoner`.
    """

    codec: Codec
    target: CausalLM
    draft: CausalLM | None
    known_tokens: int
    num_blocks: int | None
    worker: DraftWorker | None = None
    names: Mapping[str, str | None] = field(default_factory=dict)
    judge: CausalLM | None = None

    @property
    def here(self) -> dict[Role, CausalLM]:
        """Those of target and draft that are in this process."""
        both = {Role.TARGET: self.target, Role.DRAFT: self.draft}
        return {
            role: model for role, model in both.items() if isinstance(model, CausalLM)
        }


class Engine:
    """Answers questions with the models of a `Reasoner`. `runners`: for those in this
    process."""

    def __init__(self, models: Models) -> None:
        self.models, self.runners = models, dict[Role, Runners]()
        for role, model in models.here.items():
            known = models.known_tokens if role is Role.DRAFT else None
            self.runners[role] = Runners(
                model, models.codec.vocab_size, known, models.num_blocks
            )

    def forget_caches(self) -> None:
        """Free the idle caches and CUDA graphs; the next answer makes new ones."""
        for runners in self.runners.values():
            runners.end()

    def serve(self, runs: Sequence[Run], concurrency: int = 1) -> Steps:
        """Answer the runs, at most `concurrency` at a time, and yield each step once it
        is decided. The runs share forwards, and may differ only in question, sample and
        length. The tokens of a run do not depend on the other runs. At the end, or on
        an error, all caches are given back.

        A run waits until its cache blocks are free; on CUDA a cache has at most the
        blocks that fit (`room`). Raises `OutOfBlocks` instead of starting a run that
        needs more than the cache has.
        """
        require(concurrency >= 1, "concurrency", concurrency, "a whole number >= 1")
        if not runs:
            return
        most = max(run.blocks for run in runs) * min(concurrency, len(runs))
        if (
            self.models.num_blocks is None
            and (fits := room(self._caches(runs[0]))) is not None
        ):
            rounded = -(-most // ROUND) * ROUND
            most = min(rounded if 16 * rounded <= fits else most, fits)
        space = self.models.num_blocks or most
        devices = [model.device for model in self.models.here.values()] or [
            torch.device("cpu")
        ]
        with ExitStack() as stack:
            stream = stack.enter_context(own_stream(devices[0]))
            with stream():
                serving = Serving(self, runs[0], most, concurrency, stack)
            stack.callback(serving.loop.close)
            waiting, live = deque(runs), dict[Run, Request]()
            while waiting or live:
                with stream():
                    while waiting and len(live) < concurrency:
                        run = waiting[0]
                        if run.blocks > space:
                            raise OutOfBlocks(run.blocks, space, space)
                        if sum(one.blocks for one in live) + run.blocks > space:
                            break
                        live[waiting.popleft()] = request = serving.request(run)
                        serving.loop.add(request)
                    serving.loop.step()
                for run, request in list(live.items()):
                    if request.done or run.stopped:
                        del live[run]
                        serving.loop.remove(request)
                        for warning in serving.warnings():
                            run.trace.record(warning)
                    for emitted in request.emitted[len(run.steps) :]:
                        yield run, run.take(emitted)

    def _caches(self, run: Run) -> list[Runners]:
        """The caches that an answer with this run's options uses, of models in this
        process."""
        here, options, worker = self.models.here, run.options, self.models.worker
        found = [self.runners[Role.TARGET]] if Role.TARGET in here else []
        if Role.DRAFT in here:
            draft = self.runners[Role.DRAFT]
            threaded = (
                worker is not None
                and worker.as_thread
                and options.driver == "overlapped"
            )
            writing = worker.load()[0] if worker is not None and threaded else draft
            found += [writing] * options.looks_ahead + [draft] * options.drafts_tokens
        return found


class Serving:
    """The runners, writers and loop of one call of `serve`; `run`: any of its runs."""

    def __init__(
        self, engine: Engine, run: Run, blocks: int, concurrency: int, stack: ExitStack
    ) -> None:
        self.engine, self.blocks, self.stack = engine, blocks, stack
        self.alone = concurrency == 1
        self.borrowed: dict[str, ModelRunner] = {}
        models, options = engine.models, run.options
        speculates = options.drafts_tokens and Role.DRAFT in models.here
        self.drafts: Callable[[Trace], LocalDrafts | RemoteDrafts] | None = None
        draft: Part | None = None
        if options.looks_ahead:
            config = run.writer_config(Role.DRAFT)
            if options.driver == "overlapped" and models.worker is not None:
                detailed, file = run.detailed and self.alone, run.variant.file
                remote = models.worker.begin(
                    config, blocks, detailed=detailed, file=file
                )
                stack.callback(remote.end)
                draft, self.drafts = remote, remote.side
            else:
                assert models.draft is not None
                draft = self._writer(config, models.draft)
                self.drafts = partial(LocalDrafts, draft)
        # By now the draft's worker has recorded its CUDA graphs: two must not record at
        # once.
        draft_runner = self._borrow("drafter", Role.DRAFT) if speculates else None
        self.target = self._writer(
            run.writer_config(Role.TARGET, draft_runner), models.target
        )
        verifier = None if isinstance(run.verifier, str) else run.verifier
        self.loop = Loop(self.target, draft, verifier, options.draft_forwards)
        self.asked: list[tuple[Role, ModelRunner]] = []  # for verifiers and other parts
        for role, model in models.here.items():
            for runner in model.asked:
                self.asked.append((role, runner))
                runner.observer = partial(self.loop.passed, role)
                stack.callback(setattr, runner, "observer", None)

    def request(self, run: Run) -> Request:
        """The request of a run, not yet started. The run's clock starts now."""
        run.trace.start = run.trace.clock()
        run.alone = self.alone
        if run.detailed and self.alone:
            for name, runner in self.borrowed.items():
                runner.cache.pool.restart()
                recorder = find("lr.engine.recorder:CacheRecorder")
                runner.cache.observer = recorder(run.trace, name)
        drafts = None if self.drafts is None else self.drafts(run.trace)
        return run.request(self.target, drafts)

    def warnings(self) -> list[Warned]:
        """CUDA graphs that could not be recorded, which makes the answers slower."""
        named = [
            *self.borrowed.items(),
            *((role.value, runner) for role, runner in self.asked),
        ]
        if self.drafts is not None and (judge := self.engine.models.judge) is not None:
            named += [("judge", runner) for runner in judge.asked]
        failures = [(name, runner.failure) for name, runner in named]
        if isinstance(self.loop.draft, RemoteRun):
            failures.append(("draft", self.loop.draft.failure))
        return [
            Warned(f"{name}: {why}") for name, why in dict.fromkeys(failures) if why
        ]

    def _borrow(self, name: str, role: Role) -> ModelRunner:
        runners = self.engine.runners[role]
        runner = self.borrowed[name] = runners.lend(self.blocks)
        runner.observer = lambda *seen: self.loop.passed(role, *seen)
        self.stack.callback(runners.take_back, runner)
        return runner

    def _writer(
        self, config: WriterConfig, model: CausalLM | ModelElsewhere
    ) -> StepWriter:
        if isinstance(model, CausalLM):
            runner = self._borrow(config.role.value, config.role)
            return StepWriter(config, runner, self.engine.models.codec.token_bytes)
        writer = model.writer(config)
        self.stack.callback(writer.end)
        return writer


class Run:
    """A question and its answer so far. Iterate to get each step once it is decided, or
    call `finish`; both extend `steps` and `trace`. `serve` answers the run (None:
    `Engine.serve`).
    """

    def __init__(
        self,
        engine: Engine,
        verifier: str | Verifier,
        question: str,
        options: GenerateOptions,
        variant: Variant | None = None,
        *,
        detailed: bool = False,
        serve: Callable[[Run], Steps] | None = None,
    ) -> None:
        if isinstance(question, str) and not question.strip():
            raise SettingError("the question is empty; give a question.")
        models, codec = engine.models, engine.models.codec
        self.engine, self.models, self.question = engine, models, question
        self.detailed, self.trace = detailed, Trace(detailed=detailed)
        self.given = self.variant = Variant() if variant is None else variant
        options = apply_settings(options, self.variant)
        self.controller: Controller | None = self.variant.make("controller")
        own = self.variant.verifier
        self.verifier = verifier if own is None else own
        self.options = options
        self.alone = True  # no other answer shares the forwards and caches
        self.stopped = False  # set it to end the answer after the steps so far
        self.steps: list[AnswerStep] = []
        thinking = options.enable_thinking
        self.prompt = codec.chat(
            question, system=options.system, enable_thinking=thinking
        )
        self.sampling = options.sampling(recommended_sampling(codec))
        if options.needs_draft and models.draft is None:
            raise SettingError(
                f"mode {options.mode!r} needs a draft model here; give a draft or use mode 'ar'."
            )
        contexts = []
        for model in (models.target, models.draft if options.needs_draft else None):
            if isinstance(model, CausalLM):
                contexts.append(model.config.max_position_embeddings)
            elif model is not None:
                model.prepare(self)
                contexts.append(model.context)
        length, context = len(self.prompt), min(contexts)
        if length >= context:
            raise ContextError(
                f"the prompt has {length} tokens and the context is {context}, so there is no room "
                "for an answer. Shorten the question or the system message."
            )
        most = min(context - length, options.max_tokens or LONGEST_ANSWER)
        self.limits = Limits(
            most, options.max_step_tokens, options.ignore_half_sentence
        )
        reads = not isinstance(self.verifier, str) and bool(
            self.verifier.requires & READINGS
        )
        self.blocks = num_kv_blocks_needed(options, length + most, reads=reads)
        if (
            options.driver == "overlapped"
            and options.looks_ahead
            and models.worker is not None
        ):
            models.worker.start()  # before the answer's clock starts
        self._serving = engine.serve([self]) if serve is None else serve(self)
        self._request: Request | None = None

    def __iter__(self) -> Iterator[AnswerStep]:
        for _, step in self._serving:
            yield step

    def finish(self) -> Result:
        """Answer to the end. Calling it again returns the same result."""
        for _ in self:
            pass
        return self.result

    @property
    def done(self) -> bool:
        request = self._request
        return (
            request is not None
            and request.done
            and len(self.steps) == len(request.emitted)
        )

    @property
    def result(self) -> Result:
        """The result so far."""
        options = self.options
        proposes = options.mode == "lr+sd" and options.drafter == "step"
        couples = (
            proposes and options.acceptance != "match"
        )  # "match" emits the target's own draw
        coupling = "proposal" if couples else options.coupling
        prompt, steps = tuple(self.prompt), tuple(self.steps)
        return Result(self.question, options.mode, prompt, steps, self.trace, coupling)

    def take(self, emitted: EmittedStep) -> AnswerStep:
        """Add an emitted step, with its text, to the answer."""
        decode, step, rejected = (
            self.models.codec.decode,
            emitted.step,
            emitted.rejected,
        )
        replaced = None if rejected is None else decode(rejected.tokens)
        how = emitted.origin, step.finish, emitted.verdict, replaced
        made = AnswerStep(emitted.index, decode(step.tokens), step.tokens, *how)
        self.steps.append(made)
        return made

    def request(
        self, target: StepWriter, drafts: LocalDrafts | RemoteDrafts | None
    ) -> Request:
        """The request of this answer; other answers may share `target` and `drafts`."""
        options, verifier, variant = self.options, self.verifier, self.variant
        ahead = drafts is not None
        needs_target = isinstance(verifier, str) or (
            bool(verifier.requires & Requires.TARGET_STEP)
            and verifier.early_requires is None
        )
        parallel = not isinstance(verifier, str) and verifier.parallel
        if variant.corrector is not None and (needs_target or parallel):
            raise SettingError(
                "the variant has a corrector, so it needs a verifier that needs no target step "
                '(requires without Requires.TARGET_STEP, not parallel), such as "likelihood".'
            )
        config = SchedulerConfig(
            self.limits,
            Schedule(options.schedule) if ahead else Schedule.DEPTH,
            options.depth if ahead else 0,
            options.width,
            options.max_target_rows,
            reject_late=options.late_drafts == "reject",
            needs_target_step=needs_target or not ahead,
            parallel_target=parallel,
            choose=first_aligned if isinstance(verifier, str) else verifier.choose,
        )
        proposals, codec = None, self.models.codec
        if ahead and variant.step_source is not None:
            segmenter = partial(
                self.writer_config(Role.DRAFT).segmenter, codec.token_bytes
            )
            proposals = SourcedSteps(
                variant.step_source,
                segmenter,
                codec.eos_ids,
                codec.vocab_size,
                len(self.prompt),
            ).after
        coupling = Coupling(options.coupling)
        streams = Streams(self.stream(Role.TARGET), self.stream(Role.DRAFT), coupling)
        how = (target, drafts, streams, self.trace, variant, self.controller, proposals)
        self._request = Request(self.prompt, LookaheadScheduler(config), *how)
        return self._request

    def stream(self, role: Role) -> Stream:
        """The stream of random keys of a role in this answer."""
        root, sample = Stream.root(self.options.seed), self.options.sample
        return root.fold_in(self.question, sample, role.value)

    def writer_config(
        self, role: Role, draft_runner: Runner | None = None
    ) -> WriterConfig:
        """How a role writes. `draft_runner`: the draft model, for the target's token
        drafter."""
        options = self.options
        segmenter: Callable[[TokenBytes], Segmenter] | None = self.variant.segmenter
        if segmenter is None and options.segmenter == "blank_line":
            segmenter = BlankLineSegmenter
        elif segmenter is None:
            other = find("lr.spec.segmenters:make_segmenter")
            segmenter = partial(
                other, options.segmenter, segment_tokens=options.segment_tokens
            )
        eos_ids, variant = self.models.codec.eos_ids, self.variant
        keeps = role is Role.TARGET and variant.corrector is not None
        if role is Role.DRAFT and not isinstance(self.verifier, str):
            keeps = keeps or bool(self.verifier.requires & Requires.SAMPLING_LOGPROBS)
        speculation = (
            self.speculation(role, draft_runner) if options.speculates else None
        )
        if keeps and speculation is not None:
            raise SettingError(
                f"mode {options.mode!r} drafts the {role.value}'s tokens; variant or verifier need "
                "their log-probabilities, which are not kept then; use mode 'lr'."
            )
        return WriterConfig(role, self.sampling, eos_ids, segmenter, speculation, keeps)

    def speculation(
        self, role: Role, draft_runner: Runner | None
    ) -> Speculation | None:
        """How tokens are proposed to this role; None: no token-level speculation."""
        options, variant, eos_ids = (
            self.options,
            self.variant,
            self.models.codec.eos_ids,
        )
        if role is Role.DRAFT and (options.drafts_tokens or variant.drafter):
            return None
        setup = DrafterSetup(draft_runner, self.sampling, eos_ids)
        drafter = variant.make("drafter", setup) or make_drafter(options, setup)
        rule = variant.make("rule") or RULES[options.acceptance]()
        checked = variant.drafter is not None
        return Speculation(drafter, rule, options.num_speculative_tokens, checked)


def recommended_sampling(codec: Codec) -> SamplingParams:
    """What the checkpoint recommends, else temperature 0.6 (paper). Raises
    `CheckpointError`."""
    stated = codec.generation_config
    if stated.get("do_sample") is False:
        return SamplingParams(temperature=0.0)
    names = ("temperature", "top_p", "top_k", "min_p")
    try:
        return SamplingParams(
            **{n: stated[n] for n in names if stated.get(n) is not None}
        )
    except SettingError as error:
        raise CheckpointError(
            f"generation_config.json of {codec.name}: {error}"
        ) from None
