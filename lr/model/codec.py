"""A checkpoint's tokenizer and chat template: from text to ids, and from ids to bytes
and text.

Generated text is never encoded again. Token ids are the truth; `token_bytes` serves to
find the ends of steps, `decode` serves verifiers and people. transformers, which takes
seconds to import, is imported when a codec is loaded. Ids from `vocab_size` on are
padding of the embedding, without meaning. Read next: `files.py`, where the files come
from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lr.errors import CheckpointError, SettingError
from lr.model.files import inside, read_json, resolve
from lr.registry import find, is_dummy
from lr.types import require

_VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model")


class Codec:
    """A tokenizer, and the checkpoint's settings for end of sequence and sampling.

    `eos_ids`: all ids that generation_config.json, config.json or the tokenizer name as
    end of sequence. `vocab_size`: ids 0 .. vocab_size - 1 are tokens (an embedding may
    have more rows). `tokenizer`: that of transformers. `generation_config`: the content
    of that file, or empty.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        name: str,
        eos_ids: Iterable[int] = (),
        generation_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.name = name
        own = tokenizer.eos_token_id
        self.eos_ids = frozenset(eos_ids) | (frozenset() if own is None else {own})
        self.generation_config = generation_config or {}
        added = {
            str(one) for one in tokenizer.added_tokens_decoder.values() if one.special
        }
        longest = sorted(
            added | set(tokenizer.all_special_tokens), key=len, reverse=True
        )
        self._special = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        self._bytes: list[bytes] | None = None
        self.vocab_size: int = max(tokenizer.get_vocab().values()) + 1
        outside = sorted(
            token for token in self.eos_ids if not 0 <= token < self.vocab_size
        )
        if not self.eos_ids or outside:
            raise CheckpointError(
                f"the end-of-sequence ids of {name} are {outside or 'not given'}; expected ids "
                f"from 0 to {self.vocab_size - 1} in eos_token_id of generation_config.json, "
                "config.json or the tokenizer. Without one no answer would end."
            )

    @classmethod
    def load(cls, name_or_path: str | Path) -> Codec:
        """The codec of a checkpoint, named as for `load_model`. Raises
        CheckpointError."""
        if is_dummy(name_or_path):
            tokenizer = find("lr.model.dummy:dummy_tokenizer")(name_or_path)
            return cls(tokenizer, name=str(name_or_path))
        directory = resolve(name_or_path, weights=False)
        eos: list[int] = []
        stated: dict[str, Any] = {}
        for path in (directory / "config.json", directory / "generation_config.json"):
            stated = read_json(path) if path.is_file() else {}
            value = stated.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(
                isinstance(token, int) and not isinstance(token, bool) for token in ids
            ):
                raise CheckpointError(
                    f"{path} has eos_token_id = {value!r}; expected an id or a list of ids. "
                    "Correct the file."
                )
            eos += ids
        tokenizer = _load_tokenizer(directory)
        return cls(
            tokenizer, name=str(name_or_path), eos_ids=eos, generation_config=stated
        )

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        """The ids of a text, with nothing added. `literal`: read special tokens as
        plain text."""
        how = {
            "add_special_tokens": False,
            "split_special_tokens": literal,
            "verbose": False,
        }
        return list(self.tokenizer(text, **how)["input_ids"])

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of one token; none for special tokens, such as end of
        sequence. Raises SettingError for an id that is not a token (a padding row of
        the embedding).
        """
        if self._bytes is None:
            self._bytes = byte_table(self.tokenizer)
        if not 0 <= token < self.vocab_size:
            raise SettingError(
                f"token id {token} is not in the vocabulary of {self.name} (0 to "
                f"{self.vocab_size - 1}). Give the runner vocab_size=codec.vocab_size, so that "
                "padding is never sampled."
            )
        return self._bytes[token]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of ids, without special tokens; U+FFFD for bytes that are no
        character (yet)."""
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def chat(
        self,
        question: str,
        *,
        system: str | None = None,
        enable_thinking: bool | None = None,
    ) -> list[int]:
        """The prompt ids of a question in the model's chat format, up to the
        assistant's first token. `enable_thinking` is passed to the template unless it
        is None. Raises CheckpointError if there is no chat template, SettingError if it
        refuses.
        """
        texts = (
            {"user": question}
            if system is None
            else {"system": system, "user": question}
        )
        for role, text in texts.items():
            name = "question" if role == "user" else role
            require(isinstance(text, str), name, text, "a string")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise SettingError(
                    f"{name} has a character that is not Unicode text: {error}. Give it in UTF-8."
                ) from error
        if not self.tokenizer.chat_template:
            raise CheckpointError(
                f"{self.name} has no chat template (chat_template in tokenizer_config.json, or "
                "chat_template.jinja). Give the prompt as plain text, or use an instruction-tuned "
                "checkpoint."
            )
        options = (
            {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        )
        # Special tokens in the messages are plain text. Marks tell them from the
        # template's own.
        whole = "".join(texts.values())
        mark = next(
            chr(code) for code in range(0xE000, 0xF900) if chr(code) not in whole
        )
        messages = [
            {"role": role, "content": self._special.sub(rf"{mark}\g<0>{mark}", content)}
            for role, content in texts.items()
        ]
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **options
            )
        except TemplateError as error:
            raise SettingError(
                f"the chat template of {self.name} refuses these messages (roles: "
                f"{', '.join(texts)}): {error}. Leave out what it does not support, often the "
                "system message."
            ) from error
        pieces = enumerate(text.split(mark))
        return [
            token
            for i, piece in pieces
            for token in self.encode(piece, literal=i % 2 == 1)
        ]


