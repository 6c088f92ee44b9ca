"""The checkpoints of models that are trained here: their shape, and how they are
written."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lr.model.config import ARCHITECTURES, SIZES, ModelConfig
from lr.model.qwen import CausalLM
from lr.model.weights import pieces
from tiny_training.vocabulary import END, PAD, build_tokenizer

SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 1.0, "top_k": 0}


def tiny_config(layers: int, vocab_size: int) -> ModelConfig:
    """The shape of the tiny models, with tied embeddings."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=384,
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


def export(model: CausalLM, folder: Path, **about: str) -> None:
    """Write a bf16 copy of a model, and its tokenizer, as a checkpoint for
    `transformers`. `about`: further entries of its generation_config.json."""
    tokenizer = build_tokenizer()
    ids = {
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }
    save_model(copy.deepcopy(model).cpu().to(torch.bfloat16), folder, extra=ids)
    about = SAMPLING | ids | about
    (folder / "generation_config.json").write_text(json.dumps(about, indent=2) + "\n")
    tokenizer.save_pretrained(folder)


def save_model(
    model: CausalLM, directory: Path, *, extra: Mapping[str, Any] | None = None
) -> None:
    """Write a Hugging Face checkpoint: model.safetensors in the model's dtype, and
    config.json with `extra` (eos_token_id and the like)."""
    parameters = dict(model.named_parameters())
    tensors = {}
    for piece in pieces(model.config):
        rows = slice(piece.first, piece.first + piece.shape[0])
        parameter = parameters[piece.parameter].detach()
        tensors[piece.key] = parameter[rows].cpu().contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    dtype = str(model.dtype).removeprefix("torch.")
    described = {**config_json(model.config), "dtype": dtype, **(extra or {})}
    content = json.dumps(described, indent=2) + "\n"
    (directory / "config.json").write_text(content, encoding="utf-8")


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The content of a config.json that describes `config`, as transformers 5 writes
    it; `read_config` reads it back."""
    assert config.qkv_bias != config.qk_norm, "Qwen3 has the norm, Qwen2 the bias"
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
