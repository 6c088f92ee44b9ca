"""The API for programs: load a target and a draft once, then ask questions.

    reasoner = Reasoner()                      # the tiny family
    result = reasoner.generate(
        "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
    )
    print(result.answer, result.stats.step_acceptance)

Tokenizers and the verifier's name are checked before the target, the draft and the
verifier's model are loaded. Named verifiers (`lr/spec/verifiers/named.py`) are found
through `lr/registry.py`. The algorithm is in `lookahead.py`, on one page. Read next:
`engine/engine.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack

import torch

from lr.engine.engine import Engine, Models, Run
from lr.engine.runner import Runners
from lr.engine.worker import DraftWorker, Parts
from lr.errors import SettingError
from lr.model.attention_choice import equip
from lr.model.codec import Codec, require_same
from lr.model.device import Device, DeviceMap
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.options import GenerateOptions, OptionArguments, make_options
from lr.registry import find
from lr.result import Result
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Verifier, check_verifier
from lr.types import require

MOST_BLOCKS = 1 << 24  # in one cache: 268 million tokens
Method = TypeVar("Method", bound=Callable[..., object])


def showing_options(method: Method) -> Method:
    """Show the fields of `GenerateOptions` instead of `**options` in the signature of
    `method`, so that `help` and notebooks list them with their defaults."""
    signature = inspect.signature(method)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            one.name, own[-1].KEYWORD_ONLY, default=one.default, annotation=one.type
        )
        for one in fields(GenerateOptions)
    ]
    method.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return method


class Reasoner:
    """A target, a draft and a verifier, ready to answer.

    `target` and `draft` share a tokenizer. Each is the name of a tiny model, a
    directory or a hub id. `draft=None` allows only plain decoding.

    `verifier` is a `Verifier` or a name: "exact", "judge", "embedding:0.95", "oracle"
    for the tiny language, ... (`spec/verifiers/named.py`). None selects "judge" if
    `judge` is given or the target is "tiny-target", and "exact" otherwise. `judge`
    is the verifier's checkpoint: a language model for "judge", an encoder for
    "embedding".

    `dtype` None: float32 on the CPU, else the checkpoint's. `device`: one for all
    models, or a mapping from "target", "draft" and "judge" (default: the target's).
    Several devices, such as ["cuda:0", "cuda:1"], split the target over as many
    processes (`model/ranks.py`). `num_blocks`: cache blocks of 16 tokens per model;
    None: as many as the answers need. `use_attention` explains `attention` and
    `graphs`, which here apply to all three models.

    Caches are kept between answers. The first question with driver "overlapped" starts
    a process, which does not import your script and lives until `close`, the end of a
    `with` block or the end of the reasoner. Raises `CheckpointError` or `SettingError`;
    warns of settings in the target's generation_config.json that have no effect.
    """

    def __init__(
        self,
        target: str | Path = "tiny-target",
        draft: str | Path | None = "tiny-draft",
        verifier: str | Verifier | None = "oracle",
        *,
        judge: str | Path | None = None,
        device: Device | Mapping[str, Device] | DeviceMap = "cpu",
        dtype: torch.dtype | None = None,
        num_blocks: int | None = None,
        attention: str = "auto",
        graphs: bool = True,
    ) -> None:
        allowed = num_blocks is None or 0 < num_blocks <= MOST_BLOCKS
        require(allowed, "num_blocks", num_blocks, f"1 to {MOST_BLOCKS}, or None")
        devices = DeviceMap.of(device)
        codec = Codec.load(target)
        known_tokens = codec.vocab_size
        if draft is not None:
            draft_codec = Codec.load(draft)
            require_same(codec, draft_codec)
            known_tokens = draft_codec.vocab_size
        if dtype is None and devices.target[0].type == "cpu":
            dtype = torch.float32

        if verifier is None:
            verifier = find("lr.engine.verifiers:usual_verifier")(codec, judge)
        choice = None
        if not isinstance(verifier, str):
            verifier = check_verifier(verifier)
        elif draft is not None or judge is not None:
            how = (devices.judge, dtype, num_blocks, attention, graphs)
            choice = find("lr.engine.verifiers:VerifierChoice")(
                verifier, codec, judge, *how
            )
        used = verifier if isinstance(verifier, str) else verifier.name
        given = {"target": target, "draft": draft, "judge": judge, "verifier": used}
        names = {
            role: None if name is None else str(name) for role, name in given.items()
        }

        if devices.ranks > 1:
            from lr.model.ranks import load_parallel

            target_model: CausalLM = load_parallel(target, devices.target, dtype)
        else:
            target_model = load_model(target, device=devices.target[0], dtype=dtype)
        draft_model = None
        if draft is not None:
            draft_model = load_model(draft, device=devices.draft, dtype=dtype)
            if (rows := draft_model.config.vocab_size) < codec.vocab_size:
                raise SettingError(
                    f"draft {draft} has embeddings for {rows} token ids, but target {target} can "
                    f"write {codec.vocab_size}. Choose a draft with an embedding for each of them."
                )
        models = Models(
            codec, target_model, draft_model, known_tokens, num_blocks, names=names
        )
        if draft is not None and len(models.here) == 2:
            models.worker = draft_worker(draft, models, devices)
        self.models, self.engine, self.codec = models, Engine(models), codec
        try:
            self.use_attention(attention, graphs=graphs)
            if choice is not None and draft is not None:
                verifier, models.judge = choice.build(target_model), choice.model
                if models.judge is not None and models.judge.device.type == "cuda":
                    threaded = find("lr.engine.deferred:ThreadedVerifier")
                    verifier = threaded(verifier, models.judge.device)
        except BaseException:
            self.close()
            raise
        self.verifier: str | Verifier = verifier
        find("lr.model.generation_config:warn_unsupported")(codec)

    @showing_options
    def generate(
        self,
        question: str,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        engine: Literal["scheduler", "page"] = "scheduler",
        **options: Unpack[OptionArguments],
    ) -> Result:
        """Answer a question. `GenerateOptions` explains `options`: mode, depth,
        temperature, ...

        `variant` replaces parts of the algorithm (`docs/variants_steps.md`); `options`
        override its settings. `detailed` records everything that happens, not only what
        statistics need (`docs/trace.md`). `engine` "page" runs the code of
        `lr/lookahead.py`."""
        run = self.run(
            question, variant=variant, detailed=detailed, engine=engine, **options
        )
        return run.finish()

    @showing_options
    def run(
        self,
        question: str,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        engine: Literal["scheduler", "page"] = "scheduler",
        **options: Unpack[OptionArguments],
    ) -> Run:
        """Begin an answer, as `generate` does: iterate over the `Run` to get its
        steps."""
        require(engine in ("scheduler", "page"), "engine", engine, "scheduler or page")
        made, serve = make_options(**options), None
        if isinstance(
            variant, Variant
        ):  # an option overrides its setting, even by its default
            settings = {n: options.get(n, own) for n, own in variant.settings.items()}
            variant = replace(variant, settings=settings)
        if engine == "page":
            require(
                made.looks_ahead, "mode", made.mode, 'lr or lr+sd with engine "page"'
            )
            serve = find("lr.engine.page:serve_page")
        return Run(
            self.engine,
            self.verifier,
            question,
            made,
            variant,
            detailed=detailed,
            serve=serve,
        )

    def use_attention(self, name: str = "auto", *, graphs: bool = True) -> None:
        """Choose the attention of target and draft from the next question on. With
        `graphs` they use CUDA graphs on CUDA devices. What a verifier asks a model
        keeps the present attention. Raises `SettingError` for a kind that cannot run
        (`docs/attention.md` lists all)."""
        worker = self.models.worker
        for model in self.models.here.values():
            equip(model, name, graphs=graphs)
        if worker is not None:
            worker.close()  # the next answer starts another, with this attention
            if not worker.as_thread:
                load: Any = worker.load
                worker.load = partial(load, attention=name, graphs=graphs)
        self.engine.forget_caches()

    def close(self) -> None:
        """End the draft's process, if any, and free all CUDA graphs. Another question
        starts a new process and new graphs, except that what verifiers ask then runs
        without graphs. A target that is split over several ranks is ended for good."""
        if (worker := self.models.worker) is not None:
            worker.close()
            if worker.as_thread:
                worker.load()[0].end()
        self.engine.forget_caches()
        for model in (self.models.draft, self.models.judge, self.models.target):
            if isinstance(model, CausalLM):
                for runner in model.asked:
                    if runner.graphs is not None:
                        runner.graphs.forget()
                model.close()

    def __enter__(self) -> Reasoner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def draft_worker(name: str | Path, models: Models, devices: DeviceMap) -> DraftWorker:
    """The worker of a loaded draft: a thread shares its weights, a process loads its
    own."""
    model, codec = models.draft, models.codec
    assert model is not None
    how = (codec.vocab_size, models.known_tokens, models.num_blocks)
    if devices.shares_gpu:
        parts = (Runners(model, *how), codec.token_bytes)
        return DraftWorker(lambda: parts, as_thread=True)
    tokens = tuple(map(codec.token_bytes, range(codec.vocab_size)))
    return DraftWorker(
        partial(load_parts, name, devices.draft, model.dtype, tokens, how)
    )


def load_parts(
    name: str | Path,
    device: torch.device,
    dtype: torch.dtype,
    tokens: Sequence[bytes],
    how: tuple[int, int, int | None],
    attention: str = "auto",
    graphs: bool = True,
) -> Parts:
    """Make the parts of a worker process. `tokens`: the bytes of each token, by id.
    `how`: `vocab_size`, `known_tokens` and `num_blocks` of `Runners`."""
    model = load_model(name, device=device, dtype=dtype)
    equip(model, attention, graphs=graphs)
    return Runners(model, *how), tokens.__getitem__
