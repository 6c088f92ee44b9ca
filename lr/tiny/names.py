"""Which checkpoints speak the tiny language."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from lr.tiny import CHECKPOINTS
from lr.tiny.oracle import OracleVerifier
from lr.types import require

if TYPE_CHECKING:
    from lr.model.codec import Codec


def speaks_tiny(codec: Codec) -> bool:
    """Whether a checkpoint has the vocabulary of the tiny language."""
    return codec.tokenizer.get_vocab() == _vocabulary()


@cache
def _vocabulary() -> dict[str, int]:
    """That of the language: one token per word (`training/tiny_training/vocabulary.py`)."""
    from tokenizers import Tokenizer

    path = CHECKPOINTS["tiny-target"] / "tokenizer.json"
    return Tokenizer.from_file(str(path)).get_vocab()


def oracle_for(codec: Codec) -> OracleVerifier:
    """The oracle for a target. Raises `SettingError` if it speaks another language."""
    expected = "a checkpoint of the tiny language, which is all that the oracle knows"
    require(speaks_tiny(codec), "the target", codec.name, expected)
    return OracleVerifier(codec.decode)
