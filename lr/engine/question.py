"""A question and how it is to be answered: what is fixed before the first token.

From options, variant and models follow the prompt, the limits, the randomness of every
step, and how scheduler and writers work. An `Answer` (`answer.py`) has a question, and
the steps so far. Read next: `loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from lr.engine.side import DraftPlan
from lr.errors import CheckpointError, ContextError, SettingError
from lr.model.codec import Codec
from lr.model.config import ModelConfig
from lr.options import DRAFTER_OPTIONS, GenerateOptions, Mode
from lr.rng import Stream
from lr.spec.acceptance import RULES
from lr.spec.drafters import make_drafter
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.runner import Runner
from lr.spec.segmenters import make_segmenter
from lr.spec.token_sd import Drafter, DrafterSetup, Speculation
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Requires, TakesEvidence, Verifier
from lr.spec.write import Segmenter, TokenBytes, WriterConfig, above
from lr.types import Role, SamplingParams, require

LONGEST_ANSWER = 32768  # tokens, if `max_tokens` is not given


@dataclass(frozen=True, eq=False)
class Question:
    """A question with its options, verifier and variant, for models with this `codec`.
    `blocks`: cache blocks per model that always suffice for its answer; `num_blocks`:
    as in `Reasoner`. `models`: the names of target, draft,
    judge and verifier, and the target's device and dtype.
    """

    text: str  # as the user asked
    options: GenerateOptions
    verifier: Verifier  # the variant's, or the reasoner's
    variant: Variant
    codec: Codec  # the target's
    sampling: SamplingParams  # of target and draft
    prompt: tuple[int, ...]  # token ids, from the chat template
    limits: Limits
    blocks: int
    num_blocks: int | None
    models: Mapping[str, str]

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
        root = Stream.root(self.options.seed)  # (seed, question, sample, role)
        return root.fold_in(self.text, self.options.sample, role.value)

    def draft_plan(self) -> DraftPlan:
        """How the draft's steps are written. With coupling shared, the first
        alternative of each is drawn with the target's noise; the others never are."""
        options = self.options
        shared = options.coupling == "shared"
        # The next draft step can begin early only if it is known where: after the one
        # alternative that the draft model writes itself.
        begins_ahead = options.width == 1 and self.variant.step_source is None
        return DraftPlan(
            prompt=self.prompt,
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
        logs = Requires.OWN_LOGPROBS
        goes_on = None
        if role is Role.DRAFT:
            logs = Requires.DRAFT_LOGPROBS
            goes_on = self._goes_on()
        speculation = None
        if options.speculates:
            speculation = self.token_speculation(role, draft_runner)
        return WriterConfig(
            role=role,
            sampling=self.sampling,
            eos_ids=self.codec.eos_ids,
            segmenter=self.segmenter(),
            speculation=speculation,
            keeps_logprobs=logs in self.requires or goes_on is not None,
            goes_on=goes_on,
        )

    def _goes_on(self) -> Callable[..., bool] | None:
        """Whether the draft goes on with a step; None: always."""
        floor = self.options.draft_floor
        source = self.variant.step_source
        if source is None or not source.gives_up:
            return None if floor is None else partial(above, floor)
        expected = "None: the variant's step source has its own"
        require(floor is None, "draft_floor", floor, expected)
        return source.goes_on

    def watched_layer(self, speculation: Speculation | None) -> str | None:
        """The layer whose hidden states a part of the target's side requires, if any."""
        parts: list[TakesEvidence] = [self.verifier] if self.options.looks_ahead else []
        if speculation is not None:
            parts += [speculation.rule, speculation.drafter]
        layers = {part.layer for part in parts if Requires.HIDDEN in part.requires}
        require(len(layers) < 2, "layer", layers, "the same for all parts")
        return next(iter(layers), None)

    def token_speculation(
        self, role: Role, draft_runner: Runner | None
    ) -> Speculation | None:
        """How tokens are proposed to this role; None: no token-level speculation."""
        options = self.options
        variant = self.variant
        rule = variant.make("rule") or RULES[options.acceptance]()
        # What a rule requires is the target's.
        drafted = options.drafts_tokens or variant.drafter or rule.requires
        if role is Role.DRAFT and drafted:
            return None  # the draft's own tokens are not drafted
        setup = DrafterSetup(draft_runner, self.sampling, self.codec.eos_ids, options)
        drafter = variant.make("drafter", setup)
        if drafter is not None:
            self._require_followed(drafter)
        return Speculation(
            drafter=drafter or make_drafter(setup),
            rule=rule,
            num_speculative_tokens=options.num_speculative_tokens,
            checked=variant.drafter is not None,  # ours are trusted
        )

    def _require_followed(self, drafter: Drafter) -> None:
        """Raise `SettingError` for an option that the variant's drafter ignores."""
        usual = vars(GenerateOptions()) | dict(self.variant.settings)
        for name in set(DRAFTER_OPTIONS).difference(drafter.reads):
            value = getattr(self.options, name)
            expected = (
                f"{usual[name]!r}: the variant's drafter {drafter.name!r} ignores it"
            )
            # draft steps follow it, too
            fits = name == "coupling" and self.options.looks_ahead
            require(fits or value == usual[name], name, value, expected)

    def segmenter(self) -> Callable[[TokenBytes], Segmenter]:
        if self.variant.segmenter is not None:
            return partial(self.variant.make, "segmenter")
        length = self.options.segment_tokens
        return partial(make_segmenter, self.options.segmenter, segment_tokens=length)

    def scheduler_config(self) -> SchedulerConfig:
        options = self.options
        verifier = self.verifier
        if not options.looks_ahead:
            return SchedulerConfig(self.limits, depth=0)  # no drafts: plain decoding
        return SchedulerConfig(
            limits=self.limits,
            schedule=Schedule(options.schedule),
            depth=options.depth,
            width=options.width,
            max_target_rows=options.max_target_rows,
            reject_late=options.late_drafts == "reject",
            needs_target_step=Requires.TARGET_STEP in verifier.requires,
            choose=verifier.choose if verifier.chooses else None,
        )


def limits_of(
    options: GenerateOptions, length: int, target: ModelConfig, draft: ModelConfig
) -> Limits:
    """How long an answer may become after a prompt of `length` tokens. Raises
    `ContextError` if there is no room for any."""
    context = target.max_position_embeddings
    if length >= context:
        raise ContextError(
            f"the prompt has {length} tokens and the target's context is {context}, so there "
            "is no room for an answer. Shorten the question or the system message."
        )
    return Limits(
        max_tokens=min(context - length, options.max_tokens or LONGEST_ANSWER),
        max_step_tokens=options.max_step_tokens,
        ignore_half_sentence=options.ignore_half_sentence,
        # after them, the target goes on alone
        max_drafted=draft.max_position_embeddings - length,
    )


def recommended_sampling(codec: Codec) -> SamplingParams:
    """What the checkpoint recommends, else temperature 0.6 (paper). Raises
    `CheckpointError`."""
    stated = codec.generation_config
    if stated.get("do_sample") is False:
        return SamplingParams(temperature=0.0)  # greedy
    names = ("temperature", "top_p", "top_k")
    settings = {n: stated[n] for n in names if stated.get(n) is not None}
    try:
        return SamplingParams(**settings)
    except SettingError as error:
        raise CheckpointError(
            f"generation_config.json of {codec.name}: {error}"
        ) from None
