"""The front door for programs: load a target and a draft once, then ask questions.

    reasoner = Reasoner()                      # the tiny family
    result = reasoner.generate("At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?")
    print(result.answer, result.stats.step_acceptance)

`generate` answers in one go; `run` gives the steps one by one, as they are decided. The algorithm itself is in
`spec/reference.py` (to read) and `spec/scheduler.py` (which runs).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lr.endpoint.address import is_address
from lr.endpoint.models import served_or_none
from lr.endpoint.settings import Servers
from lr.endpoint.verification import beside_served_target, served_judge
from lr.engine.answer import Models, Run
from lr.engine.placement import Layout, draft_worker
from lr.engine.verification import choose_verifier, usual_verifier
from lr.errors import SettingError
from lr.model.attention_choice import equip
from lr.model.codec import Codec, require_same
from lr.model.device import find_device
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.parallel.leader import LeaderLM
from lr.parallel.start import Spread, load_target
from lr.result import Result
from lr.spec.seams import Variant
from lr.spec.verifiers.base import Verifier


class Reasoner:
    """A target, a draft and a verifier, ready to answer.

    `target` and `draft` are "tiny-target" and "tiny-draft" (or "plans-target" and "plans-draft"), directories, or hub ids; they
    must share a tokenizer. `draft=None` leaves plain decoding only. A model that a server has is named by its address,
    "openai:http://host:port/name", and `servers` says how to reach it (`docs/engines.md`). `verifier` is a name ("exact",
    "judge", "embedding:0.95", ...; "oracle" for the tiny languages: all are in `spec/verifiers/choose.py`) or an object with
    `name` and `judge` (see `spec/verifiers/base.py`). None takes "judge" where there is one (a `judge`, or "tiny-target"),
    "oracle" for "plans-target", and else "exact". `judge` is the checkpoint of a verifier that has one of its own: a language
    model for "judge", a sentence encoder for "embedding". `dtype` None: float32 on the CPU, the checkpoint's own elsewhere.
    `elsewhere` names other devices than `device` for "draft" and "judge". A `device` of `spread_over(2, "cuda:0")`
    (`parallel/start.py`) spreads the target over two GPUs. `num_blocks` cache blocks of 16 tokens per model; None: as many as the
    answer can need. With driver "overlapped" a second process (it does not import your script) is started at the first question
    and kept until `close`, the end of a `with` block, or the end of the reasoner. Raises `CheckpointError` or `SettingError`.
    """

    def __init__(
        self,
        target: str | Path = "tiny-target",
        draft: str | Path | None = "tiny-draft",
        verifier: str | Verifier | None = "oracle",
        *,
        judge: str | Path | None = None,
        device: str | torch.device | Spread = "cpu",
        dtype: torch.dtype | None = None,
        num_blocks: int | None = None,
        elsewhere: Mapping[str, str | torch.device] | None = None,
        servers: Servers | None = None,
    ) -> None:
        spread, device = _place(target, device)
        draft_device, judge_device = (find_device((elsewhere or {}).get(role, device)) for role in ("draft", "judge"))
        servers = Servers() if servers is None else servers
        served_target = served_or_none(target, servers, "target")
        self.codec = codec = Codec.load(target) if served_target is None else served_target.codec
        served_draft = served_or_none(draft, servers, "draft", codec)
        known_tokens = codec.vocab_size
        if draft is not None and served_draft is None:
            draft_codec = Codec.load(draft)
            require_same(codec, draft_codec)
            known_tokens = draft_codec.vocab_size
        if verifier is None:
            verifier = usual_verifier(codec, judge)
        if not isinstance(verifier, str) and not (
            callable(getattr(verifier, "judge", None)) and hasattr(verifier, "name")
        ):
            raise SettingError(f"verifier is {verifier!r}, expected a name or an object with `name` and `judge`.")
        if dtype is None and torch.device(device).type == "cpu":
            dtype = torch.float32
        judge_served = served_or_none(judge, servers, "judge")
        if isinstance(verifier, str) and judge_served is not None:
            verifier = served_judge(verifier, codec, judge_served)
        choice = None
        if isinstance(verifier, str) and (draft is not None or judge is not None):
            choice = choose_verifier(verifier, codec, judge, device=judge_device, dtype=dtype, num_blocks=num_blocks)
        target_model: Any = served_target or load_target(target, device if spread is None else spread, dtype)
        draft_model: Any = served_draft
        if draft is not None and served_draft is None:
            draft_model = load_model(draft, device=draft_device, dtype=dtype)
            _require_rows(draft_model, draft, target, codec)
        _equip((target_model, draft_model))
        self.verifier = verifier
        if choice is not None and draft is not None:
            build = choice.build if served_target is None else partial(beside_served_target, choice)
            self.verifier = build(target_model)
        worker = None
        if draft is not None and served_target is None and served_draft is None:
            tokens = tuple(map(codec.token_bytes, range(codec.vocab_size)))
            layout = Layout((device,) if spread is None else spread.devices, draft_device, judge_device)
            worker = draft_worker(layout, draft_model, draft, dtype, tokens)
        loaded = {"target": target, "draft": draft, "judge": judge, "verifier": getattr(verifier, "name", verifier)}
        names = {role: None if name is None else str(name) for role, name in loaded.items()}
        self.models = Models(codec, target_model, draft_model, known_tokens, num_blocks, worker, names)

    def generate(
        self, question: str, *, variant: Variant | None = None, detailed: bool = False, **options: object
    ) -> Result:
        """Answer a question. `options` are the fields of `GenerateOptions`: mode, depth, temperature, seed, max_tokens, ...

        `variant` replaces parts of the algorithm, see `docs/variants_steps.md`.
        """
        return self.run(question, variant=variant, detailed=detailed, **options).finish()

    def run(self, question: str, *, variant: Variant | None = None, detailed: bool = False, **options: object) -> Run:
        """Begin to answer: iterate over the returned `Run` to get the steps as they are decided.

        `detailed`: record everything that happens, not only what statistics need (`docs/trace.md`).
        """
        return Run(self.models, self.verifier, question, make_options(**options), variant, detailed=detailed)

    def use_attention(self, name: str = "auto", *, graphs: bool = True) -> None:
        """From the next question on, target and draft run with this kind of attention: "auto", "varlen", "flash", "sdpa" or "reference".

        With `graphs`, decoding steps are replayed from CUDA graphs where there is CUDA. This is what a new reasoner does, with "auto".
        Raises SettingError for a kind that is unknown or cannot run (`docs/attention.md`).
        """
        _equip((self.models.target, self.models.draft), name, graphs=graphs)

    def close(self) -> None:
        """End the draft's process, if there is one; another question would start another. A target that is spread over several ranks is
        ended too, for good."""
        if self.models.worker is not None:
            self.models.worker.close()
        if isinstance(self.models.target, LeaderLM):
            self.models.target.close()

    def __enter__(self) -> Reasoner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _require_rows(model: CausalLM, draft: str | Path, target: str | Path, codec: Codec) -> None:
    """Raise SettingError unless the draft embeds every token that the target writes."""
    if model.config.vocab_size < codec.vocab_size:
        raise SettingError(
            f"draft {draft} embeds {model.config.vocab_size} token ids, target {target} writes {codec.vocab_size}. "
            "Choose a draft whose embedding has a row for each of the target's tokens."
        )


def _place(target: str | Path, device: str | torch.device | Spread) -> tuple[Spread | None, torch.device]:
    """Over what the target is spread, if it is, and the device of this process."""
    if not isinstance(device, Spread):
        return None, find_device(device)
    if is_address(target):
        raise SettingError(
            f"target {target} is behind a server, and tensor_parallel is {device.size}: the server spreads its models itself; "
            "leave tensor_parallel out."
        )
    return device, device.devices[0]


def _equip(models: Iterable[object], name: str = "auto", *, graphs: bool = True) -> None:
    """Attention for the models that run here. Those spread over ranks are not recorded."""
    for model in models:
        if isinstance(model, CausalLM):
            equip(model, name, replay=graphs and not isinstance(model, LeaderLM))


def make_options(**changes: object) -> GenerateOptions:
    """Options from keyword arguments; an unknown name is a `SettingError` that lists the known ones."""
    known = [field.name for field in dataclasses.fields(GenerateOptions)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise SettingError(f"there is no option {', '.join(unknown)}; the options are {', '.join(known)}.")
    try:
        return GenerateOptions(**changes)  # type: ignore[arg-type]
    except TypeError as error:
        raise SettingError(
            f"an option has a value of a wrong kind ({error}); the options given are {changes}."
        ) from error
