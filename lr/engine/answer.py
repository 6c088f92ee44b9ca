"""One answer in the making: from models and settings to writers, branches and a driver, and the steps that come out.

Here the parts of the house meet for one question. Which parts there are stands in `options.py`; what they do, in their rooms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

from lr.engine.chain import Chain, Streams
from lr.engine.drafts import DraftSide, LocalDrafts
from lr.engine.lockstep import Lockstep
from lr.engine.overlapped import Overlapped
from lr.engine.plan import CachePlan, SegmenterMaker, WriterPlan
from lr.engine.remote import DraftWorker
from lr.engine.speculation import make_speculation
from lr.errors import ContextError, SettingError
from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.options import DRAFT_MODEL_DRAFTERS, GenerateOptions, needs_draft
from lr.result import AnswerStep, Result
from lr.rng import Stream
from lr.spec.drafters.step import StepDrafter
from lr.spec.limits import Limits
from lr.spec.schedule import Schedule, SchedulerConfig
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.seams import Controller, Variant
from lr.spec.segmenters.choose import make_segmenter
from lr.spec.token_sd import Speculation
from lr.spec.verifiers.base import Need, Verifier, need_of
from lr.spec.write import StepWriter, decode_plainly
from lr.trace import Trace, summarise
from lr.types import Coupling, EmittedStep, Role, SamplingParams

LONGEST_ANSWER = 32768
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Models:
    """What a `Reasoner` has loaded. Ids from `known_tokens` on are known to the target's tokenizer, not to the draft's.

    `num_blocks` cache blocks per model; None: as many as an answer can need. `worker` writes the drafts of driver overlapped; it is
    started when it is first needed.
    """

    codec: Codec
    target: CausalLM
    draft: CausalLM | None
    known_tokens: int
    num_blocks: int | None
    worker: DraftWorker | None = None


class Run:
    """One answer in the making. Iterating yields its steps; `finish` runs to the end and returns the `Result`."""

    def __init__(
        self,
        models: Models,
        verifier: str | Verifier,
        question: str,
        options: GenerateOptions,
        variant: Variant | None = None,
    ) -> None:
        self.models, self.question, self.options = models, question, options
        self.variant = Variant() if variant is None else variant
        self.verifier = self.variant.verifier or verifier
        self.trace = Trace()
        self.steps: list[AnswerStep] = []
        codec = models.codec
        self.prompt = codec.chat(question, system=options.system, enable_thinking=options.enable_thinking)
        self.sampling = options.sampling(_default_sampling(codec))
        self._emitted = self._start()

    def __iter__(self) -> Iterator[AnswerStep]:
        decode = self.models.codec.decode
        for emitted in self._emitted:
            rejected = None if emitted.rejected is None else decode(emitted.rejected.tokens)
            step = emitted.step
            self.steps.append(
                AnswerStep(
                    emitted.index,
                    decode(step.tokens),
                    step.tokens,
                    emitted.origin,
                    step.finish,
                    emitted.verdict,
                    rejected,
                )
            )
            yield self.steps[-1]

    def finish(self) -> Result:
        """Run to the end. The result of a run that was iterated to its end already is the same."""
        for _ in self:
            pass
        return Result(self.question, self.options.mode, tuple(self.prompt), tuple(self.steps), self.trace)

    def _start(self) -> Iterator[EmittedStep]:
        options, models = self.options, self.models
        if needs_draft(options) and models.draft is None:
            raise SettingError(f"mode {options.mode!r} needs a draft model here; give one, or use mode 'ar'.")
        used = [models.target, models.draft] if needs_draft(options) else [models.target]
        limits = self._limits(*(model for model in used if model is not None))
        target = self._plan(Role.TARGET, limits).writer(models.target, models.codec.token_bytes, self.trace)
        if not options.mode.startswith("lr"):
            return decode_plainly(self.prompt, target, limits)
        return self._look_ahead(target, limits)

    def _look_ahead(self, target: StepWriter, limits: Limits) -> Iterator[EmittedStep]:
        options, models, plan = self.options, self.models, self._plan(Role.DRAFT, limits)
        assert not isinstance(self.verifier, str)
        assert models.draft is not None
        driver: Lockstep | Overlapped
        if options.driver == "overlapped":
            if models.worker is None:
                raise SettingError("driver 'overlapped' needs a draft worker, and there is none; use 'lockstep'.")
            run = models.worker.begin(plan, self.trace)
            drafts: DraftSide = run.chain(self.trace)
            driver = Overlapped(target, run, self.verifier)
        else:
            draft = plan.writer(models.draft, models.codec.token_bytes, self.trace)
            drafts = LocalDrafts(draft, self.trace)
            driver = Lockstep(target, draft, self.verifier, options.draft_ticks)
        chain = self._chain(target, drafts, plan.stream, self._config(limits))
        for _, emitted in driver.run([chain]):
            if self.variant.controller is not None:
                self._control(self.variant.controller, chain.scheduler)
            yield emitted

    def _config(self, limits: Limits) -> SchedulerConfig:
        assert not isinstance(self.verifier, str)
        return SchedulerConfig(
            limits,
            Schedule(self.options.schedule),
            self.options.depth,
            self.options.width,
            self.options.max_target_rows,
            needs_target_step=bool(need_of(self.verifier) & Need.TARGET_STEP),
            router=self.variant.router,
        )

    def _chain(self, target: StepWriter, drafts: DraftSide, draft_stream: Stream, config: SchedulerConfig) -> Chain:
        offered = target.speculation.drafter if target.speculation is not None else None
        return Chain(
            self.prompt,
            LookaheadScheduler(config),
            target,
            drafts,
            Streams(target.stream, draft_stream, Coupling(self.options.coupling)),
            self.trace,
            step_drafter=offered if isinstance(offered, StepDrafter) else None,
        )

    def _control(self, controller: Controller, scheduler: LookaheadScheduler) -> None:
        """Between two steps: how far to look ahead from here. Never further than at the beginning, which the cache has room for."""
        least = 1 if scheduler.config.schedule is Schedule.PAPER else 0
        scheduler.set_depth(max(least, min(controller.depth(summarise(self.trace)), self.options.depth)))

    def _limits(self, *models: CausalLM) -> Limits:
        """The token budget: what was asked for, within what every model can still hold behind the prompt."""
        room = min(model.config.max_position_embeddings for model in models) - len(self.prompt)
        if room < 1:
            raise ContextError(
                f"the prompt has {len(self.prompt)} tokens and the context is {len(self.prompt) + room}: "
                "nothing could be written behind it. Shorten the question or the system message."
            )
        options = self.options
        budget = min(room, LONGEST_ANSWER if options.max_tokens is None else options.max_tokens)
        return Limits(budget, options.max_step_tokens, options.ignore_half_sentence)

    def _plan(self, role: Role, limits: Limits) -> WriterPlan:
        options = self.options
        return WriterPlan(
            role=role,
            cache=self._cache(role, limits),
            sampling=self.sampling,
            segmenter=self._segmenter(),
            eos_ids=self.models.codec.eos_ids,
            stream=Stream.root(options.seed).child(self.question, options.sample, role.value),
            speculation=self._speculation(role, limits) if options.mode.endswith("sd") else None,
        )

    def _segmenter(self) -> SegmenterMaker:
        options = self.options
        if self.variant.segmenter is not None:
            return self.variant.segmenter
        return partial(make_segmenter, options.segmenter, segment_tokens=options.segment_tokens)

    def _cache(self, role: Role, limits: Limits) -> CachePlan:
        options, models = self.options, self.models
        nodes = sum(options.width**level for level in range(options.depth + 1)) if options.mode.startswith("lr") else 1
        leaves = prod(options.branching) if options.mode.endswith("sd") and options.drafter == "tree" else 1
        return CachePlan(
            _blocks(len(self.prompt), limits, 2 * nodes, leaves) if models.num_blocks is None else models.num_blocks,
            BLOCK_SIZE,
            models.codec.vocab_size,
            models.known_tokens if role is Role.DRAFT else None,
        )

    def _speculation(self, role: Role, limits: Limits) -> Speculation | None:
        """How this role's tokens are guessed. A draft model does not draft for itself."""
        options, models = self.options, self.models
        if options.drafter not in DRAFT_MODEL_DRAFTERS:
            return make_speculation(options, self.sampling, models.codec.eos_ids, runner=None)
        if role is Role.DRAFT:
            return None
        assert models.draft is not None
        runner = self._cache(Role.DRAFT, limits).runner(models.draft, Role.DRAFT, self.trace)
        return make_speculation(options, self.sampling, models.codec.eos_ids, runner=runner)


def _blocks(prompt: int, limits: Limits, rows: int, leaves: int) -> int:
    """Blocks that suffice: one trunk of the longest chain, and per row its own step; per path of a token tree a copied and a new block."""
    trunk = -(-(prompt + limits.max_tokens + limits.max_step_tokens) // BLOCK_SIZE)
    return trunk + rows * (limits.max_step_tokens // BLOCK_SIZE + 3 + 4 * (leaves - 1))


def _default_sampling(codec: Codec) -> SamplingParams:
    """What the checkpoint recommends; where it says nothing, the paper's temperature 0.6 and no filter."""
    stated = codec.generation_defaults
    if stated.do_sample is False:
        return SamplingParams(temperature=0.0)
    recommended = {name: getattr(stated, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return SamplingParams(**{name: value for name, value in recommended.items() if value is not None})
