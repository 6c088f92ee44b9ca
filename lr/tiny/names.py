"""Which checkpoints speak the tiny language."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lr.tiny.oracle import OracleVerifier
from lr.types import require

if TYPE_CHECKING:
    from lr.model.codec import Codec


def speaks_tiny(codec: Codec) -> bool:
    """Whether a checkpoint has the vocabulary of the tiny language."""
    from lr.tiny.vocabulary import ids_by_word  # imports transformers: seconds

    return codec.tokenizer.get_vocab() == ids_by_word()


def oracle_for(codec: Codec) -> OracleVerifier:
    """The oracle for a target. Raises `SettingError` if it speaks another language."""
    expected = "a checkpoint of the tiny language, which is all that the oracle knows"
    require(speaks_tiny(codec), "the target", codec.name, expected)
    return OracleVerifier(codec.decode)
