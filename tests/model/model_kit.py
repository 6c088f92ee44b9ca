"""What the tests of `lr.model` share: small random Hugging Face checkpoints, and causal
attention without a cache.

Hugging Face initialises biases to zero and norms to one, which would hide a bias left
out or two norms mixed up; here every parameter is random.
"""

import json

import torch
from torch.nn import functional as F
from toy_kit import randomised

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
KINDS = ("qwen3", "qwen2")


def hf_model(kind, *, seed=0, **changes):
    """A random transformers model in fp64, in eval mode. Qwen3 heads have 16 dimensions
    (hidden / heads would be 8).
    """
    from transformers import (
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    settings = {**SIZES, "attn_implementation": "sdpa", **changes}
    if kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**settings))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**{"head_dim": 16, **settings}))
    return randomised(model.double().eval(), seed)


def hf_logits(model, tokens):
    """Logits [t, v] of tokens [t], by transformers."""
    with torch.no_grad():
        return model(tokens[None], use_cache=False).logits[0]


def our_logits(model, tokens):
    """Logits [t, v] of tokens [t], by our network with plain causal attention and no
    cache."""

    def attend(layer, q, k, v):
        q, k, v = (heads.transpose(0, 1)[None] for heads in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[
            0
        ].transpose(0, 1)

    with torch.no_grad():
        return model.logits(model.trunk(tokens, torch.arange(len(tokens)), attend))


def random_tokens(count, seed=1):
    return torch.randint(
        SIZES["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)
    )


def edit_json(path, **changes):
    """Change entries of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({key: value for key, value in content.items() if value is not None})
    )
