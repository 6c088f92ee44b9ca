"""A tiny model as a Hugging Face checkpoint: config.json, model.safetensors in bf16, generation_config.json and the tokenizer.

Our fused matrices are split into the ones Qwen3 checkpoints have. What is written loads with plain
`transformers.AutoModelForCausalLM` and with `lr.load_model`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.tiny.vocabulary import END, PAD, build_tokenizer, save_tokenizer

RENAMED = {
    "attention_norm.weight": "input_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}


def tiny_config(layers: int, vocab_size: int) -> ModelConfig:
    """The shape of the tiny models: width 128, 4 heads of 32 that share 2 KV heads, MLP 384, tied embedding."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=384,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        qkv_bias=False,
        qk_norm=True,
        tie_word_embeddings=True,
    )


def export(model: CausalLM, folder: Path) -> None:
    """Write `model` (tied, Qwen3 layout) with the tiny tokenizer to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in _hf_tensors(model).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = build_tokenizer()
    ids = {"eos_token_id": tokenizer.convert_tokens_to_ids(END), "pad_token_id": tokenizer.convert_tokens_to_ids(PAD)}
    (folder / "config.json").write_text(json.dumps(_config_json(model.config) | ids, indent=2) + "\n")
    generation = {"do_sample": True, "temperature": 0.6, "top_p": 1.0, "top_k": 0} | ids
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_tokenizer(folder)


def _hf_tensors(model: CausalLM) -> dict[str, Tensor]:
    """The weights under their Hugging Face names, fused matrices split: qkv rows are [q | k | v], gate_up rows [gate | up]."""
    config = model.config
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    state = model.state_dict()
    out = {"model.embed_tokens.weight": state["embedding.weight"], "model.norm.weight": state["norm.weight"]}
    for i in range(config.num_layers):
        for name, new in RENAMED.items():
            out[f"model.layers.{i}.{new}"] = state[f"layers.{i}.{name}"]
        parts = state[f"layers.{i}.attention.qkv.weight"].split((q, kv, kv))
        for part, tensor in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True):
            out[f"model.layers.{i}.self_attn.{part}.weight"] = tensor
        for part, tensor in zip(("gate_proj", "up_proj"), state[f"layers.{i}.mlp.gate_up.weight"].chunk(2), strict=True):
            out[f"model.layers.{i}.mlp.{part}.weight"] = tensor
    return out


def _config_json(config: ModelConfig) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": config.qkv_bias,
        "attention_dropout": 0.0,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
    }
