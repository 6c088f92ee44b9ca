"""A checkpoint's tokenizer and chat template: from text to ids, and from ids to bytes
and text.

Generated text is never encoded again. Token ids are the truth; `token_bytes` serves to
find the ends of steps, `decode` serves verifiers and people. transformers, which takes
seconds to import, is imported when a codec is loaded. Ids from `vocab_size` on are
padding of the embedding, without meaning. Read next: `files.py`, where the files come
from.
"""

from __future__ import annotations

import filecmp
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from lr.errors import CheckpointError, SettingError
from lr.model.files import read_json, resolve
from lr.registry import Checkpoint, dummies
from lr.types import require

HARMLESS = frozenset(
    """
do_sample temperature top_p top_k eos_token_id bos_token_id pad_token_id
decoder_start_token_id transformers_version _from_model_config _commit_hash use_cache
cache_implementation cache_config return_legacy_cache compile_config disable_compile
low_memory num_return_sequences is_assistant output_attentions output_hidden_states
output_scores output_logits return_dict_in_generate remove_invalid_values
renormalize_logits mode draft judge judge_prompt verifier""".split()
)
"""Entries of generation_config.json that are supported or do not affect the output. The
last five are ours: what a target is used with unless the user says otherwise, and the
prompt of a judge."""
NEUTRAL_AT_ONE = frozenset(
    """
repetition_penalty encoder_repetition_penalty typical_p length_penalty guidance_scale
num_beams num_beam_groups""".split()
)
"""Other entries without an effect at 1. All have none at null, 0, false and empty."""


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
        self.generation_config = generation_config or {}
        # added tokens included
        self.vocab_size: int = max(tokenizer.get_vocab().values()) + 1
        ids = {*eos_ids, tokenizer.eos_token_id} - {None}  # the target's, for all roles
        if not ids or not all(
            type(token) is int and 0 <= token < self.vocab_size for token in ids
        ):
            raise CheckpointError(
                f"the end-of-sequence ids of {name} are {ids or 'not given'}; expected "
                f"ids from 0 to {self.vocab_size - 1} in eos_token_id of "
                "generation_config.json, config.json or the tokenizer. Without one no "
                "answer would end."
            )
        self.eos_ids = frozenset(ids)

    @classmethod
    def load(cls, name_or_path: str | Path, like: Codec | None = None) -> Codec:
        """The codec of a checkpoint, named as for `load_model`, which shares its
        tokenizer with `like` if the files are the same. Raises CheckpointError."""
        name = str(name_or_path)
        if Checkpoint.parse(name).dummy:
            return cls(dummies().dummy_tokenizer(name), name=name)
        directory = resolve(name_or_path, weights=False)
        files = (directory / "config.json", directory / "generation_config.json")
        config, generation_config = (
            read_json(file) if file.is_file() else {} for file in files
        )
        eos_ids: list[Any] = []
        for stated in (config, generation_config):  # either may name some
            ids = stated.get("eos_token_id")
            eos_ids += ids if isinstance(ids, list) else [ids]
        if like is not None and same_files(directory, like.name):
            tokenizer = like.tokenizer
        else:
            tokenizer = _load_tokenizer(directory)
        codec = cls(
            tokenizer,
            name=name,
            eos_ids=eos_ids,
            generation_config=generation_config,
        )
        rows = config.get("vocab_size", codec.vocab_size)  # of the embedding
        if isinstance(rows, int) and rows < codec.vocab_size:
            raise CheckpointError(
                f"the tokenizer of {name} has {codec.vocab_size} tokens, but "
                f"{directory / 'config.json'} says vocab_size {rows}, the rows of the "
                "embedding. Use the tokenizer that came with the weights, or remove the "
                "tokens that were added to it."
            )
        return codec

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with nothing added."""
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return list(ids)

    @cached_property
    def _plain_tokenizer(self) -> Any:
        """The tokenizer without special and added tokens: "<|im_end|>" is ten characters."""
        from tokenizers import Tokenizer

        described = json.loads(self.tokenizer.backend_tokenizer.to_str())
        return Tokenizer.from_str(
            # without them, all is text
            json.dumps({**described, "added_tokens": [], "post_processor": None})
        )

    @cached_property
    def _bytes(self) -> list[bytes]:
        return byte_table(self.tokenizer)

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of one token; none for special tokens, such as end of
        sequence. Raises SettingError for an id that is not a token (a padding row of
        the embedding).
        """
        if not 0 <= token < self.vocab_size:
            raise SettingError(
                f"token id {token} is not in the vocabulary of {self.name} (0 to "
                f"{self.vocab_size - 1}). Give the runner vocab_size=codec.vocab_size, "
                "so that padding is never sampled."
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

        Only the template can write role and thinking marks: in the messages they are
        plain text, whatever the tokenizer says about them.
        """
        messages = [{"role": "user", "content": question}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        for message in messages:
            name = message["role"].replace("user", "question")
            text = message["content"]
            require(isinstance(text, str), name, text, "a string")
            expected = "Unicode text: give it in UTF-8"
            require(not re.search("[\ud800-\udfff]", text), name, ascii(text), expected)
        if not self.tokenizer.chat_template:
            raise CheckpointError(
                f"{self.name} has no chat template (chat_template in "
                "tokenizer_config.json, or chat_template.jinja). Give the prompt as "
                "plain text, or use an instruction-tuned checkpoint."
            )

        # 1. Put a message that holds an added token between two marks, characters that
        #    no message has.
        texts = "".join(message["content"] for message in messages)
        private = map(chr, range(0xE000, 0xF900))
        mark = next(character for character in private if character not in texts)
        added = set(self.tokenizer.added_tokens_decoder)
        for message in messages:
            if added.intersection(self.encode(message["content"])):
                message["content"] = f"{mark}{message['content']}{mark}"

        # 2. Let the template write.
        options = {}
        if enable_thinking is not None:
            options["enable_thinking"] = enable_thinking
        try:
            prompt = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **options
            )
        except Exception as error:  # a template is a program and may raise anything
            reason = (str(error).splitlines() or ["no message"])[0]
            raise SettingError(
                f"the chat template of {self.name} refuses these messages "
                f"({type(error).__name__}: {reason}). Leave out what it does not "
                "support, often the system message, or use another template."
            ) from error

        # 3. Read what stands between marks as plain text.
        ids: list[int] = []
        for i, piece in enumerate(prompt.split(mark)):
            if i % 2 == 1:
                ids += self._plain_tokenizer.encode(piece, add_special_tokens=False).ids
            else:
                ids += self.encode(piece)
        return ids


def unsupported(codec: Codec) -> str:
    """A sentence about the entries that are not supported, unknown ones included; "" if
    there are none."""
    asked_for = [
        f"{name} = {json.dumps(value):.60}"
        for name, value in codec.generation_config.items()
        if name not in HARMLESS
        and value not in (None, 0, "", [], {})
        and not (name in NEUTRAL_AT_ONE and value == 1)  # a penalty of 1, say
    ]
    if not asked_for:
        return ""
    shown = ", ".join(asked_for[:10])  # ten are enough
    return (
        f"generation_config.json of {codec.name} asks for {shown}; not supported here"
    )


def require_same(target: Codec, draft: Codec) -> None:
    """Raise SettingError, with the first differences, unless the draft uses the
    target's ids. They may differ in added tokens that one of them lacks."""
    if target.tokenizer is draft.tokenizer:
        return
    target_texts, draft_texts = (
        {token: text for text, token in codec.tokenizer.get_vocab().items()}
        for codec in (target, draft)
    )
    added = target.tokenizer.added_tokens_decoder | draft.tokenizer.added_tokens_decoder
    differences = []
    for token in sorted(target_texts | draft_texts):  # ids of either
        # None: it has no such id
        texts = target_texts.get(token), draft_texts.get(token)
        if texts[0] != texts[1] and not (token in added and None in texts):
            differences.append(f"id {token} is {texts[0]!r} and {texts[1]!r}")
    if differences:
        raise SettingError(
            f"draft {draft.name} and target {target.name} have different vocabularies "
            f"(target first): {len(differences)} ids differ: "
            f"{'; '.join(differences[:3])}. A draft must share the target's token ids: "
            "choose one of the same family."
        )


def same_files(directory: Path, other: str) -> bool:
    """Whether a directory has the files of another checkpoint's tokenizer."""
    if Checkpoint.parse(other).dummy:
        return False
    folders = directory, resolve(other, weights=False)
    names = {file.name for folder in folders for file in folder.glob("*token*.json")}
    same, _, _ = filecmp.cmpfiles(*folders, names, shallow=False)
    return len(same) == len(names)


def _load_tokenizer(directory: Path) -> Any:
    """The tokenizer of tokenizer.json, unchanged. (`AutoTokenizer` replaces the file's
    pre-tokenizer by that of a class for some model types.)"""
    if not (directory / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{directory} has no tokenizer.json. If it is a download, finish it, online; "
            "else put the model's tokenizer next to its weights. transformers' "
            "save_pretrained writes older layouts as such a file."
        )
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            str(directory), local_files_only=True
        )
        tokenizer("a", verbose=False)  # some faults appear only in use
        return tokenizer
    except Exception as error:  # the readers of the library raise many kinds
        raise CheckpointError(
            f"the tokenizer of {directory} cannot be read ({type(error).__name__}: "
            f"{error}). Fetch tokenizer.json and tokenizer_config.json again."
        ) from error


