"""The front door for programs: load a target and a draft once, then ask questions.

    reasoner = Reasoner()                      # the tiny family
    result = reasoner.generate("At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?")
    print(result.answer, result.stats.step_acceptance)

`generate` answers in one go; `run` gives the steps one by one, as they are decided. The algorithm itself is in `spec/reference.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path

import torch

from lr.engine.runner import ModelRunner
from lr.engine.speculation import make_speculation
from lr.engine.verification import choose_verifier
from lr.errors import ContextError, SettingError
from lr.model.codec import Codec, require_same
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.options import DRAFT_MODEL_DRAFTERS, GenerateOptions, needs_draft
from lr.result import AnswerStep, Result
from lr.rng import Stream
from lr.spec.reference import lookahead
from lr.spec.steps import BlankLineSegmenter
from lr.spec.token_sd import Speculation
from lr.spec.verifiers.base import Verifier
from lr.spec.write import Limits, StepWriter, decode_plainly
from lr.trace import ForwardPass, Trace
from lr.types import EmittedStep, Role, SamplingParams

LONGEST_ANSWER = 32768
BLOCK_SIZE = 16


class Reasoner:
    """A target, a draft and a verifier, ready to answer.

    `target` and `draft` are "tiny-target" and "tiny-draft", directories, or hub ids; they must share a tokenizer. `draft=None` leaves
    plain decoding only. `verifier` is a name ("exact", "judge", "embedding:0.95", ...; "oracle" for the tiny language: all are in
    `spec/verifiers/choose.py`) or an object with `judge` (see `spec/verifiers/base.py`). `judge` is the checkpoint of a verifier that
    has one of its own: a language model for "judge", a sentence encoder for "embedding". `dtype` None: float32 on the CPU, the
    checkpoint's own elsewhere. `num_blocks` cache blocks of 16 tokens per model; None: as many as the answer can need. Raises
    `CheckpointError` or `SettingError`.
    """

    def __init__(
        self,
        target: str | Path = "tiny-target",
        draft: str | Path | None = "tiny-draft",
        verifier: str | Verifier = "oracle",
        *,
        judge: str | Path | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | None = None,
        num_blocks: int | None = None,
    ) -> None:
        self.codec = Codec.load(target)
        self.draft_name = None if draft is None else str(draft)
        if draft is not None:
            draft_codec = Codec.load(draft)
            require_same(self.codec, draft_codec)
            self.known_tokens = draft_codec.vocab_size
        if dtype is None and torch.device(device).type == "cpu":
            dtype = torch.float32
        by_name = isinstance(verifier, str) and (draft is not None or judge is not None)
        choice = choose_verifier(str(verifier), self.codec, judge, device=device, dtype=dtype) if by_name else None
        self.num_blocks = num_blocks
        self.target = load_model(target, device=device, dtype=dtype)
        self.draft = None if draft is None else load_model(draft, device=device, dtype=dtype)
        if self.draft is not None and self.draft.config.vocab_size < self.codec.vocab_size:
            raise SettingError(
                f"draft {draft} embeds {self.draft.config.vocab_size} token ids, target {target} writes {self.codec.vocab_size}. "
                "Choose a draft whose embedding has a row for each of the target's tokens."
            )
        self.verifier = verifier if choice is None or draft is None else choice.build(self.target)

    def generate(self, question: str, **options: object) -> Result:
        """Answer a question. `options` are the fields of `GenerateOptions`: mode, depth, temperature, seed, max_tokens, ..."""
        return self.run(question, **options).finish()

    def run(self, question: str, **options: object) -> Run:
        """Begin to answer: iterate over the returned `Run` to get the steps as they are decided."""
        return Run(self, question, make_options(**options))


def make_options(**changes: object) -> GenerateOptions:
    """Options from keyword arguments; an unknown name is a `SettingError` that lists the known ones."""
    known = [field.name for field in dataclasses.fields(GenerateOptions)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise SettingError(f"there is no option {', '.join(unknown)}; the options are {', '.join(known)}.")
    return GenerateOptions(**changes)  # type: ignore[arg-type]


class Run:
    """One answer in the making. Iterating yields its steps; `finish` runs to the end and returns the `Result`."""

    def __init__(self, reasoner: Reasoner, question: str, options: GenerateOptions) -> None:
        self.reasoner, self.question, self.options = reasoner, question, options
        self.trace = Trace()
        self.steps: list[AnswerStep] = []
        codec = reasoner.codec
        self.prompt = codec.chat(question, system=options.system, enable_thinking=options.enable_thinking)
        self.sampling = options.sampling(_default_sampling(codec))
        self._emitted = self._start()

    def __iter__(self) -> Iterator[AnswerStep]:
        decode = self.reasoner.codec.decode
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
        options, reasoner = self.options, self.reasoner
        drafting = needs_draft(options)
        if drafting and reasoner.draft is None:
            raise SettingError(f"mode {options.mode!r} needs a draft model here; give one, or use mode 'ar'.")
        models = [reasoner.target] if reasoner.draft is None or not drafting else [reasoner.target, reasoner.draft]
        limits = self._limits(*models)
        target = self._writer(Role.TARGET, reasoner.target, limits)
        if not options.mode.startswith("lr"):
            return decode_plainly(self.prompt, target, limits)
        assert reasoner.draft is not None
        assert not isinstance(reasoner.verifier, str)
        draft = self._writer(Role.DRAFT, reasoner.draft, limits)
        return lookahead(self.prompt, target, draft, reasoner.verifier, limits, options.depth)

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
        options, reasoner = self.options, self.reasoner
        return StepWriter(
            role=role,
            runner=self._runner(role, model, limits),
            sampling=self.sampling,
            segmenter=BlankLineSegmenter(reasoner.codec.token_bytes),
            eos_ids=reasoner.codec.eos_ids,
            stream=Stream.root(options.seed).child(self.question, options.sample, role.value),
            trace=self.trace,
            speculation=self._speculation(role, limits) if options.mode.endswith("sd") else None,
        )

    def _runner(self, role: Role, model: CausalLM, limits: Limits) -> ModelRunner:
        options, reasoner = self.options, self.reasoner
        rows = options.depth + 1 if options.mode.startswith("lr") else 1
        leaves = prod(options.branching) if options.mode.endswith("sd") and options.drafter == "tree" else 1
        return ModelRunner(
            model,
            num_blocks=reasoner.num_blocks or _blocks(len(self.prompt), limits, rows, leaves),
            block_size=BLOCK_SIZE,
            vocab_size=reasoner.codec.vocab_size,
            known_tokens=reasoner.known_tokens if role is Role.DRAFT else None,
            observer=partial(self._saw_forward, role),
        )

    def _speculation(self, role: Role, limits: Limits) -> Speculation | None:
        """How this role's tokens are guessed. A draft model does not draft for itself."""
        options, reasoner = self.options, self.reasoner
        if options.drafter not in DRAFT_MODEL_DRAFTERS:
            return make_speculation(options, self.sampling, reasoner.codec.eos_ids, runner=None)
        if role is Role.DRAFT:
            return None
        assert reasoner.draft is not None
        runner = self._runner(Role.DRAFT, reasoner.draft, limits)
        return make_speculation(options, self.sampling, reasoner.codec.eos_ids, runner=runner)

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
