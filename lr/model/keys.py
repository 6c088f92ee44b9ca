"""Which tensor of a Hugging Face checkpoint makes which rows of which parameter of `CausalLM`.

Our attention and MLP use fused matrices; a checkpoint stores their parts one by one. Worked
example: 4 query heads and 2 KV heads of size 8 give `attention.qkv.weight` 64 rows: q_proj makes
rows 0..31, k_proj rows 32..47, v_proj rows 48..63.

Loading copies along this list, saving walks it backwards, and tensor parallelism slices along it.
It knows no files and no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lr.model.config import ModelConfig

EMBEDDING_KEY = "model.embed_tokens.weight"
HEAD_KEY = "lm_head.weight"
HARMLESS_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints store the rotary frequencies; they are computed from the configuration."""


@dataclass(frozen=True)
class Piece:
    """One tensor of a checkpoint: `key`, of `shape`, makes rows first .. first + shape[0] - 1 of
    `parameter`.
    """

    key: str
    parameter: str
    first: int
    shape: tuple[int, ...]


def pieces(config: ModelConfig) -> list[Piece]:
    """Every tensor that a checkpoint of this configuration has, in the order of the network. The
    head only where it is untied.
    """
    table = (config.vocab_size, config.hidden_size)
    listed = [Piece(EMBEDDING_KEY, "embedding.weight", 0, table)]
    for layer in range(config.num_layers):
        listed += _layer(config, f"model.layers.{layer}.", f"layers.{layer}.")
    listed.append(Piece("model.norm.weight", "norm.weight", 0, (config.hidden_size,)))
    if not config.tie_word_embeddings:
        listed.append(Piece(HEAD_KEY, "head.weight", 0, table))
    return listed


def _layer(config: ModelConfig, theirs: str, ours: str) -> Iterator[Piece]:
    e, d, inner = config.hidden_size, config.head_dim, config.intermediate_size
    yield Piece(theirs + "input_layernorm.weight", ours + "attention_norm.weight", 0, (e,))
    first = 0
    for name, heads in (
        ("q", config.num_heads),
        ("k", config.num_kv_heads),
        ("v", config.num_kv_heads),
    ):
        key = f"{theirs}self_attn.{name}_proj."
        yield Piece(key + "weight", ours + "attention.qkv.weight", first, (heads * d, e))
        if config.qkv_bias:
            yield Piece(key + "bias", ours + "attention.qkv.bias", first, (heads * d,))
        first += heads * d
    if config.qk_norm:
        for name in ("q_norm", "k_norm"):
            yield Piece(
                f"{theirs}self_attn.{name}.weight", f"{ours}attention.{name}.weight", 0, (d,)
            )
    yield Piece(
        theirs + "self_attn.o_proj.weight",
        ours + "attention.out.weight",
        0,
        (e, config.num_heads * d),
    )
    yield Piece(theirs + "post_attention_layernorm.weight", ours + "mlp_norm.weight", 0, (e,))
    yield Piece(theirs + "mlp.gate_proj.weight", ours + "mlp.gate_up.weight", 0, (inner, e))
    yield Piece(theirs + "mlp.up_proj.weight", ours + "mlp.gate_up.weight", inner, (inner, e))
    yield Piece(theirs + "mlp.down_proj.weight", ours + "mlp.down.weight", 0, (e, inner))
