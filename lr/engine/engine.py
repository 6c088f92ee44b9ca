"""The engine: it keeps models, their caches and CUDA graphs, and answers questions with them.

`Engine.serve` is the way of every answer, one question or many: it borrows a runner per model,
makes the writers and the loop, and starts requests as there is room for them. Read next: `loop.py`.
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
from lr.spec.protocol import FirstAligned, Limits, Schedule, SchedulerConfig
from lr.spec.runner import Runner
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.token_sd import Drafter, Speculation
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.spec.write import BlankLineSegmenter, Segmenter, StepWriter, TokenBytes, WriterConfig
from lr.trace import Trace, Warned
from lr.types import Coupling, EmittedStep, Role, SamplingParams, require

LONGEST_ANSWER = 32768
ROUND = 256
"""Where a CUDA device has plenty of room, a cache is a multiple of so many blocks of 16 tokens: it
suffices for a slightly longer question too, and its CUDA graphs stay."""


class ModelElsewhere(Protocol):
    """A target or draft outside this process, say on a server. `context`: its limit in tokens."""

    context: int

    def prepare(self, run: Run) -> None:
        """Raise `SettingError` unless the model can do what the run needs of it."""

    def writer(self, config: WriterConfig) -> StepWriter:
        """A writer that sends requests."""


Steps: TypeAlias = "Iterator[tuple[Run, AnswerStep]]"
"""Steps as they are decided, each with the run that it belongs to."""


@dataclass(eq=False)
class Models:
    """What a `Reasoner` has loaded. A target or a draft that is not in this process is a
    `ModelElsewhere`, whatever the types below say: most uses need the network itself.

    Token ids from `known_tokens` on are known to the target's tokenizer, not to the draft's.
    `num_blocks` cache blocks per model; None: as many as the answers can need. `worker` writes the
    drafts of driver overlapped. `names`: by what target, draft, judge and verifier were loaded.
    `judge`: the verifier's own model, if it is in this process.
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
        """Target and draft, as far as they are in this process."""
        both = {Role.TARGET: self.target, Role.DRAFT: self.draft}
        return {role: model for role, model in both.items() if isinstance(model, CausalLM)}


