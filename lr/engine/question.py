"""A question and how it is to be answered: what is fixed before the first token.

From options, variant and models follow the prompt, the limits, the randomness of every
step, and how scheduler and writers work. `Answer` (`answer.py`) adds the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lr.engine.runner import num_kv_blocks_needed
from lr.engine.side import DraftPlan
from lr.errors import CheckpointError, ContextError, SettingError
from lr.model.codec import Codec
from lr.options import GenerateOptions, Mode
from lr.rng import Stream
from lr.spec.acceptance import RULES
from lr.spec.drafters import make_drafter
from lr.spec.protocol import Limits, NodeId, Schedule, SchedulerConfig
from lr.spec.runner import Runner
from lr.spec.segmenters import make_segmenter
from lr.spec.token_sd import DrafterSetup, Speculation
from lr.spec.variant import Variant, apply_settings
from lr.spec.verifiers.base import Requires, Verifier
from lr.spec.write import BlankLineSegmenter, Segmenter, TokenBytes, WriterConfig
from lr.types import Role, SamplingParams

if TYPE_CHECKING:
    from lr.engine.engine import Engine

LONGEST_ANSWER = 32768  # tokens, if `max_tokens` is not given


class Question:
    """A question with its models, options, verifier and variant. `blocks`: cache blocks
    per model that always suffice for its answer."""

    def __init__(
        self,
        engine: Engine,
        question: str,
        options: GenerateOptions,
        verifier: Verifier,
        variant: Variant | None = None,
    ) -> None:
        if isinstance(question, str) and not question.strip():
            raise SettingError("the question is empty; give a question.")
        self.engine = engine
        self.question = question
        self.variant = Variant() if variant is None else variant
        self.verifier = self.variant.verifier or verifier
        self.options = apply_settings(options, self.variant, engine.usual_mode)
        self.sampling = self.options.sampling(recommended_sampling(engine.codec))
        self.prompt = engine.codec.chat(
            question,
            system=self.options.system,
            enable_thinking=self.options.enable_thinking,
        )
        self.limits = self._limits()
        self.blocks = num_kv_blocks_needed(
            self.options,
            len(self.prompt) + self.limits.max_tokens,
            reads=bool(self.requires & Requires.TARGET_LOGPROBS),
        )

    @property
    def mode(self) -> Mode:
        mode = self.options.mode
        assert mode is not None, "chosen when the question was asked"
        return mode

    @property
    def requires(self) -> Requires:
        """What the verifier must be shown; nothing if there are no draft steps."""
        return self.verifier.requires if self.options.looks_ahead else Requires.NOTHING

    def role_stream(self, role: Role) -> Stream:
        """The randomness of all steps that a role writes."""
        root = Stream.root(self.options.seed)
        return root.fold_in(self.question, self.options.sample, role.value)

    def draft_plan(self) -> DraftPlan:
        """How the draft's steps are written. With coupling shared, the first
        alternative of each is drawn with the target's noise; the others never are."""
        options = self.options
        shared = options.coupling == "shared"
        begins_ahead = options.width == 1 and self.variant.step_source is None
        return DraftPlan(
            root=NodeId(0, 0),
            prompt=tuple(self.prompt),
            limits=self.limits,
            first=self.role_stream(Role.TARGET if shared else Role.DRAFT),
            others=self.role_stream(Role.DRAFT),
            window=options.depth if begins_ahead else 0,
        )

    def writer_config(
        self, role: Role, draft_runner: Runner | None = None
    ) -> WriterConfig:
        """How a role writes. `draft_runner`: the draft model, for the target's token
        drafter."""
        options = self.options
        is_draft = role is Role.DRAFT
        floor = options.draft_floor if is_draft else None
        reads_draft = is_draft and bool(self.requires & Requires.DRAFT_LOGPROBS)
        speculation = None
        if options.speculates:
            speculation = self.token_speculation(role, draft_runner)
        return WriterConfig(
            role=role,
            sampling=self.sampling,
            eos_ids=self.engine.codec.eos_ids,
            segmenter=self.segmenter(),
            speculation=speculation,
            keeps_logprobs=reads_draft or floor is not None,
            floor=floor,
        )

    def token_speculation(
        self, role: Role, draft_runner: Runner | None
    ) -> Speculation | None:
        """How tokens are proposed to this role; None: no token-level speculation."""
        options = self.options
        variant = self.variant
        if role is Role.DRAFT and (options.drafts_tokens or variant.drafter):
            return None
        setup = DrafterSetup(draft_runner, self.sampling, self.engine.codec.eos_ids)
        return Speculation(
            drafter=variant.make("drafter", setup) or make_drafter(options, setup),
            rule=variant.make("rule") or RULES[options.acceptance](),
            num_speculative_tokens=options.num_speculative_tokens,
            checked=variant.drafter is not None,
        )

    def segmenter(self) -> Callable[[TokenBytes], Segmenter]:
        options = self.options
        if self.variant.segmenter is not None:
            return partial(self.variant.make, "segmenter")
        if options.segmenter == "blank_line":
            return BlankLineSegmenter
        return partial(
            make_segmenter, options.segmenter, segment_tokens=options.segment_tokens
        )

    def scheduler_config(self) -> SchedulerConfig:
        options = self.options
        verifier = self.verifier
        if not options.looks_ahead:
            return SchedulerConfig(self.limits, depth=0)
        needs_target_step = bool(verifier.requires & Requires.TARGET_STEP)
        return SchedulerConfig(
            limits=self.limits,
            schedule=Schedule(options.schedule),
            depth=options.depth,
            width=options.width,
            max_target_rows=options.max_target_rows,
            reject_late=options.late_drafts == "reject",
            needs_target_step=needs_target_step,
            choose=verifier.choose if verifier.chooses else None,
        )

    def _limits(self) -> Limits:
        """How long the answer may become. Raises `ContextError` if there is no room for
        any."""
        length = len(self.prompt)
        context = self.engine.target.config.max_position_embeddings
        if length >= context:
            raise ContextError(
                f"the prompt has {length} tokens and the target's context is {context}, so there "
                "is no room for an answer. Shorten the question or the system message."
            )
        draft = self.engine.draft if self.options.needs_draft else self.engine.target
        if draft is None:
            raise SettingError(
                f"mode {self.options.mode!r} needs a draft model here; give a draft or use "
                "mode 'ar'."
            )
        return Limits(
            max_tokens=min(context - length, self.options.max_tokens or LONGEST_ANSWER),
            max_step_tokens=self.options.max_step_tokens,
            ignore_half_sentence=self.options.ignore_half_sentence,
            max_drafted=draft.config.max_position_embeddings - length,
        )


def recommended_sampling(codec: Codec) -> SamplingParams:
    """What the checkpoint recommends, else temperature 0.6 (paper). Raises
    `CheckpointError`."""
    stated = codec.generation_config
    if stated.get("do_sample") is False:
        return SamplingParams(temperature=0.0)
    names = ("temperature", "top_p", "top_k")
    settings = {n: stated[n] for n in names if stated.get(n) is not None}
    try:
        return SamplingParams(**settings)
    except SettingError as error:
        raise CheckpointError(
            f"generation_config.json of {codec.name}: {error}"
        ) from None
