"""A tiny model as a Hugging Face checkpoint: weights in bf16, configuration, sampling defaults and
the tokenizer.

What is written loads with plain `transformers.AutoModelForCausalLM` and with `lr.load_model`.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch

from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.model.weights import save_model
from lr.tiny.languages import QUANTITIES, TinyLanguage
from lr.tiny.vocabulary import END, PAD, build_tokenizer

SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 1.0, "top_k": 0}


def tiny_config(layers: int, vocab_size: int, mlp: int = 384) -> ModelConfig:
    """The shape of the tiny models: width 128, 4 heads of 32 that share 2 KV heads, MLP 384 (plans:
    256), tied embedding.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=mlp,
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


def export(model: CausalLM, folder: Path, language: TinyLanguage = QUANTITIES) -> None:
    """Write `model`, rounded to bf16, with the tokenizer of its language to `folder`. The model
    itself is not changed.
    """
    tokenizer = build_tokenizer(language)
    ids = {
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }
    save_model(copy.deepcopy(model).cpu().to(torch.bfloat16), folder, extra=ids)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "generation_config.json").write_text(json.dumps(SAMPLING | ids, indent=2) + "\n")
    tokenizer.save_pretrained(folder)
