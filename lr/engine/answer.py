"""One answer in the making: from models and settings to writers, branches and a driver, and the
steps that come out.

Here the parts of the house meet for one question. Which parts there are stands in `options.py`;
what they do, in their rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from lr.engine.chain import Chain, Streams
from lr.engine.drafts import DraftSide, LocalDrafts
from lr.engine.lockstep import Lockstep
from lr.engine.overlapped import Overlapped
from lr.engine.plan import CachePlan, SegmenterMaker, WriterPlan
from lr.engine.remote import DraftWorker
from lr.engine.room import BLOCK_SIZE, blocks_for
from lr.engine.speculation import make_speculation
from lr.errors import ContextError, SettingError
from lr.lab.endpoint.driver import Concurrently, OverlappedConcurrently
from lr.lab.endpoint.models import ServedModel
from lr.lab.endpoint.needs import check_run, context_of
from lr.lookahead import Writer, lookahead
from lr.model.attention import SDPA
from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.options import DRAFT_MODEL_DRAFTERS, GenerateOptions
from lr.result import AnswerStep, Result
from lr.rng import Stream
from lr.spec.drafters import StepDrafter
from lr.spec.protocol import LateDrafts, Limits, Schedule, SchedulerConfig
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.seams import Variant
from lr.spec.segmenters import make_segmenter
from lr.spec.token_sd import Speculation
from lr.spec.verifiers.base import Requires, Verifier
from lr.spec.write import StepWriter, decode_plainly
from lr.trace import Trace, emission, summarise
from lr.types import Coupling, EmittedStep, Role, SamplingParams

LONGEST_ANSWER = 32768


@dataclass(frozen=True)
class Models:
    """What a `Reasoner` has loaded; a `ServedModel` is a target or a draft behind a server.

    Ids from `known_tokens` on are known to the target's tokenizer, not to the draft's.

    `num_blocks` cache blocks per model; None: as many as an answer can need. `worker` writes the
    drafts of driver overlapped; it is started when it is first needed. `names`: what "target",
    "draft", "judge" and "verifier" were loaded by.
    """

    codec: Codec
    target: CausalLM
    draft: CausalLM | None
    known_tokens: int
    num_blocks: int | None
    worker: DraftWorker | None = None
    names: Mapping[str, str | None] = field(default_factory=dict)


def coupling_of(options: GenerateOptions) -> str:
    """The word for `Result.coupling`. Rule "match" emits the target's own draw whatever was
    proposed, so it couples nothing.
    """
    proposes = (
        options.mode == "lr+sd" and options.drafter == "step" and options.acceptance != "match"
    )
    return "proposal" if proposes else options.coupling


class Asked:
    """One question, prepared: its prompt, its limits, and the plans of what answers it. Nothing is
    allocated yet.

    `share`: how many such questions share the caches. `steps` and `trace` fill while it is
    answered; `detailed`: the trace with everything.
    """

    def __init__(
        self,
        models: Models,
        verifier: str | Verifier,
        question: str,
        options: GenerateOptions,
        variant: Variant | None = None,
        share: int = 1,
        *,
        detailed: bool = False,
    ) -> None:
        if isinstance(question, str) and not question.strip():
            raise SettingError(
                "the question is empty; there is nothing to answer. Give some words."
            )
        if models.worker is not None and options.driver == "overlapped" and options.looks_ahead:
            models.worker.start()  # once, and not in the time of an answer
        self.models, self.question, self.options, self.share = models, question, options, share
        self.variant = Variant() if variant is None else variant
        self.verifier = self.variant.verifier or verifier
        self.detailed = detailed
        self.trace = Trace(detailed=detailed)
        self.steps: list[AnswerStep] = []
        codec = models.codec
        self.prompt = codec.chat(
            question, system=options.system, enable_thinking=options.enable_thinking
        )
        self.sampling = options.sampling(_default_sampling(codec))
        if options.needs_draft and models.draft is None:
            raise SettingError(
                f"mode {options.mode!r} needs a draft model here; give one, or use mode 'ar'."
            )
        used = [models.target, models.draft] if options.needs_draft else [models.target]
        check_run(options, self.sampling, self.verifier, *used)
        if isinstance(models.draft, ServedModel) and models.draft.foreign:
            models.draft.ask(
                self.prompt,
                question,
                system=options.system,
                enable_thinking=options.enable_thinking,
            )
        self.limits = self._limits(*(model for model in used if model is not None))

    def take(self, emitted: EmittedStep) -> AnswerStep:
        """Put a step that was decided behind the others, readable."""
        decode, step = self.models.codec.decode, emitted.step
        rejected = None if emitted.rejected is None else decode(emitted.rejected.tokens)
        text = decode(step.tokens)
        self.steps.append(
            AnswerStep(
                emitted.index,
                text,
                step.tokens,
                emitted.origin,
                step.finish,
                emitted.verdict,
                rejected,
            )
        )
        return self.steps[-1]

    @property
    def result(self) -> Result:
        """What there is so far."""
        options = self.options
        return Result(
            self.question,
            options.mode,
            tuple(self.prompt),
            tuple(self.steps),
            self.trace,
            coupling_of(options),
        )

    def stream(self, role: Role) -> Stream:
        """The randomness of a role in this answer."""
        return Stream.root(self.options.seed).child(self.question, self.options.sample, role.value)

    def plan(self, role: Role) -> WriterPlan:
        """The writer of a role."""
        options = self.options
        return WriterPlan(
            role=role,
            cache=self.cache_plan(role),
            sampling=self.sampling,
            segmenter=self._segmenter(),
            eos_ids=self.models.codec.eos_ids,
            stream=self.stream(role),
            speculation=self._speculation(role) if options.speculates else None,
            detailed=self.detailed,
        )

    def chain(self, target: StepWriter, drafts: DraftSide) -> Chain:
        """The chain of this answer, on a target writer and a draft's side that may serve others
        too.
        """
        offered = target.speculation.drafter if target.speculation is not None else None
        return Chain(
            self.prompt,
            LookaheadScheduler(self._config()),
            target,
            drafts,
            Streams(
                self.stream(Role.TARGET), self.stream(Role.DRAFT), Coupling(self.options.coupling)
            ),
            self.trace,
            step_drafter=offered if isinstance(offered, StepDrafter) else None,
        )

    def control(self, scheduler: LookaheadScheduler) -> None:
        """Between two steps: how far to look ahead from here. Never further than at the beginning,
        which the cache has room for.
        """
        if self.variant.controller is not None:
            least = 1 if scheduler.config.schedule is Schedule.PAPER else 0
            depth = min(self.variant.controller.depth(summarise(self.trace)), self.options.depth)
            scheduler.set_depth(max(least, depth))

    def _config(self) -> SchedulerConfig:
        assert not isinstance(self.verifier, str)
        return SchedulerConfig(
            self.limits,
            Schedule(self.options.schedule),
            self.options.depth,
            self.options.width,
            self.options.max_target_rows,
            late_drafts=LateDrafts(self.options.late_drafts),
            needs_target_step=bool(self.verifier.requires & Requires.TARGET_STEP)
            and self.verifier.early_requires is None,
            router=self.variant.router,
        )

    def _limits(self, *models: CausalLM) -> Limits:
        """The token budget: what was asked for, within what every model can still hold behind the
        prompt.
        """
        room = min(map(context_of, models)) - len(self.prompt)
        if room < 1:
            raise ContextError(
                f"the prompt has {len(self.prompt)} tokens and the context is {len(self.prompt) + room}: "
                "nothing could be written behind it. Shorten the question or the system message."
            )
        options = self.options
        budget = min(room, LONGEST_ANSWER if options.max_tokens is None else options.max_tokens)
        return Limits(budget, options.max_step_tokens, options.ignore_half_sentence)

    def _segmenter(self) -> SegmenterMaker:
        options = self.options
        if self.variant.segmenter is not None:
            return self.variant.segmenter
        return partial(make_segmenter, options.segmenter, segment_tokens=options.segment_tokens)

    def cache_plan(self, role: Role) -> CachePlan:
        """The memory of a role's model."""
        models = self.models
        model = models.draft if role is Role.DRAFT else models.target
        attention, graphs = (
            (model.attention, model.graphs) if isinstance(model, CausalLM) else (SDPA, False)
        )
        size = attention.block_size
        needed = blocks_for(
            self.options, len(self.prompt) + self.limits.max_tokens, self.share, size
        )
        return CachePlan(
            needed if models.num_blocks is None else -(-models.num_blocks * BLOCK_SIZE // size),
            size,
            models.codec.vocab_size,
            models.known_tokens if role is Role.DRAFT else None,
            attention,
            graphs,
        )

    def _speculation(self, role: Role) -> Speculation | None:
        """How this role's tokens are guessed. A draft model does not draft for itself."""
        options, models = self.options, self.models
        if options.drafter not in DRAFT_MODEL_DRAFTERS:
            return make_speculation(options, self.sampling, models.codec.eos_ids, runner=None)
        if role is Role.DRAFT:
            return None
        assert models.draft is not None
        runner = self.cache_plan(Role.DRAFT).runner(models.draft, Role.DRAFT, self.trace, "guesser")
        return make_speculation(options, self.sampling, models.codec.eos_ids, runner=runner)


class Run(Asked):
    """One answer in the making. Iterating yields its steps; `finish` runs to the end and returns
    the `Result`.
    """

    def __init__(
        self,
        models: Models,
        verifier: str | Verifier,
        question: str,
        options: GenerateOptions,
        variant: Variant | None = None,
        *,
        detailed: bool = False,
        engine: Literal["scheduler", "page"] = "scheduler",
    ) -> None:
        super().__init__(models, verifier, question, options, variant, detailed=detailed)
        on_page = engine == "page" and options.looks_ahead
        self._emitted = self._on_page() if on_page else self._start()

    def __iter__(self) -> Iterator[AnswerStep]:
        for emitted in self._emitted:
            yield self.take(emitted)

    def finish(self) -> Result:
        """Run to the end. The result of a run that was iterated to its end already is the same."""
        for _ in self:
            pass
        return self.result

    def _start(self) -> Iterator[EmittedStep]:
        target = self.plan(Role.TARGET).writer(
            self.models.target, self.models.codec.token_bytes, self.trace
        )
        if not self.options.looks_ahead:
            return decode_plainly(self.prompt, target, self.limits)
        return self._look_ahead(target)

    def _on_page(self) -> Iterator[EmittedStep]:
        """The same answer by the loop of `lr/lookahead.py`. The trace gets forwards and emitted
        steps. Raises `SettingError` for what the page leaves to the engine.
        """
        options, variant, verifier = self.options, self.variant, self.verifier
        target, draft = self.models.target, self.models.draft
        timed = options.late_drafts != "wait" or options.driver != "lockstep"
        varied = variant.router is not None or variant.controller is not None
        here = isinstance(target, CausalLM) and isinstance(draft, CausalLM)
        if isinstance(verifier, str) or draft is None or not here or timed or varied:
            raise SettingError(
                'engine "page" runs models in this process, without a router, a controller or '
                'late_drafts "reject"; use engine "scheduler".'
            )
        if verifier.requires != Requires.TARGET_STEP or verifier.early_requires is not None:
            raise SettingError(
                f'engine "page" needs a verifier that compares two steps, and {verifier.name!r} '
                'does not, or not only; use engine "scheduler".'
            )

        def writer(role: Role, model: CausalLM) -> Writer:
            plan = self.plan(role)
            runner = plan.cache.runner(model, role, self.trace)
            segmenter = plan.segmenter(self.models.codec.token_bytes)
            return Writer(
                runner, plan.sampling, segmenter, plan.eos_ids, plan.stream, plan.speculation
            )

        for emitted in lookahead(
            self.prompt,
            writer(Role.DRAFT, draft),
            writer(Role.TARGET, target),
            verifier,
            self.limits,
            schedule=Schedule(options.schedule),
            depth=options.depth,
            width=options.width,
            max_target_rows=options.max_target_rows,
            coupling=Coupling(options.coupling),
            draft_forwards=options.draft_ticks,
        ):
            verdicts = [] if emitted.verdict is None else [emitted.verdict]
            self.trace.record(emission(emitted, *verdicts))
            yield emitted

    def _look_ahead(self, target: StepWriter) -> Iterator[EmittedStep]:
        assert not isinstance(self.verifier, str)
        drafts, driver = look_ahead(self, target)
        chain = self.chain(target, drafts(self.trace))
        for _, emitted in driver.run([chain]):
            self.control(chain.scheduler)
            yield emitted


def look_ahead(
    asked: Asked, target: StepWriter
) -> tuple[Callable[[Trace], DraftSide], Lockstep | Overlapped]:
    """The draft's side, one per problem (made from the problem's trace), and the driver, for
    `asked` and others with the same options.
    """
    options, models, plan = asked.options, asked.models, asked.plan(Role.DRAFT)
    assert not isinstance(asked.verifier, str)
    assert models.draft is not None
    served = isinstance(models.target, ServedModel) or isinstance(models.draft, ServedModel)
    asks_elsewhere = hasattr(asked.verifier, "decide")
    if options.driver == "overlapped" and not served:
        if models.worker is None:
            raise SettingError(
                "driver 'overlapped' needs a draft worker, and there is none; use 'lockstep'."
            )
        run = models.worker.begin(plan, asked.trace)
        overlapped = OverlappedConcurrently if asks_elsewhere else Overlapped
        return run.chain, overlapped(target, run, asked.verifier)
    draft = plan.writer(models.draft, models.codec.token_bytes, asked.trace)
    driver = Concurrently if served or asks_elsewhere else Lockstep
    return partial(LocalDrafts, draft), driver(target, draft, asked.verifier, options.draft_ticks)


def _default_sampling(codec: Codec) -> SamplingParams:
    """What the checkpoint recommends; where it says nothing, the paper's temperature 0.6 and no
    filter.
    """
    stated = codec.generation_defaults
    if stated.do_sample is False:
        return SamplingParams(temperature=0.0)
    recommended = {
        name: getattr(stated, name) for name in ("temperature", "top_p", "top_k", "min_p")
    }
    return SamplingParams(
        **{name: value for name, value in recommended.items() if value is not None}
    )