def byte_table(tokenizer: Any) -> list[bytes]:
    """The bytes of each id of a byte-level BPE tokenizer, which all Qwen models have:
    none for special tokens (end of sequence, roles) and unused ids, the text for other
    added tokens and for the marks of a thought (`</think>`), which some checkpoints flag
    as special: without them a thought would be read as the reply. Raises
    CheckpointError for another kind of tokenizer."""
    decoder = repr(tokenizer.backend_tokenizer.decoder)  # one, a chain, or None
    if "ByteLevel(" not in decoder:
        raise CheckpointError(
            f"the tokenizer ({type(tokenizer).__name__}) decodes by {decoder:.200}; "
            "expected a byte-level BPE as Qwen has it, in which each token has its own "
            "bytes, which are needed to find the ends of steps."
        )
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    printed = bytes_to_unicode().items()  # "Ġ" is the space
    byte_of = defaultdict(lambda: 0x100, {ord(text): byte for byte, text in printed})
    vocabulary = tokenizer.get_vocab()
    table = [b""] * (max(vocabulary.values()) + 1)  # unused ids stay empty
    for text, token in vocabulary.items():
        try:
            table[token] = text.translate(byte_of).encode("latin-1")
        except UnicodeEncodeError:  # the token is its own text, as in the library
            table[token] = text.encode()
    special_ids = tokenizer.all_special_ids  # which are added tokens, too
    for token, added in tokenizer.added_tokens_decoder.items():
        special = added.special or token in special_ids
        hidden = special and "think" not in added.content.lower()
        table[token] = b"" if hidden else added.content.encode()
    return table
