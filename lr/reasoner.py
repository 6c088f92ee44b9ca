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

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from lr.engine.answer import Answer
from lr.engine.engine import Engine
from lr.engine.own_draft import engine_with
from lr.engine.verifiers import VerifierChoice, usual_verifier
from lr.engine.worker import DraftCheckpoint, DraftWorker
from lr.errors import SettingError
from lr.model.attention_choice import equip
from lr.model.codec import Codec, require_same
from lr.model.device import Device, DeviceMap
from lr.model.generation_config import warn_unsupported
from lr.model.qwen import CausalLM
from lr.model.weights import Progress, load_model, usual_dtype
from lr.options import GenerateOptions, make_options
from lr.page_engine import serve_page
from lr.result import Result
from lr.spec.variant import DraftModel, Variant
from lr.spec.verifiers.base import Verifier, check_verifier
from lr.types import Role, require

MOST_BLOCKS = 1 << 24  # in one cache: 268 million tokens


class Reasoner:
    """A target, a draft and a verifier, ready to answer.

    `target` and `draft` share a tokenizer. Each is the name of a tiny model, a
    directory or a hub id; "int4:" or "int8:" before it quantises its matrices on a CPU
    (`model/quantize.py`). `draft=None` allows only plain decoding.

    `verifier` is a `Verifier` or a name: "exact", "judge", "embedding:0.95", "oracle"
    for the tiny language, ... (`spec/verifiers/named.py`). None selects "judge" if
    `judge` is given or the target is "tiny-target", and "exact" otherwise. `judge`
    is the verifier's checkpoint: a language model for "judge", an encoder for
    "embedding".

    `dtype` None: the checkpoint's; on a CPU, float32 or, for a large model on a
    processor that multiplies it, bfloat16 (`lr info` says which). `device`: one for all
    models, or a mapping from "target", "draft" and "judge" (default: the target's).
    Several devices, such as ["cuda:0", "cuda:1"], split the target over as many
    processes (`model/ranks.py`). `num_blocks`: cache blocks of 16 tokens per model;
    None: as many as the answers need. `attention`: one of those in `docs/attention.md`.
    `graphs`: use CUDA graphs on CUDA devices. `progress` hears how far the loading of
    each model is.

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
        progress: Progress | None = None,
    ) -> None:
        allowed = num_blocks is None or 0 < num_blocks <= MOST_BLOCKS
        require(allowed, "num_blocks", num_blocks, f"1 to {MOST_BLOCKS}, or None")
        devices = DeviceMap.of(device)
        dtype = dtype or usual_dtype(target, devices.target[0])

        # 1. Check tokenizers and the verifier's name before anything large is loaded
        codec = Codec.load(target)
        draft_codec = codec if draft is None else Codec.load(draft)
        require_same(codec, draft_codec)
        if verifier is None:
            verifier = usual_verifier(codec, judge)
        choice = None
        if not isinstance(verifier, str):
            verifier = check_verifier(verifier)
        elif draft is not None or judge is not None:
            how = (devices.judge, dtype, num_blocks, attention, graphs, progress)
            choice = VerifierChoice(verifier, codec, judge, *how)
        used = verifier if isinstance(verifier, str) else verifier.name
        names = {"target": target, "draft": draft, "judge": judge, "verifier": used}

        # 2. Load the models
        target_model: CausalLM
        if devices.ranks > 1:
            from lr.model.ranks import load_parallel

            target_model = load_parallel(target, devices.target, dtype)
        else:
            target_model = load_model(
                target, device=devices.target[0], dtype=dtype, progress=progress
            )
        try:
            equip(target_model, attention, graphs=graphs)
            draft_model = None
            if draft is not None:
                draft_model = load_model(
                    draft, device=devices.draft, dtype=dtype, progress=progress
                )
                equip(draft_model, attention, graphs=graphs)
                require_rows(draft_model, codec)
            if choice is not None and draft is not None:
                verifier = choice.build(target_model, draft_model)
        except BaseException:
            target_model.close()  # ends its ranks, if it has several
            raise
        self._drafting: tuple[DraftModel, Engine] | None = None
        self.codec = codec
        self.verifier: str | Verifier = verifier
        self.engine = Engine(
            codec=codec,
            target=target_model,
            draft=draft_model,
            judge=None if choice is None else choice.model,
            known_tokens=draft_codec.vocab_size,
            num_blocks=num_blocks,
            names={r: None if n is None else str(n) for r, n in names.items()},
        )
        if draft is not None and devices.shares_gpu:
            self.engine.worker = self.engine.draft_thread()
        elif draft is not None:
            load = DraftCheckpoint(
                name=draft,
                device=devices.draft,
                dtype=dtype,
                pieces=tuple(map(codec.token_bytes, range(codec.vocab_size))),
                known_tokens=draft_codec.vocab_size,
                num_blocks=num_blocks,
                attention=attention,
                graphs=graphs,
            )
            self.engine.worker = DraftWorker(load)
        warn_unsupported(codec)

    def generate(
        self,
        question: str,
        options: GenerateOptions | None = None,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        engine: Literal["scheduler", "page"] = "scheduler",
        **changes: Any,
    ) -> Result:
        """Answer a question. `options`: mode, depth, temperature, ...; `changes` are
        fields of `GenerateOptions` that differ from them: `generate(question,
        mode="sd", temperature=0)`.

        `variant` replaces parts of the algorithm (`docs/variants.md`); `changes`
        override its settings. `detailed` records everything that happens, not only what
        statistics need (`docs/trace.md`). `engine` "page" runs the code of
        `lr/lookahead.py`."""
        answer = self.run(
            question,
            options,
            variant=variant,
            detailed=detailed,
            engine=engine,
            **changes,
        )
        return answer.finish()

    def run(
        self,
        question: str,
        options: GenerateOptions | None = None,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        engine: Literal["scheduler", "page"] = "scheduler",
        **changes: Any,
    ) -> Answer:
        """Begin an answer, as `generate` does: iterate over it to get its steps."""
        require(engine in ("scheduler", "page"), "engine", engine, "scheduler or page")
        options = make_options(options, **changes)
        if isinstance(variant, Variant):  # `changes` override even by a default
            own = variant.settings.items()
            settings = {name: changes.get(name, value) for name, value in own}
            variant = replace(variant, settings=settings)
        if engine == "page":
            expected = 'lr or lr+sd with engine "page"'
            require(options.looks_ahead, "mode", options.mode, expected)
        return Answer(
            self._engine_for(variant),
            question,
            options,
            self.verifier,
            variant,
            detailed=detailed,
            serve=serve_page if engine == "page" else None,
        )

    def _engine_for(self, variant: Variant | None) -> Engine:
        """The engine; with the variant's draft, if it has one. The last one is kept."""
        if variant is None or variant.draft is None:
            return self.engine
        if self._drafting is None or self._drafting[0] is not variant.draft:
            self._forget_draft()
            self._drafting = variant.draft, engine_with(self.engine, variant.draft)
        return self._drafting[1]

    def _forget_draft(self) -> None:
        if self._drafting is not None:
            other = self._drafting[1]
            if other.worker is not None:
                other.worker.close()
            other.runners[Role.DRAFT].end()
        self._drafting = None

    def close(self) -> None:
        """End the draft's process, if any, and free all CUDA graphs. Another question
        starts a new process and new graphs, except that what verifiers ask then runs
        without graphs. A target that is split over several ranks is ended for good."""
        self._forget_draft()
        self.engine.close()

    def __enter__(self) -> Reasoner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def require_rows(draft: CausalLM, codec: Codec) -> None:
    """Raise `SettingError` unless the draft can read all tokens of the target."""
    rows = draft.config.vocab_size
    if rows < codec.vocab_size:
        raise SettingError(
            f"the draft has embeddings for {rows} token ids, but target {codec.name} can write "
            f"{codec.vocab_size}. Choose a draft with an embedding for each of them."
        )
