"""Verifiers by name, with the models that they ask.

    exact · judge · judge:0.8 · numbers · likelihood:-1.25 · fitted:FILE.json ·
    fitted:FILE.json:0.8 · random:0.3 · FILE.py:NAME

`THRESHOLDS` lists them. Your own NAME is a class without arguments.
"""

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from lr.model.weights import checkpoint_id
from lr.registry import load_file, load_oracle
from lr.spec.checks import make_part
from lr.spec.verifiers.base import ExactVerifier, Verifier, checked_verifier
from lr.spec.verifiers.fitted import SCORES, Fit, FittedVerifier
from lr.spec.verifiers.judge import JUDGE_TOKENS, JudgeVerifier, PromptedModel
from lr.spec.verifiers.named import (
    Embed,
    EmbeddingVerifier,
    LikelihoodVerifier,
    NumbersVerifier,
    RandomVerifier,
    ScoreVerifier,
)
from lr.types import require

THRESHOLDS: dict[str, float | None] = {
    "exact": None,
    "oracle": None,
    "judge": 0.5,
    "embedding": 0.95,
    "score": 7.0,
    "likelihood": -1.25,
    "numbers": 0.8,
    "random": 0.5,
    "always": None,
    "never": None,
}
"""The verifiers by name, with the default of the number that may follow the name (None:
none may)."""
ASKED_CHECKPOINTS = {
    "judge": "an instruction-tuned Qwen such as Qwen/Qwen2.5-7B-Instruct",
    "embedding": "a sentence encoder such as sentence-transformers/all-mpnet-base-v2",
}
"""Those that need a checkpoint of their own, with an example."""


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

    `wanted`: a verifier, its name, or None for the usual one: the judge if one is
    given, else the one that the target names, else exact. `checkpoint` is the
    verifier's own: a language model for "judge" (None: the one that the target names),
    an encoder for "embedding". `loader` loads it on `device`. `num_blocks`: cache blocks
    of 16 tokens for the model that the verifier asks (None: as many as it needs).
    Raises `SettingError` if the verifier does not fit the target or the checkpoint."""

    wanted: str | Verifier | None
    codec: Codec
    checkpoint: str | Path | None = None
    device: str | torch.device = "cpu"
    loader: Loader = field(default_factory=Loader)
    num_blocks: int | None = None
    name: str = field(init=False)
    kind: str = field(init=False)  # what its name begins with
    threshold: float | None = field(init=False, default=None)
    fit: Fit | None = field(init=False, default=None)  # of a fitted verifier

    def __post_init__(self) -> None:
        if self.wanted is None:
            stated = self.codec.generation_config.get("verifier", "exact")
            self.wanted = stated if self.checkpoint is None else "judge"
        if isinstance(self.wanted, str) and ".py:" in self.wanted:
            self.wanted = _own(self.wanted)
        if not isinstance(self.wanted, str):
            self.name = checked_verifier(self.wanted).name
            return
        self.name = self.wanted
        self.kind, self.threshold, self.fit = _parse(self.name)
        kind = self.kind
        if self.fit is not None:
            # the one whose checkpoint its file needs, if any
            kind = next((n for n in ASKED_CHECKPOINTS if n in self.fit.signals), kind)
        if kind == "oracle":
            load_oracle(self.codec)  # refuses a target of another language
        if kind == "judge":
            # the one that the target names
            stated = self.codec.generation_config.get("judge")
            self.checkpoint = self.checkpoint or stated
        if self.checkpoint is not None and kind not in ASKED_CHECKPOINTS:
            raise SettingError(
                f"judge is {str(self.checkpoint)!r}, but verifier {self.name!r} uses no judge "
                "model; omit judge, or use verifier judge."
            )
        if self.checkpoint is None and kind in ASKED_CHECKPOINTS:
            raise SettingError(
                f"verifier {self.name!r} needs its own checkpoint: give judge (on the command "
                f"line --judge_model), {ASKED_CHECKPOINTS[kind]}."
            )

    @property
    def asks_model(self) -> bool:
        """Whether a fitted verifier has the score of one that asks a model."""
        return self.fit is not None and bool(set(self.fit.signals) & set(SCORES))

    def build(self, target: CausalLM | None, draft: CausalLM | None = None) -> Verifier:
        """Load the verifier; some ask the `target`. A judge that is the same checkpoint
        as target or draft is the same model. Raises `SettingError` for an impossible
        threshold."""
        if isinstance(self.wanted, Verifier):
            return self.wanted
        threshold = self.threshold or 0.0  # None only where there is none to state
        decode = self.codec.decode
        if self.fit is not None:
            # Verifiers whose scores the fit weighs.
            scorers = {
                name: replace(self, wanted=name).build(target, draft)
                for name in self.fit.signals
                if name in SCORES
            }
            return FittedVerifier(self.fit, decode, self.threshold, scorers)
        match self.kind:
            case "exact":
                return ExactVerifier()
            case "oracle":
                return load_oracle(self.codec)
            case "judge":
                assert target is not None
                return JudgeVerifier(self._judge(target, draft), decode, threshold)
            case "embedding":
                assert self.checkpoint is not None
                encoder = load_encoder(self.checkpoint, device=str(self.device))
                return EmbeddingVerifier(encoder, decode, threshold)
            case "score":
                assert target is not None
                asked = asked_model(target, self.codec, self.num_blocks)
                return ScoreVerifier(asked, threshold=threshold)
            case "likelihood":
                return LikelihoodVerifier(threshold)
            case "numbers":
                return NumbersVerifier(decode, threshold)
            case "always" | "never":
                threshold = float(self.kind == "always")
        return RandomVerifier(threshold)

    def _judge(self, target: CausalLM, draft: CausalLM | None) -> PromptedModel:
        assert self.checkpoint is not None
        # for the longest prompt
        blocks = self.num_blocks or -(-JUDGE_TOKENS // BLOCK_SIZE)
        codec = Codec.load(self.checkpoint)
        device = torch.device(self.device)
        source = checkpoint_id(self.checkpoint)
        for model in (target, draft):
            if model is None or model.spread:  # a rank's slice judges nothing
                continue
            # the weights are there already
            if (model.source, model.device) == (source, device):
                return asked_model(model, codec, blocks)
        return asked_model(self.loader.load(self.checkpoint, device), codec, blocks)


def _parse(name: str) -> tuple[str, float | None, Fit | None]:
    """The kind of verifier that `name` begins with, its threshold (None: it has none, or
    that of the fit), and its fit: of fitted:FILE or fitted:FILE:THRESHOLD."""
    kind, colon, rest = name.partition(":")
    if kind == "fitted" and rest:
        threshold = None
        file, colon, number = rest.rpartition(":")
        if colon and not Path(rest).is_file():  # a colon may belong to the path
            with suppress(ValueError):
                threshold = float(number)
                rest = file
        return kind, threshold, Fit.load(Path(rest))
    usual = THRESHOLDS.get(kind)  # None: this verifier takes no number
    if kind in THRESHOLDS and not colon:
        return kind, usual, None
    if usual is not None:
        with suppress(ValueError):
            return kind, float(rest), None
    names = ", ".join([*THRESHOLDS, "fitted:FILE.json"])
    expected = f"one of {names}, or one with a number, such as judge:0.8"
    raise SettingError(f"verifier is {name!r}, expected {expected}.")


def _own(text: str) -> Verifier:
    """A verifier of your own, FILE.py:NAME."""
    file, _, name = text.rpartition(":")
    require(Path(file).is_file(), "verifier", text, f"a file {file}")
    member: Any = vars(load_file(file)).get(name)
    require(inspect.isclass(member), "verifier", text, f"a class that {file} defines")
    return make_part(f"verifier {text!r}", member)


def load_encoder(name_or_path: str | Path, *, device: str = "cpu") -> Embed:
    """Load a sentence encoder from a directory or hub id, with sentence-transformers.

    Raises `CheckpointError` if the library is not installed or the checkpoint cannot be
    loaded."""
    try:
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(str(name_or_path), device=device)
    except Exception as error:  # each version raises something different
        raise CheckpointError(
            f"{name_or_path} cannot be loaded as a sentence encoder ({type(error).__name__}: "
            f"{error}). Verifier 'embedding' needs the package sentence-transformers (pip "
            'install "lookahead-reasoning[encoder]") and the directory or the hub id of '
            "an encoder, such as sentence-transformers/all-mpnet-base-v2."
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
