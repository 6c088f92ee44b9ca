"""The API for programs: load a target and a draft once, then ask questions.

    reasoner = Reasoner()                      # the tiny family
    result = reasoner.generate(
        "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
    )
    print(result.answer, result.stats.step_acceptance)

The algorithm is in `lookahead.py`, on one page. Read next: `engine/engine.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lr.engine.answer import Answer
from lr.engine.engine import Engine
from lr.engine.loading import Loader
from lr.engine.verifiers import VerifierChoice
from lr.model.codec import Codec, require_same, unsupported
from lr.model.device import Device, DeviceMap
from lr.model.weights import LoadProgress, usual_dtype
from lr.options import GenerateOptions, make_options
from lr.registry import require_readable
from lr.result import Result
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Verifier
from lr.types import require

MOST_BLOCKS = 1 << 24  # in one cache: 268 million tokens


class Reasoner:
    """A target, a draft and a verifier, ready to answer.

    `target` is the name of a tiny model, a directory or a hub id, and so is `draft`,
    which must share its tokenizer; "int4:" or "int8:" before a name quantises its
    matrices on a CPU (`model/quantize.py`). `verifier` is a `Verifier` or a name: "exact",
    "judge", "embedding:0.95", ... (`engine/verifiers.py`). `judge` is the
    verifier's checkpoint: a language model for "judge", an encoder for "embedding".

    Without a draft, there is the one that the target's generation_config.json names
    (that of tiny-target does) or none, and only plain decoding. Without a verifier, it
    is the judge, if one is given, else the one that the target names ("oracle" for
    tiny-target), else "exact".

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

    The tiny models are fastest on one CPU thread: call `torch.set_num_threads(1)`. The
    commands do; here the number belongs to your program.
    """

    def __init__(
        self,
        target: str | Path = "tiny-target",
        draft: str | Path | None = None,
        verifier: str | Verifier | None = None,
        *,
        judge: str | Path | None = None,
        device: Device | Mapping[str, Device] | DeviceMap = "cpu",
        dtype: torch.dtype | None = None,
        num_blocks: int | None = None,
        attention: str = "auto",
        graphs: bool = True,
        progress: LoadProgress | None = None,
    ) -> None:
        allowed = num_blocks is None or 0 < num_blocks <= MOST_BLOCKS
        require(allowed, "num_blocks", num_blocks, f"1 to {MOST_BLOCKS}, or None")
        devices = DeviceMap.of(device)
        dtype = dtype or usual_dtype(target, devices.target[0])
        loader = Loader(dtype, attention, graphs, progress)

        # 1. Check tokenizers and names before anything large is loaded
        codec = Codec.load(target)
        draft = draft or codec.generation_config.get("draft")
        # read before any weights are
        draft_codec = codec if draft is None else Codec.load(draft, like=codec)
        require_same(codec, draft_codec)
        choice = VerifierChoice(
            verifier, codec, judge, devices.judge, loader, num_blocks
        )
        names = {"target": target, "draft": draft, "judge": judge}

        # 2. Load the models
        target_model = loader.load(target, *devices.target)
        draft_model = None
        try:
            if draft is not None:
                draft_model = loader.load(draft, devices.draft)
                rows = draft_model.config.vocab_size  # of its embedding
                needed = f"at least {codec.vocab_size}, the ids that {target} can write"
                fits = rows >= codec.vocab_size
                require(fits, f"vocab_size of draft {draft}", rows, needed)
            self.verifier = choice.build(target_model, draft_model)
        except BaseException:
            target_model.close()  # ends its ranks, if it has several
            raise

        # 3. Make the engine, which answers
        self.codec = codec
        self.engine = Engine(
            codec=codec,
            target_model=target_model,
            draft_model=draft_model,
            known_tokens=draft_codec.vocab_size,
            num_blocks=num_blocks,
            loader=replace(loader, progress=None),
            names=names | {"verifier": choice.name},
        )
        if message := unsupported(codec):  # settings that have no effect here
            warnings.warn(message, stacklevel=2)  # at the caller's line

    def generate(
        self,
        question: str,
        options: GenerateOptions | None = None,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        **changes: Any,
    ) -> Result:
        """Answer a question. `options`: mode, depth, temperature, ...; `changes` are
        fields of `GenerateOptions` that differ from them: `generate(question,
        mode="sd", temperature=0)`.

        `variant` replaces parts of the algorithm (`docs/variants.md`); `changes`
        override its settings. `detailed` records everything that happens, not only what
        statistics need (`docs/trace.md`). Raises `SettingError` for a question that the
        tiny models cannot read; `run` answers it with noise."""
        require_readable(self.engine.names.get("target"), question)
        answer = self.run(
            question, options, variant=variant, detailed=detailed, **changes
        )
        return answer.finish()

    def run(
        self,
        question: str,
        options: GenerateOptions | None = None,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        **changes: Any,
    ) -> Answer:
        """Begin an answer, as `generate` does: iterate over it to get its steps."""
        options = make_options(options, **changes)
        if isinstance(variant, Variant):  # `changes` override even by a default
            stated = variant.settings.items()
            # the caller wins
            settings = {name: value for name, value in stated if name not in changes}
            variant = replace(variant, settings=settings)
        asked = self.engine.question(question, options, self.verifier, variant)
        answer = Answer(asked, detailed=detailed)
        answer.served = self.engine.serve([answer])  # a generator: nothing runs yet
        return answer

    def close(self) -> None:
        """End the draft's process, if any, and free the answers' caches and CUDA graphs.
        Another question starts a new process and new graphs. A target that is split
        over several ranks is ended for good."""
        self.engine.close()

    def __enter__(self) -> Reasoner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
