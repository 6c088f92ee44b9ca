"""The shapes of published models, by name: what is needed to measure a model whose weights are not
at hand.

The numbers are those of the models' public config.json. A checkpoint called `dummy:NAME` is such a
shape, or that of the config.json in a directory, with random weights (`dummy.py`). Read next:
`dummy.py`, `memory.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lr.errors import CheckpointError
from lr.model.config import ModelConfig
from lr.model.config_json import read_config
from lr.registry import CHECKPOINTS, checkpoint_path

DUMMY = "dummy:"
"""What the name of a checkpoint begins with if its weights are to be random."""
DUMMY_NOTE = "dummy weights are random: what such a model writes means nothing, what it costs does"

_QWEN3 = ModelConfig(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    qkv_bias=False,
    qk_norm=True,
    tie_word_embeddings=True,
)
SHAPES = {
    "Qwen3-0.6B": _QWEN3,
    "Qwen3-1.7B": replace(_QWEN3, hidden_size=2048, intermediate_size=6144),
    "Qwen3-32B": replace(
        _QWEN3,
        hidden_size=5120,
        intermediate_size=25600,
        num_layers=64,
        num_heads=64,
        tie_word_embeddings=False,
    ),
    "Qwen2.5-7B": replace(
        _QWEN3,
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_heads=28,
        num_kv_heads=4,
        max_position_embeddings=32768,
        qkv_bias=True,
        qk_norm=False,
        tie_word_embeddings=False,
    ),
}
"""Target, draft and judge of the official tool (Qwen3-32B, Qwen3-1.7B, Qwen2.5-7B-Instruct), and
the smallest of the family.
"""


def is_dummy(name: str | Path) -> bool:
    """Whether a checkpoint's name asks for random weights."""
    return str(name).startswith(DUMMY)


def dummy_name(name: str | Path) -> str:
    """The same checkpoint with random weights."""
    return str(name) if is_dummy(name) else f"{DUMMY}{name}"


def published(name: str | Path) -> ModelConfig | None:
    """The shape that goes by this name, if one does: "Qwen3-32B", "Qwen/Qwen3-32B",
    "Qwen/Qwen2.5-7B-Instruct".
    """
    return SHAPES.get(str(name).removeprefix("Qwen/").removesuffix("-Instruct"))


def shape(name: str | Path) -> ModelConfig:
    """The configuration of a published shape, of a tiny model, or of a directory with a
    config.json; with or without `dummy:`.

    Raises `CheckpointError`.
    """
    stated = str(name).removeprefix(DUMMY)
    known = published(stated)
    path = Path(stated).expanduser()
    if path.is_dir() or path.name == "config.json":
        return read_config(path)
    if stated in CHECKPOINTS:
        return read_config(checkpoint_path(stated))
    if known is not None:
        return known
    raise CheckpointError(
        f"there is no shape {stated!r}. Give one of {', '.join(SHAPES)}, one of {', '.join(CHECKPOINTS)}, or a directory with a "
        "config.json (a file of a few lines; no weights are needed)."
    )
