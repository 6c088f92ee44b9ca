"""The engine keeps models, their caches and CUDA graphs, and runs the loop that answers
questions with them.

    engine = reasoner.engine
    answers = [reasoner.run(question) for question in questions]
    for answer, step in engine.serve(answers, concurrency=4):
        ...

`Engine.serve` answers one question or many by one `Loop`. Read next: `question.py`, what
is fixed before the first token; `loop.py`, the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lr.engine.answer import Answer, Steps
from lr.engine.loading import Loader, load_parts
from lr.engine.loop import Loop
from lr.engine.question import Question, limits_of, recommended_sampling
from lr.engine.runner import IdleRunners, num_kv_blocks_needed, room
from lr.engine.worker import DraftWorker
from lr.errors import SettingError
from lr.model.codec import Codec
from lr.model.device import can_share_weights, is_one_gpu, own_stream
from lr.model.qwen import CausalLM
from lr.options import GenerateOptions, Mode
from lr.spec.variant import Variant, apply_settings
from lr.spec.verifiers.base import NEEDS_READING, Verifier
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
    target_model: CausalLM
    draft_model: CausalLM | None = None
    known_tokens: int | None = None
    num_blocks: int | None = None
    worker: DraftWorker | None = None
    loader: Loader = field(default_factory=Loader)
    names: Mapping[str, str | Path | None] = field(default_factory=dict)
    runners: dict[Role, IdleRunners] = field(init=False)
    beside: IdleRunners | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        vocab_size = self.codec.vocab_size
        target = IdleRunners(self.target_model, vocab_size, None, self.num_blocks)
        self.runners = {Role.TARGET: target}  # whoever runs a model borrows one
        if self.draft_model is None:
            return
        drafts = IdleRunners(
            self.draft_model, vocab_size, self.known_tokens, self.num_blocks
        )
        self.runners[Role.DRAFT] = drafts
        self.worker = self.worker or self._new_worker(self.draft_model, drafts)

    def _new_worker(self, draft: CausalLM, drafts: IdleRunners) -> DraftWorker:
        """A process, which reads these weights if it can and else loads the checkpoint
        too; a thread if the draft has no checkpoint, or shares a GPU with the target."""
        name = self.names.get("draft")
        token_bytes = self.codec.token_bytes
        if name is None or is_one_gpu(draft.device, self.target_model.device):
            self.beside = beside = replace(drafts, idle=[])  # caches of its own
            # shares what is here; a lambda could not be pickled
            parts = partial(tuple[Any, Any], (beside, token_bytes))
            return DraftWorker(parts, as_thread=True)
        weights = draft.state_dict().values()
        size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
        # packed matrices cannot be read by another process
        packed = any(tensor.is_mkldnn for tensor in weights)
        shared = not packed and can_share_weights(draft.device, size)
        load = partial(
            load_parts,
            self.loader,
            name,
            draft.device,
            model=draft if shared else None,
            # a process cannot call our codec
            pieces=tuple(map(token_bytes, range(self.codec.vocab_size))),
            known_tokens=self.known_tokens,
            num_blocks=self.num_blocks,
        )
        return DraftWorker(load)

    @property
    def usual_mode(self) -> Mode:
        """The mode of an answer whose options name none: what the target's checkpoint
        names, else the fastest that the models allow."""
        if self.draft_model is None:
            return "ar"
        stated: Mode | None = self.codec.generation_config.get("mode")
        return stated or "lr+sd"

    def question(
        self,
        text: str,
        options: GenerateOptions,
        verifier: Verifier,
        variant: Variant | None = None,
    ) -> Question:
        """A question to these models. Raises `SettingError`, and `ContextError` if there
        is no room for an answer."""
        if isinstance(text, str) and not text.strip():
            raise SettingError("the question is empty; give a question.")
        variant = variant or Variant()
        options = apply_settings(options, variant, self.usual_mode)
        prompt = self.codec.chat(
            text, system=options.system, enable_thinking=options.enable_thinking
        )
        # Without a draft model the target's own context is the limit.
        draft = self.draft_model if options.needs_draft else self.target_model
        if draft is None:
            raise SettingError(
                f"mode {options.mode!r} needs a draft model here; give a draft or use "
                "mode 'ar'."
            )
        limits = limits_of(options, len(prompt), self.target_model.config, draft.config)
        verifier = variant.verifier or verifier
        reads = options.looks_ahead and bool(verifier.requires & NEEDS_READING)
        longest = len(prompt) + limits.max_tokens  # tokens on a branch
        target = self.target_model
        models = {**self.names, "device": target.device, "dtype": target.dtype}
        return Question(
            text,
            options,
            verifier,
            variant,
            self.codec,
            sampling=options.sampling(recommended_sampling(self.codec)),
            prompt=tuple(prompt),
            limits=limits,
            blocks=num_kv_blocks_needed(options, longest, reads=reads),
            num_blocks=self.num_blocks,
            models={k: str(v).removeprefix("torch.") for k, v in models.items() if v},
        )

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
        question = answers[0].question
        theirs = question.codec is self.codec
        require(theirs, "answers", "those of another reasoner", "answers of this one")
        with ExitStack() as stack:
            stream = stack.enter_context(own_stream(self.target_model.device))
            with stream():
                loop = Loop(
                    answers,
                    concurrency,
                    self.runners,
                    self.worker if self.overlaps(question.options) else None,
                    self.cache_size(answers, concurrency),
                    stack,
                )
            while loop.waiting or loop.live:
                with stream():
                    loop.admit()
                    loop.step()
                yield from loop.hand_over()

    def cache_size(self, answers: Sequence[Answer], concurrency: int) -> int:
        """How many blocks each cache is to have: `num_blocks`, or what the answers
        need, on CUDA at most what fits."""
        largest = max(answer.question.blocks for answer in answers)
        blocks = largest * min(concurrency, len(answers))
        if self.num_blocks is not None:
            blocks = self.num_blocks
        # not None: on CUDA
        elif (fitting := room(self._caches(answers[0].question.options))) is not None:
            rounded = -(-blocks // ROUND) * ROUND  # up
            blocks = min(rounded if 16 * rounded <= fitting else blocks, fitting)
        return blocks

    def _caches(self, options: GenerateOptions) -> list[IdleRunners]:
        """The caches that an answer with these options uses. A worker's process has one
        like the draft's here."""
        caches = [self.runners[Role.TARGET]]
        if options.looks_ahead:
            beside = self.beside if self.overlaps(options) else None
            caches.append(beside or self.runners[Role.DRAFT])
        if options.drafts_tokens:  # the draft model in its second role
            caches.append(self.runners[Role.DRAFT])
        return caches

    def close(self) -> None:
        """End the draft's worker, if any, and free the caches with their CUDA graphs."""
        if self.worker is not None:
            self.worker.close()
        for runners in (self.beside, *self.runners.values()):
            if runners is not None:
                runners.end()
        self.target_model.close()


def require_alike(answers: Sequence[Answer]) -> None:
    """Raise `SettingError` unless the answers can share verifier and writers."""
    shared = [
        (q.codec, q.verifier, q.variant, replace(q.options, **OWN))
        for q in (answer.question for answer in answers)
    ]
    alike = all(each == shared[0] for each in shared)
    expected = "of one verifier, variant and options, except " + ", ".join(OWN)
    require(alike, "answers", "a list of unlike ones", expected)
