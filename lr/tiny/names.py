"""The trained tiny checkpoints that come with the package: paths, shape, and
language."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from lr.errors import CheckpointError
from lr.model.config import ModelConfig
from lr.registry import CHECKPOINTS

if TYPE_CHECKING:
    from lr.model.codec import Codec
    from lr.tiny.languages import TinyLanguage


def checkpoint_path(name: str) -> Path:
    """The directory (Hugging Face layout) of one of `CHECKPOINTS`. Raises
    `CheckpointError`."""
    if name not in CHECKPOINTS:
        raise CheckpointError(
            f"there is no tiny model {name!r}. The tiny models are {', '.join(CHECKPOINTS)}."
        )
    path = Path(str(files("lr.tiny"))) / "checkpoints" / name
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"the files of {name} are missing from this installation ({path}). Install the package "
            "from its wheel, or train the model with scripts/train_tiny.py, or the judge with "
            "scripts/train_judge.py."
        )
    return path


def companion(target: str, role: str) -> str | None:
    """The package's "draft" or "judge" for a target, such as tiny-draft, or None."""
    family, dash, what = target.partition("-")
    name = f"{family}-{role}"
    return name if dash and what == "target" and name in CHECKPOINTS else None


def language_of(codec: Codec) -> TinyLanguage | None:
    """The tiny language whose vocabulary a checkpoint has; None for other
    checkpoints."""
    from lr.tiny.vocabulary import (  # imports transformers, which takes seconds
        LANGUAGES,
        ids_of,
    )

    words = codec.tokenizer.get_vocab()
    return next((one for name, one in LANGUAGES.items() if words == ids_of(name)), None)


def tiny_config(layers: int, vocab_size: int, mlp: int = 384) -> ModelConfig:
    """The shape of the tiny models, with an MLP of 384 (plans: 256)."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=mlp,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        qkv_bias=False,
        qk_norm=True,
        tie_word_embeddings=True,
    )
