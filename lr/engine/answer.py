"""One answer in the making: from models and settings to writers, branches and a driver, and the steps that come out.

Here the parts of the house meet for one question. Which parts there are stands in `options.py`; what they do, in their rooms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

from lr.engine.chain import Chain, Streams
from lr.engine.lockstep import Lockstep
from lr.engine.runner import ModelRunner
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
from lr.spec.segmenters.choose import make_segmenter
from lr.spec.token_sd import Speculation
from lr.spec.verifiers.base import Need, Verifier, need_of
from lr.spec.write import StepWriter, decode_plainly
from lr.trace import ForwardPass, Trace
from lr.types import Coupling, EmittedStep, Role, SamplingParams

LONGEST_ANSWER = 32768
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Models:
    """What a `Reasoner` has loaded. Ids from `known_tokens` on are known to the target's tokenizer, not to the draft's.

    `num_blocks` cache blocks per model; None: as many as an answer can need.
    """

    codec: Codec
    target: CausalLM
    draft: CausalLM | None
    known_tokens: int
    num_blocks: int | None


class Run:
    """One answer in the making. Iterating yields its steps; `finish` runs to the end and returns the `Result`."""

    def __init__(self, models: Models, verifier: str | Verifier, question: str, options: GenerateOptions) -> None:
        self.models, self.verifier, self.question, self.options = models, verifier, question, options
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
        target = self._writer(Role.TARGET, models.target, limits)
        if not options.mode.startswith("lr"):
            return decode_plainly(self.prompt, target, limits)
        assert models.draft is not None
        return self._look_ahead(target, self._writer(Role.DRAFT, models.draft, limits), limits)

    def _look_ahead(self, target: StepWriter, draft: StepWriter, limits: Limits) -> Iterator[EmittedStep]:
        assert not isinstance(self.verifier, str)
        options = self.options
        config = SchedulerConfig(
            limits,
            Schedule(options.schedule),
            options.depth,
            options.width,
            options.max_target_rows,
            needs_target_step=bool(need_of(self.verifier) & Need.TARGET_STEP),
        )
        offered = target.speculation.drafter if target.speculation is not None else None
        chain = Chain(
            self.prompt,
            LookaheadScheduler(config),
            target,
            draft,
            Streams(target.stream, draft.stream, Coupling(options.coupling)),
            self.trace,
            step_drafter=offered if isinstance(offered, StepDrafter) else None,
        )
        for _, emitted in Lockstep(target, draft, self.verifier, options.draft_ticks).run([chain]):
            yield emitted

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

    def _writer(self, role: Role, model: CausalLM, limits: Limits) -> StepWriter:
        options, models = self.options, self.models
        return StepWriter(
            role=role,
            runner=self._runner(role, model, limits),
            sampling=self.sampling,
            segmenter=make_segmenter(options.segmenter, models.codec.token_bytes, options.segment_tokens),
            eos_ids=models.codec.eos_ids,
            stream=Stream.root(options.seed).child(self.question, options.sample, role.value),
            trace=self.trace,
            speculation=self._speculation(role, limits) if options.mode.endswith("sd") else None,
        )

    def _runner(self, role: Role, model: CausalLM, limits: Limits) -> ModelRunner:
        options, models = self.options, self.models
        nodes = sum(options.width**level for level in range(options.depth + 1)) if options.mode.startswith("lr") else 1
        leaves = prod(options.branching) if options.mode.endswith("sd") and options.drafter == "tree" else 1
        return ModelRunner(
            model,
            num_blocks=models.num_blocks or _blocks(len(self.prompt), limits, 2 * nodes, leaves),
            block_size=BLOCK_SIZE,
            vocab_size=models.codec.vocab_size,
            known_tokens=models.known_tokens if role is Role.DRAFT else None,
            observer=partial(self._saw_forward, role),
        )

    def _speculation(self, role: Role, limits: Limits) -> Speculation | None:
        """How this role's tokens are guessed. A draft model does not draft for itself."""
        options, models = self.options, self.models
        if options.drafter not in DRAFT_MODEL_DRAFTERS:
            return make_speculation(options, self.sampling, models.codec.eos_ids, runner=None)
        if role is Role.DRAFT:
            return None
        assert models.draft is not None
        runner = self._runner(Role.DRAFT, models.draft, limits)
        return make_speculation(options, self.sampling, models.codec.eos_ids, runner=runner)

    def _saw_forward(self, role: Role, branches: int, tokens: int, seconds: float) -> None:
        self.trace.record(ForwardPass(role, branches, tokens, seconds))


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
