"""What the tests of `lr.model` share: small random Hugging Face checkpoints, and causal
attention without a cache.

Hugging Face initialises biases to zero and norms to one, which would hide a bias left
out or two norms mixed up; here every parameter is random.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.model.qwen import CausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
KINDS = ("qwen3", "qwen2")


def hf_model(kind: str, *, seed: int = 0, **changes: Any) -> Any:
    """A random transformers model in fp64, in eval mode. Qwen3 heads have 16 dimensions
    (hidden / heads would be 8).
    """
    from transformers import (
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    settings: dict[str, Any] = {**SIZES, "attn_implementation": "sdpa", **changes}
    if kind == "qwen2":
        return randomised(
            Qwen2ForCausalLM(Qwen2Config(**settings)).double().eval(), seed
        )
    return randomised(
        Qwen3ForCausalLM(Qwen3Config(**{"head_dim": 16, **settings})).double().eval(),
        seed,
    )


def randomised(model: Any, seed: int) -> Any:
    """Every parameter drawn anew: weights around 0, norms around 1. Returns the
    model."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = (
                torch.randn(parameter.shape, generator=noise, dtype=torch.float64) * 0.3
            )
            parameter.copy_(drawn + 1 if "norm" in name else drawn)
    return model


def hf_logits(model: Any, tokens: Tensor) -> Tensor:
    """Logits [t, v] of tokens [t], by transformers."""
    with torch.no_grad():
        return model(tokens[None], use_cache=False).logits[0]


def our_logits(model: CausalLM, tokens: Tensor) -> Tensor:
    """Logits [t, v] of tokens [t], by our network with plain causal attention and no
    cache."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (heads.transpose(0, 1)[None] for heads in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[
            0
        ].transpose(0, 1)

    with torch.no_grad():
        return model.logits(model.trunk(tokens, torch.arange(len(tokens)), attend))


def random_tokens(count: int, seed: int = 1) -> Tensor:
    return torch.randint(
        SIZES["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)
    )


def edit_json(path: Path, **changes: Any) -> None:
    """Change entries of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({key: value for key, value in content.items() if value is not None})
    )
