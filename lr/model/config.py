"""What a model is, in numbers. Every property is a field of its own; none is derived from another.

The reader of `config.json`, which refuses what this project does not implement, is
`config_json.py`. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class YarnScaling:
    """YaRN context extension (Peng et al., arXiv 2309.00071), as `rope_parameters` of rope type
    "yarn" states it.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """A dense decoder of the Qwen family.

    Sizes: `hidden_size` e, `num_layers` l, `num_heads` h, `num_kv_heads` k (h is a multiple of k),
    `head_dim` d, `intermediate_size` of the MLP, `vocab_size` v (rows of the embedding, padding
    included), `max_position_embeddings` in tokens. `qkv_bias`: q, k and v projections have a bias
    (Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen). `qk_norm`: RMSNorm over every query and key head
    (Qwen3). `yarn`: None for plain rotary embeddings.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    qkv_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    yarn: YarnScaling | None = None