def first_difference(target: Codec, draft: Codec) -> str:
    """A description of how two vocabularies differ; "" if one can draft for the other:
    they may differ only in added tokens that one of them lacks.
    """
    both = [codec.tokenizer for codec in (target, draft)]
    ours, theirs = (
        {i: repr(text) for text, i in one.get_vocab().items()} for one in both
    )
    added = {i for one in both for i in one.added_tokens_decoder}
    differing = sorted(
        i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i)
    )
    wrong = [i for i in differing if (i in ours and i in theirs) or i not in added]
    if not wrong:
        return ""
    shown = [
        f"id {i} is {ours.get(i, 'absent')} and {theirs.get(i, 'absent')}"
        for i in wrong[:3]
    ]
    return f"{len(wrong)} ids differ: {'; '.join(shown)}{'; ...' if len(wrong) > 3 else ''}"


def require_same(target: Codec, draft: Codec) -> None:
    """Raise SettingError, with the first differences, unless the draft uses the
    target's ids."""
    if difference := first_difference(target, draft):
        raise SettingError(
            f"draft {draft.name} and target {target.name} have different vocabularies (target "
            f"first): {difference}. A draft must share the target's token ids: choose one of the "
            "same family."
        )


def _load_tokenizer(directory: Path) -> Any:
    """The tokenizer of tokenizer.json, unchanged. For some model types `AutoTokenizer`
    replaces the file's pre-tokenizer by that of the class, so it reads only checkpoints
    without that file.
    """
    found = [name for name in _VOCABULARIES if (directory / name).exists()]
    if not found:  # AutoTokenizer would make an empty one
        raise CheckpointError(
            f"{directory} has no tokenizer: it has {inside(directory)}, expected "
            f"{' or '.join(_VOCABULARIES)}. Put the model's tokenizer next to its weights."
        )
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loader = PreTrainedTokenizerFast if "tokenizer.json" in found else AutoTokenizer
    try:
        loaded = loader.from_pretrained(str(directory), local_files_only=True)
        loaded("a", verbose=False)  # some faults appear only in use
        return loaded
    except (
        Exception
    ) as error:  # what a broken tokenizer raises depends on the reader that fails
        raise CheckpointError(
            f"the tokenizer of {directory} cannot be read ({type(error).__name__}: {error}). "
            "Fetch tokenizer.json and tokenizer_config.json again."
        ) from error


def byte_table(tokenizer: Any) -> list[bytes]:
    """The bytes of each id of a fast transformers tokenizer: none for special tokens
    (end of sequence, roles) and unused ids, the text for other added tokens
    (`<think>`).

    Raises CheckpointError if the tokenizer's decoding gives single tokens no bytes.
    """
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    described = (
        {"type": "none"} if decoder is None else json.loads(decoder.__getstate__())
    )
    kinds = [part["type"] for part in described.get("decoders", [described])]
    byte_level, fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
    if not (byte_level or fallback or set(kinds) == {"Fuse"}):
        how = f"the tokenizer ({type(tokenizer).__name__}) decodes by {' and '.join(kinds)}"
        raise CheckpointError(
            f"{how}; expected a byte-level BPE, sentencepiece style with byte fallback, or plain "
            "concatenation (Fuse). Only with these does each token have its own bytes, which are "
            "needed to find the ends of steps."
        )
    byte_of, vocabulary = printable_bytes(), tokenizer.get_vocab()
    table = [b""] * (max(vocabulary.values()) + 1)
    for text, token in vocabulary.items():
        if byte_level and all(character in byte_of for character in text):
            table[token] = bytes(byte_of[character] for character in text)
        elif fallback and not byte_level:
            stated = re.fullmatch("<0x([0-9A-Fa-f]{2})>", text)
            shown = text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")
            table[token] = bytes.fromhex(stated[1]) if stated else shown.encode()
        else:  # the token is its own text, as in the tokenizers library
            table[token] = text.encode()
    for token, added in tokenizer.added_tokens_decoder.items():
        table[token] = b"" if added.special else added.content.encode()
    for token in tokenizer.all_special_ids:
        table[token] = b""
    return table


def printable_bytes() -> dict[str, int]:
    """GPT-2's map from printable characters back to bytes. The 188 bytes that are
    printable in Latin-1 map to themselves; the other 68 are numbered from U+0100 on, in
    order. So the space (32), the 33rd of those, is U+0120, and the newline (10), the
    11th, is U+010A.
    """
    themselves = {
        *range(ord("!"), ord("~") + 1),
        *range(0xA1, 0xAC + 1),
        *range(0xAE, 0xFF + 1),
    }
    others = [byte for byte in range(256) if byte not in themselves]
    numbered = {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return {chr(byte): byte for byte in themselves} | numbered
