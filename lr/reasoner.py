"""The front door for programs: load a target and a draft once, then ask questions.

    reasoner = Reasoner()                      # the tiny family
    result = reasoner.generate(
        "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
    )
    print(result.answer, result.stats.step_acceptance)

The algorithm itself is in `lookahead.py` (to read) and `spec/scheduler.py` (which runs).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import torch

from lr.engine.engine import Engine, Run
from lr.engine.load import load_models, use_attention
from lr.model.device import Device, DeviceMap
from lr.model.qwen import CausalLM
from lr.options import OptionArguments, make_options
from lr.registry import find
from lr.result import Result
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Verifier
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.endpoint.address import Servers


class Reasoner:
    """A target, a draft and a verifier, ready to answer.

    `target` and `draft` are names of our tiny models, directories, hub ids, or the addresses of
    models on a server, "openai:http://host:port/name" (`servers` says how to reach them,
    `docs/engines.md`). They share a tokenizer. `draft=None` leaves plain decoding only.

    `verifier` is a name ("exact", "judge", "embedding:0.95", ...; "oracle" for the tiny languages;
    `parts/verifiers.py` has all) or a `Verifier`. None takes "judge" where there is one (a
    `judge`, or "tiny-target"), "oracle" for "plans-target", and else "exact". `judge` is the
    checkpoint of a verifier that has one: a language model for "judge", an encoder for "embedding".

    `dtype` None: float32 on the CPU, the checkpoint's own elsewhere. `device` is where the models
    run, or a mapping from "target", "draft" and "judge" to devices; what it does not name runs
    where the target does. Several devices for the target, such as ["cuda:0", "cuda:1"], spread it
    over as many processes (`model/ranks.py`). `num_blocks` cache blocks of 16 tokens per model;
    None: as many as the answers need. `attention`, `graphs`: see `use_attention`, for all three.

    Caches are kept from answer to answer. With driver "overlapped" a second process, which does
    not import your script, is started at the first question and kept until `close`, the end of a
    `with` block, or the end of the reasoner. Raises `CheckpointError` or `SettingError`; warns of
    what the target's generation_config.json asks for and does not get.
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
        servers: Servers | None = None,
        attention: str = "auto",
        graphs: bool = True,
    ) -> None:
        self.models, self.verifier = load_models(
            target, draft, verifier, judge, device, dtype, num_blocks, servers, attention, graphs
        )
        self.engine = Engine(self.models)
        self.codec = self.models.codec
        find("lr.parts.generation_config:warn_unheeded")(self.codec)

    def generate(
        self,
        question: str,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        engine: Literal["scheduler", "page"] = "scheduler",
        **options: Unpack[OptionArguments],
    ) -> Result:
        """Answer a question. `options` are the fields of `GenerateOptions`, which says what each
        means: mode, depth, temperature, seed, max_tokens, ...

        `variant` replaces parts of the algorithm (`docs/variants_steps.md`). `detailed` records
        everything that happens, not only what statistics need (`docs/trace.md`). `engine` "page"
        runs the method as it stands on one page, `lr/lookahead.py`.
        """
        run = self.run(question, variant=variant, detailed=detailed, engine=engine, **options)
        return run.finish()

    def run(
        self,
        question: str,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        engine: Literal["scheduler", "page"] = "scheduler",
        **options: Unpack[OptionArguments],
    ) -> Run:
        """As `generate`, but only begin: iterate over the `Run` for the steps as they come."""
        require(engine in ("scheduler", "page"), "engine", engine, "scheduler or page")
        made, serve = make_options(**options), None
        if engine == "page":
            require(made.looks_ahead, "mode", made.mode, 'lr or lr+sd with engine "page"')
            serve = find("lr.lab.page:serve_page")
        return Run(
            self.engine, self.verifier, question, made, variant, detailed=detailed, serve=serve
        )

    def use_attention(self, name: str = "auto", *, graphs: bool = True) -> None:
        """From the next question on, target and draft run with this kind of attention (what a
        verifier asks keeps the one it has) and, with `graphs`, decode from CUDA graphs where there
        is CUDA. Raises SettingError for a kind that cannot run (`docs/attention.md` has all).
        """
        use_attention(self.models, name, graphs=graphs)
        self.engine.forget_caches()

    def close(self) -> None:
        """End the draft's process, if there is one; another question would start another. A target
        that is spread over several ranks is ended too, for good."""
        if self.models.worker is not None:
            self.models.worker.close()
        self.engine.forget_caches()
        if isinstance(self.models.target, CausalLM):
            self.models.target.close()

    def __enter__(self) -> Reasoner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
