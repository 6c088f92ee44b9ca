"""The tiny checkpoints: their language and their shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lr.model.config import ModelConfig
from lr.tiny.oracle import OracleVerifier
from lr.types import require

if TYPE_CHECKING:
    from lr.model.codec import Codec


def speaks_tiny(codec: Codec) -> bool:
    """Whether a checkpoint has the vocabulary of the tiny language."""
    from lr.tiny.vocabulary import (
        ids_by_word,  # imports transformers, which takes seconds
    )

    return codec.tokenizer.get_vocab() == ids_by_word()


def oracle_for(codec: Codec) -> OracleVerifier:
    """The oracle for a target. Raises `SettingError` if it speaks another language."""
    expected = "a checkpoint of the tiny language, which is all that the oracle knows"
    require(speaks_tiny(codec), "the target", codec.name, expected)
    return OracleVerifier(codec.decode)


def tiny_config(layers: int, vocab_size: int, mlp: int = 384) -> ModelConfig:
    """The shape of the tiny models, with tied embeddings."""
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