class Engine:
    """Answers questions with the models of a `Reasoner`. `runners`: of those in this process."""

    def __init__(self, models: Models) -> None:
        self.models, self.runners = models, dict[Role, Runners]()
        for role, model in models.here.items():
            known = models.known_tokens if role is Role.DRAFT else None
            self.runners[role] = Runners(model, models.codec.vocab_size, known, models.num_blocks)

    def forget_caches(self) -> None:
        """Give up the caches and CUDA graphs that are idle; the next answer makes new ones."""
        for runners in self.runners.values():
            runners.end()

    def serve(self, runs: Sequence[Run], concurrency: int = 1) -> Steps:
        """Answer the runs, at most `concurrency` at a time, and yield their steps as they are
        decided; one forward serves all that are being answered. They have the same options but for
        question, sample and length. What a run's tokens are does not depend on the others.

        A run waits until its cache blocks are free; on CUDA there are as many as fit (`room`).
        Raises `OutOfBlocks`, before it starts, for one that never fits. All is given back at the
        end, however it comes.
        """
        require(concurrency >= 1, "concurrency", concurrency, "a whole number >= 1")
        if not runs:
            return
        most = max(run.blocks for run in runs) * min(concurrency, len(runs))
        if self.models.num_blocks is None and (fits := room(self._caches(runs[0]))) is not None:
            rounded = -(-most // ROUND) * ROUND
            most = min(rounded if 16 * rounded <= fits else most, fits)
        space = self.models.num_blocks or most
        devices = [model.device for model in self.models.here.values()] or [torch.device("cpu")]
        with ExitStack() as stack:
            beside = stack.enter_context(own_stream(devices[0]))
            with beside():
                serving = Serving(self, runs[0], most, concurrency, stack)
            loop = serving.loop
            stack.callback(loop.close)
            waiting, live = deque(runs), dict[Run, Request]()
            while waiting or live:
                taken = sum(run.blocks for run in live)
                with beside():
                    while waiting and len(live) < concurrency:
                        run = waiting[0]
                        if run.blocks > space:
                            raise OutOfBlocks(run.blocks, space, space)
                        if taken + run.blocks > space:
                            break
                        taken += run.blocks
                        live[waiting.popleft()] = request = serving.request(run)
                        loop.add(request)
                    loop.step()
                for run, request in list(live.items()):
                    if request.done or run.stopped:
                        del live[run]
                        loop.remove(request)
                        for warning in serving.warnings():
                            run.trace.record(warning)
                    for emitted in request.emitted[len(run.steps) :]:
                        yield run, run.take(emitted)

    def _caches(self, run: Run) -> list[Runners]:
        """The caches that answers like this one take, of models that are here."""
        here, options, worker = self.models.here, run.options, self.models.worker
        found = [self.runners[Role.TARGET]] if Role.TARGET in here else []
        if Role.DRAFT in here:
            draft = self.runners[Role.DRAFT]
            threaded = worker is not None and worker.as_thread and options.driver == "overlapped"
            writing = worker.load()[0] if worker is not None and threaded else draft
            found += [writing] * options.looks_ahead + [draft] * options.drafts_tokens
        return found


class Serving:
    """What one call of `serve` has borrowed and made; `run` has the options of all its runs."""

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
                remote = models.worker.begin(config, blocks, detailed=detailed, file=file)
                stack.callback(remote.end)
                draft, self.drafts = remote, remote.side
            else:
                assert models.draft is not None
                draft = self._writer(config, models.draft)
                self.drafts = partial(LocalDrafts, draft)
        # The draft's worker has recorded its CUDA graphs and waits: no two record at once.
        draft_runner = self._borrow("drafter", Role.DRAFT) if speculates else None
        self.target = self._writer(run.writer_config(Role.TARGET, draft_runner), models.target)
        verifier = None if isinstance(run.verifier, str) else run.verifier
        self.loop = Loop(self.target, draft, verifier, options.draft_ticks)
        self.asked: list[tuple[Role, ModelRunner]] = []  # by verifiers and other parts
        for role, model in models.here.items():
            for runner in model.asked:
                self.asked.append((role, runner))
                runner.observer = partial(self.loop.passed, role)
                stack.callback(setattr, runner, "observer", None)

    def request(self, run: Run) -> Request:
        """The request of a run, not started. Its time begins now."""
        run.trace.start = run.trace.clock()
        run.alone = self.alone
        if run.detailed and self.alone:
            for name, runner in self.borrowed.items():
                runner.cache.pool.restart()
                recorder = find("lr.lab.trace.cache:CacheRecorder")
                runner.cache.observer = recorder(run.trace, name)
        drafts = None if self.drafts is None else self.drafts(run.trace)
        return run.request(self.target, drafts)

    def warnings(self) -> list[Warned]:
        """What makes the answers slower than they should be: graphs that were not recorded."""
        named = [*self.borrowed.items(), *((role.value, runner) for role, runner in self.asked)]
        if self.drafts is not None and (judge := self.engine.models.judge) is not None:
            named += [("judge", runner) for runner in judge.asked]
        failures = [(name, runner.failure) for name, runner in named]
        if isinstance(self.loop.draft, RemoteRun):
            failures.append(("draft", self.loop.draft.failure))
        return [Warned(f"{name}: {why}") for name, why in dict.fromkeys(failures) if why]

    def _borrow(self, name: str, role: Role) -> ModelRunner:
        runners = self.engine.runners[role]
        runner = self.borrowed[name] = runners.lend(self.blocks)
        runner.observer = lambda *seen: self.loop.passed(role, *seen)
        self.stack.callback(runners.take_back, runner)
        return runner

    def _writer(self, config: WriterConfig, model: CausalLM | ModelElsewhere) -> StepWriter:
        if isinstance(model, CausalLM):
            runner = self._borrow(config.role.value, config.role)
            return StepWriter(config, runner, self.engine.models.codec.token_bytes)
        writer = model.writer(config)
        self.stack.callback(writer.end)
        return writer


class Run:
    """A question, and its answer in the making. Iterate to get the steps as they are decided, or
    `finish`; `steps` and `trace` fill meanwhile. `serve`: by what; None: by `Engine.serve`.
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
            raise SettingError("the question is empty; there is nothing to answer.")
        models, codec = engine.models, engine.models.codec
        self.engine, self.models, self.question = engine, models, question
        self.detailed, self.trace = detailed, Trace(detailed=detailed)
        self.given = self.variant = Variant() if variant is None else variant
        if variant is not None:  # its parts, checked as they are used
            self.variant = find("lr.testing.guard:guarded")(variant, self.trace.at)
            options = find("lr.testing.guard:with_settings")(options, variant)
        control, own = self.variant.controller, self.variant.verifier
        self.controller = control(question) if callable(control) else control
        self.verifier = verifier if own is None else own
        self.options = options
        self.alone = True  # forwards and caches serve this answer only
        self.stopped = False  # set it to break the answer off after the steps so far
        self.steps: list[AnswerStep] = []
        thinking = options.enable_thinking
        self.prompt = codec.chat(question, system=options.system, enable_thinking=thinking)
        self.sampling = options.sampling(recommended_sampling(codec))
        if options.needs_draft and models.draft is None:
            raise SettingError(
                f"mode {options.mode!r} needs a draft model here; give one, or use mode 'ar'."
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
                f"the prompt has {length} tokens and the context is {context}: nothing could be "
                "written after it. Shorten the question or the system message."
            )
        most = min(context - length, options.max_tokens or LONGEST_ANSWER)
        self.limits = Limits(most, options.max_step_tokens, options.ignore_half_sentence)
        judge = self.verifier
        reads = not isinstance(judge, str) and bool(judge.requires & READINGS)
        self.blocks = num_kv_blocks_needed(options, length + most, reads=reads)
        if options.driver == "overlapped" and options.looks_ahead and models.worker is not None:
            models.worker.start()  # once, and not in the time of an answer
        self._serving = engine.serve([self]) if serve is None else serve(self)
        self._request: Request | None = None

    def __iter__(self) -> Iterator[AnswerStep]:
        for _, step in self._serving:
            yield step

    def finish(self) -> Result:
        """Answer to the end. Of a run that is over the result is the same again."""
        for _ in self:
            pass
        return self.result

    @property
    def done(self) -> bool:
        request = self._request
        return request is not None and request.done and len(self.steps) == len(request.emitted)

    @property
    def result(self) -> Result:
        """What there is so far."""
        options = self.options
        proposes = options.mode == "lr+sd" and options.drafter == "step"
        couples = proposes and options.acceptance != "match"  # which emits the target's own draw
        coupling = "proposal" if couples else options.coupling
        prompt, steps = tuple(self.prompt), tuple(self.steps)
        return Result(self.question, options.mode, prompt, steps, self.trace, coupling)

    def take(self, emitted: EmittedStep) -> AnswerStep:
        """Add a step that was decided, with its text."""
        decode, step, rejected = self.models.codec.decode, emitted.step, emitted.rejected
        replaced = None if rejected is None else decode(rejected.tokens)
        how = emitted.origin, step.finish, emitted.verdict, replaced
        made = AnswerStep(emitted.index, decode(step.tokens), step.tokens, *how)
        self.steps.append(made)
        return made

    def request(self, target: StepWriter, drafts: LocalDrafts | RemoteDrafts | None) -> Request:
        """The request of this answer, on a target and a draft that may serve others too."""
        options, verifier, variant = self.options, self.verifier, self.variant
        ahead = drafts is not None
        needs_target = isinstance(verifier, str) or (
            bool(verifier.requires & Requires.TARGET_STEP) and verifier.early_requires is None
        )
        if variant.corrector is not None and needs_target:
            raise SettingError(
                "the variant has a corrector, so it needs a verifier that needs no target step "
                '(requires without Requires.TARGET_STEP), such as "likelihood".'
            )
        config = (variant.schedule or SchedulerConfig)(
            self.limits,
            Schedule(options.schedule) if ahead else Schedule.DEPTH,
            options.depth if ahead else 0,
            options.width,
            options.max_target_rows,
            reject_late=options.late_drafts == "reject",
            needs_target_step=needs_target or not ahead,
            router=variant.router,
            chooser=FirstAligned() if variant.chooser is None else variant.chooser,
        )
        proposals, codec = None, self.models.codec
        if ahead and variant.proposer is not None:
            segmenter = partial(self.writer_config(Role.DRAFT).segmenter, codec.token_bytes)
            ends = (codec.eos_ids, codec.vocab_size)
            steps_of = find("lr.parts.drafters:Proposals")
            proposals = steps_of(variant.proposer, segmenter, *ends).after
        both = (self.stream(Role.TARGET), self.stream(Role.DRAFT))
        streams, scheduler = Streams(*both, Coupling(options.coupling)), LookaheadScheduler(config)
        how = (self.trace, variant, self.controller, proposals)
        self._request = Request(self.prompt, scheduler, target, drafts, streams, *how)
        return self._request

    def stream(self, role: Role) -> Stream:
        """The randomness of a role in this answer."""
        root, sample = Stream.root(self.options.seed), self.options.sample
        return root.fold_in(self.question, sample, role.value)

    def writer_config(self, role: Role, draft_runner: Runner | None = None) -> WriterConfig:
        """How a role writes. `draft_runner` runs the draft model for the target's token drafter."""
        options = self.options
        segmenter: Callable[[TokenBytes], Segmenter] | None = self.variant.segmenter
        if segmenter is None and options.segmenter == "blank_line":
            segmenter = BlankLineSegmenter
        elif segmenter is None:
            other = find("lr.parts.segmenters:make_segmenter")
            segmenter = partial(other, options.segmenter, segment_tokens=options.segment_tokens)
        eos_ids, variant = self.models.codec.eos_ids, self.variant
        keeps = (variant.corrector if role is Role.TARGET else variant.may_follow) is not None
        if role is Role.DRAFT and not isinstance(self.verifier, str):
            keeps = keeps or bool(self.verifier.requires & Requires.SAMPLING_LOGPROBS)
        speculation = self.speculation(role, draft_runner) if options.speculates else None
        if keeps and speculation is not None:
            raise SettingError(
                f"mode {options.mode!r} drafts the {role.value}'s tokens, and the variant asks "
                "for their log-probabilities, which are not kept then; use mode 'lr'."
            )
        entropy = self.controller is not None and self.controller.entropies
        return WriterConfig(role, self.sampling, eos_ids, segmenter, speculation, keeps, entropy)

    def speculation(self, role: Role, draft_runner: Runner | None) -> Speculation | None:
        """How this role's tokens are proposed; None: not at all."""
        options, variant, eos_ids = self.options, self.variant, self.models.codec.eos_ids
        if role is Role.DRAFT and (options.drafts_tokens or variant.drafter):
            return None
        drafter: Drafter
        if variant.drafter is not None:
            drafter = variant.drafter(draft_runner, self.sampling)
        else:
            make = find("lr.parts.drafters:make_drafter")
            drafter = make(options, draft_runner, self.sampling, eos_ids)
        rule = RULES[options.acceptance]() if variant.rule is None else variant.rule
        return Speculation(drafter, rule, options.num_speculative_tokens)


def recommended_sampling(codec: Codec) -> SamplingParams:
    """What the checkpoint recommends, else temperature 0.6 (paper). Raises `CheckpointError`."""
    stated = codec.generation_config
    if stated.get("do_sample") is False:
        return SamplingParams(temperature=0.0)
    names = ("temperature", "top_p", "top_k", "min_p")
    try:
        return SamplingParams(**{n: stated[n] for n in names if stated.get(n) is not None})
    except SettingError as error:
        raise CheckpointError(f"generation_config.json of {codec.name}: {error}") from None
