"""A tokenizer for a dummy model: byte b is token b, the end of sequence is token 256, token i above
is the word " w<i>".

It fills the model's whole vocabulary, so that sampling costs what it costs with the real one. A
question is its bytes, without any template. `Codec.load("dummy:NAME")` comes here. Read next:
`codec.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lr.errors import CheckpointError
from lr.model.shapes import shape
from lr.model.token_bytes import printable_bytes

END, END_ID = "<|end|>", 256


def dummy_tokenizer(name: str | Path) -> Any:
    """The transformers tokenizer of the shape `name`. Raises `CheckpointError` for a vocabulary
    without room for the bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    size = shape(name).vocab_size
    if size <= END_ID:
        raise CheckpointError(
            f"{name} has a vocabulary of {size}; a dummy tokenizer needs {END_ID + 1} ids at least, for the bytes and the end of sequence. "
            "Give a shape with a larger vocab_size."
        )
    vocabulary = {**printable_bytes(), END: END_ID} | {
        f"\u0120w{token}": token for token in range(END_ID + 1, size)
    }
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
    tokenizer.chat_template = "{{ messages | map(attribute='content') | join('\\n') }}"
    return tokenizer
