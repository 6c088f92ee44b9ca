"""The exact bytes of every token of a tokenizer.

Steps end at bytes, not at tokens: `"\\n\\n"` may be one token, the tail of another, or arise across
two, and a character may be spread over several tokens. So whoever looks for a boundary needs each
token's bytes, alone and without its neighbours.

What a token's bytes are depends on how the tokenizer decodes. Three ways are known here: byte-level
BPE (GPT-2, Qwen, DeepSeek), where every byte is written as one printable character; sentencepiece
style with byte fallback (`▁` is a space, `<0x0A>` a byte); and plain concatenation. Anything else
(WordPiece, where a token's text depends on its neighbours) is refused. Read next: `codec.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from lr.errors import CheckpointError


def byte_table(tokenizer: Any) -> list[bytes]:
    """The bytes of each id of a fast transformers tokenizer; special tokens (end of sequence,
    roles) have none.

    Added tokens that are not special (`<think>`) are their text. An id that no token has (a hole in
    the vocabulary) has no bytes. Raises CheckpointError if the tokenizer decodes in a way in which
    tokens have no bytes of their own.
    """
    to_bytes = _reader(tokenizer)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    table = [b""] * (max(vocabulary.values()) + 1)
    for text, token in vocabulary.items():
        table[token] = to_bytes(text)
    for token, added in tokenizer.added_tokens_decoder.items():
        table[token] = b"" if added.special else added.content.encode()
    for token in tokenizer.all_special_ids:
        table[token] = b""
    return table


def _reader(tokenizer: Any) -> Callable[[str], bytes]:
    """How one entry of the vocabulary is turned into bytes, by the decoder of the tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    described = json.loads(decoder.__getstate__()) if decoder is not None else {"type": "none"}
    kinds = [part["type"] for part in _parts(described)]
    if "ByteLevel" in kinds:
        byte_of = printable_bytes()
        return lambda text: _byte_level(text, byte_of)
    if "ByteFallback" in kinds:
        return _sentencepiece
    if kinds and set(kinds) == {"Fuse"}:
        return str.encode
    raise CheckpointError(
        f"the tokenizer ({type(tokenizer).__name__}) decodes by {' and '.join(kinds)}; expected a byte-level BPE, sentencepiece style "
        "with byte fallback, or plain concatenation (Fuse). Only with these do tokens have bytes of their own, which finding the "
        "ends of steps needs."
    )


def _parts(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _parts(part)
    else:
        yield decoder


def printable_bytes() -> dict[str, int]:
    """GPT-2's map from printable characters back to bytes.

    The 188 bytes that are printable in Latin-1 stand for themselves; the other 68 are numbered from
    U+0100 on, in order. So the space (32), the 33rd of those, is U+0120, and the newline (10), the
    11th, U+010A.
    """
    themselves = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = [byte for byte in range(256) if byte not in themselves]
    return {chr(byte): byte for byte in themselves} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


def _byte_level(text: str, byte_of: dict[str, int]) -> bytes:
    """A text with a character outside the map is no byte-level text; it stands for itself, as in
    the tokenizers library.
    """
    try:
        return bytes([byte_of[character] for character in text])
    except KeyError:
        return text.encode()


def _sentencepiece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            pass
    return text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()
