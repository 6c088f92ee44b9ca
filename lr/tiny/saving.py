"""Writing a checkpoint of a model that was trained here: the inverse of
`model/weights.py`."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lr.errors import CheckpointError
from lr.model.config import ARCHITECTURES, SIZES, ModelConfig
from lr.model.qwen import CausalLM
from lr.model.weights import pieces

_REPLACED = ("config.json", "model*.safetensors", "model.safetensors.index.json")


def save_model(
    model: CausalLM, directory: str | Path, *, extra: Mapping[str, Any] | None = None
) -> None:
    """Write a Hugging Face checkpoint: config.json and model.safetensors in the model's
    dtype.

    `extra` goes into config.json (eos_token_id and the like). Other files in
    `directory`, such as a tokenizer, are kept; old weights are removed. The files are
    written to a temporary directory and renamed, so `directory` never holds half a
    checkpoint. Raises `CheckpointError` if no config.json can describe the model or
    `directory` is a file."""
    from safetensors.torch import save_file

    directory = Path(directory).resolve()
    if directory.exists() and not directory.is_dir():
        raise CheckpointError(
            f"{directory} is a file, expected a directory for the checkpoint. Give another name."
        )
    dtype = str(model.dtype).removeprefix("torch.")
    described = {**config_json(model.config), "dtype": dtype, **(extra or {})}
    parameters = dict(model.named_parameters())
    tensors = {}
    for piece in pieces(model.config):
        rows = slice(piece.first, piece.first + piece.shape[0])
        tensors[piece.key] = (
            parameters[piece.parameter].detach()[rows].cpu().contiguous()
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{directory.name}.", dir=directory.parent
    ) as work:
        fresh = Path(work, "fresh")
        retired = Path(work, "retired")
        if directory.exists():
            shutil.copytree(directory, fresh, ignore=shutil.ignore_patterns(*_REPLACED))
        fresh.mkdir(exist_ok=True)
        save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
        (fresh / "config.json").write_text(
            json.dumps(described, indent=2) + "\n", encoding="utf-8"
        )
        if directory.exists():
            directory.replace(retired)
        fresh.replace(directory)


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The content of a config.json that describes `config`, as transformers 5 writes
    it.

    `read_config` reads it back. Raises `CheckpointError` if no Hugging Face
    architecture has this combination of bias and norm."""
    if config.qkv_bias == config.qk_norm:
        raise CheckpointError(
            f"qkv_bias={config.qkv_bias} with qk_norm={config.qk_norm} is neither Qwen3 (norm, no "
            "bias) nor Qwen2 (bias, no norm), so no config.json can describe it. Change one of "
            "the two."
        )
    kind = "qwen3" if config.qk_norm else "qwen2"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.yarn is not None:
        stated = {
            name: value
            for name, value in vars(config.yarn).items()
            if value is not None
        }
        rope |= {"rope_type": "yarn", **stated}
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        **{key: getattr(config, ours) for ours, key in SIZES.items()},
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        **({"attention_bias": False} if kind == "qwen3" else {}),
    }
