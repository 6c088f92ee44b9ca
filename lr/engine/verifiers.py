"""Verifiers by name, with the models that they ask.

    exact · judge · judge:0.8 · score:9 · random:0.3 · FILE.py:NAME

`lr/spec/verifiers/named.py` lists them. Your own NAME is a class without arguments, or
a function of the `VerifierModels`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lr.engine.loading import Loader
from lr.engine.runner import ModelRunner
from lr.errors import CheckpointError, SettingError
from lr.kvcache.branch import BLOCK_SIZE
from lr.model.attention import flash_or_plain
from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.model.weights import checkpoint_id, stored_dtype
from lr.registry import load_file, verifiers
from lr.spec.checks import make_part
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Verifier, check_verifier
from lr.spec.verifiers.judge import JUDGE_TOKENS, PromptedModel
from lr.spec.verifiers.named import VERIFIERS, Embed, Named, VerifierModels


def asked_model(
    model: CausalLM, codec: Codec, num_blocks: int | None = None
) -> PromptedModel:
    """A model for verifiers, on its own runner with `num_blocks` blocks of 16 tokens.

    None: room for the longest answer and the questions about its steps."""
    if num_blocks is None:
        longest = model.config.max_position_embeddings + JUDGE_TOKENS
        num_blocks = -(-longest // BLOCK_SIZE)
    runner = ModelRunner(model, num_blocks=num_blocks, vocab_size=codec.vocab_size)
    return PromptedModel(runner, codec)


@dataclass
class VerifierChoice:
    """The verifier for a target with `codec`, checked but not loaded yet.

    `wanted`: a verifier, its name, or None for the usual one. `checkpoint` is the
    verifier's own: a language model for "judge" (None: the one that the target names),
    an encoder for "embedding". `loader` loads it on `device`. `num_blocks`: cache blocks
    of 16 tokens for the model that the verifier asks (None: as many as it needs).
    `model`: the judge, once loaded. Raises `SettingError` if the verifier does not fit
    the target or the checkpoint."""

    wanted: str | Verifier | None
    codec: Codec
    checkpoint: str | Path | None = None
    device: str | torch.device = "cpu"
    loader: Loader = field(default_factory=Loader)
    num_blocks: int | None = None
    name: str = field(init=False)
    model: CausalLM | None = field(init=False, default=None)
    _target: CausalLM | None = field(init=False, default=None)
    _draft: CausalLM | None = field(init=False, default=None)
    _make: Callable[[VerifierModels], Verifier] = field(init=False)

    def __post_init__(self) -> None:
        wanted = self.wanted
        if wanted is None:
            wanted = usual_verifier(self.codec, self.checkpoint)
        if not isinstance(wanted, str):
            verifier = check_verifier(wanted)
            self.name = verifier.name
            self._make = lambda models: verifier
            return
        self.name = wanted
        kind, _, member = wanted.partition(":")
        if kind.endswith(".py"):
            self._make = _own(kind, member)
            return
        named, threshold = _named(wanted)
        self._make = lambda models: named.make(models, threshold)
        if kind == "oracle":
            self.oracle()  # refuses a target of another language
        if self.checkpoint is not None and named.checkpoint is None:
            raise SettingError(
                f"judge is {str(self.checkpoint)!r}, but verifier {wanted!r} uses no judge "
                "model; omit judge, or use verifier judge."
            )
        if self.checkpoint is None and kind == "judge":
            self.checkpoint = own_judge(self.codec)
        if self.checkpoint is None and named.checkpoint is not None:
            raise SettingError(
                f"verifier {wanted!r} needs its own checkpoint: give judge (on the command "
                f"line --judge_model), {named.checkpoint}."
            )

    def build(self, target: CausalLM, draft: CausalLM | None = None) -> Verifier:
        """Load the verifier; some ask the `target`. A judge that is the same checkpoint
        as target or draft shares its weights. Raises `SettingError` for an impossible
        threshold."""
        self._target = target
        self._draft = draft
        return self._make(self)

    # What a verifier may be made of

    def target(self) -> PromptedModel:
        assert self._target is not None, "build gives it"
        return asked_model(self._target, self.codec, self.num_blocks)

    def judge(self) -> PromptedModel:
        assert self.checkpoint is not None
        self.model = self._loaded(self.checkpoint)
        blocks = self.num_blocks or -(-JUDGE_TOKENS // BLOCK_SIZE)
        return asked_model(self.model, Codec.load(self.checkpoint), blocks)

    def _loaded(self, checkpoint: str | Path) -> CausalLM:
        loader = self.loader
        device = torch.device(self.device)
        dtype = loader.dtype or stored_dtype(checkpoint)
        for model in (self._target, self._draft):
            if model is None or type(model) is not CausalLM:  # spread over processes
                continue
            same = (model.source, model.dtype) == (checkpoint_id(checkpoint), dtype)
            if same and model.device == device:
                return loader.equipped(model.twin())
        return loader.load(checkpoint, device)

    def encoder(self) -> Embed:
        assert self.checkpoint is not None
        return load_encoder(self.checkpoint, device=str(self.device))

    def oracle(self) -> Verifier:
        return verifiers["oracle"](self.codec)


def _named(name: str) -> tuple[Named, float]:
    """The entry of `VERIFIERS` that `name` begins with, and its threshold."""
    kind, colon, number = name.partition(":")
    if kind not in VERIFIERS:
        raise SettingError(
            f"there is no verifier {name!r}; choose one of {', '.join(VERIFIERS)}, or give "
            "FILE.py:NAME."
        )
    named = VERIFIERS[kind]
    if not colon:
        return named, named.threshold or 0.0
    if named.threshold is None:
        raise SettingError(f"verifier {name!r}: {kind} takes no number.")
    try:
        return named, float(number)
    except ValueError:
        example = f"{kind}:{named.threshold:g}"
        raise SettingError(
            f"verifier {name!r}: {number!r} is not a number; say for example {example}."
        ) from None


def _own(file: str, name: str) -> Callable[[VerifierModels], Verifier]:
    """A verifier of your own: a class without arguments, or a function of what it may
    be made of."""
    if not Path(file).is_file():
        raise SettingError(f"verifier {file}:{name}: there is no file {file}.")
    member: Any = vars(load_file(file)).get(name)
    named = f"verifier {file}:{name}"
    if inspect.isclass(member):
        return lambda models: check_verifier(make_part(named, member))
    if not inspect.isfunction(member):
        raise SettingError(
            f"verifier {file}:{name} is {member!r}, expected a class without arguments or a "
            "function of the VerifierModels (lr/spec/verifiers/named.py)."
        )

    def build(models: VerifierModels) -> Verifier:
        verifier = make_part(named, member, models)
        if isinstance(verifier, Variant):
            raise SettingError(f"{named} makes a variant. Give it as --variant.")
        return check_verifier(verifier)

    return build


def usual_verifier(codec: Codec, judge: str | Path | None) -> str:
    """The default verifier: the judge if one is given, else the one that the target
    names, else exact."""
    if judge is not None:
        return "judge"
    return str(codec.generation_config.get("verifier", "exact"))


def own_judge(codec: Codec) -> str | None:
    """The judge that a target names in its generation_config.json, if any."""
    judge = codec.generation_config.get("judge")
    return None if judge is None else str(judge)


def load_encoder(name_or_path: str | Path, *, device: str = "cpu") -> Embed:
    """Load a sentence encoder from a directory or hub id, with sentence-transformers.

    Raises `CheckpointError` if the library is not installed or the checkpoint cannot be
    loaded."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise CheckpointError(
            "verifier 'embedding' needs the package sentence-transformers: "
            'install it with pip install "lookahead-reasoning[encoder]".'
        ) from error
    try:
        encoder = SentenceTransformer(str(name_or_path), device=device)
    except Exception as error:  # each version raises something different
        reason = (str(error).splitlines() or ["no message"])[0]
        raise CheckpointError(
            f"{name_or_path} cannot be loaded as a sentence encoder ({type(error).__name__}: "
            f"{reason}). Give the directory or the hub id of one, such as "
            "sentence-transformers/all-mpnet-base-v2."
        ) from error

    def embed(texts: Sequence[str]) -> Tensor:
        with flash_or_plain(torch.device(device)):
            rows = encoder.encode(
                list(texts),
                convert_to_tensor=True,
                normalize_embeddings=True,
                show_progress_bar=False,
            )
        assert isinstance(rows, Tensor)
        return rows

    return embed
