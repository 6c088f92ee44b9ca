"""The tokenizer of a tiny language: a Hugging Face fast tokenizer like Qwen's, one
token per word.

It is byte-level BPE without merges. Each word of the vocabulary (with its leading
space) is one token, and so are every digit, the blank line that ends a step, and the
opening of the answer's box. All other text falls apart into bytes, so any text can be
decoded unchanged. The chat template is ChatML. `export` writes a trained model with its
tokenizer."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lr.model.qwen import CausalLM
from lr.tiny.language import Split
from lr.tiny.languages import LANGUAGES, QUANTITIES, TinyLanguage
from lr.tiny.saving import save_model

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 1.0, "top_k": 0}
PIECE = r"\n\n| ?\\boxed\{| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s"
"""One piece of text: a blank line, the box, a word, a digit, a mark, or white space.
Words, digits and marks keep one leading space."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@cache
def vocabulary(language: TinyLanguage = QUANTITIES) -> tuple[str, ...]:
    """All words of a language as they occur in text, with or without leading space.
    Sorted."""
    words = {
        "system",
        "user",
        "assistant",
        "\n\n",
        " \\boxed{",
        "\\boxed{",
        *language.boxed_words,
    }
    words |= {f" {word}" for word in language.slot_words}
    places = (
        place for some in language.templates.values() for one in some for place in one
    )
    for word in " ".join(run for place in places for run in place).split():
        if word[0].isupper():
            words.add(word)
        if word[0] not in "{\\" and word not in ",.:;}":
            words.add(f" {word}")
    for index in range(
        200
    ):  # enough to contain all words of the fixed wording of questions
        for draw in language.datasets.values():
            words |= set(
                re.findall(r" ?[A-Za-z]+", draw(Split.TRAIN, index, 0).question)
            )
    return tuple(sorted(word for word in words if len(word) > 1))


def build_tokenizer(language: TinyLanguage = QUANTITIES) -> PreTrainedTokenizerFast:
    """Build the tokenizer. Ids: 256 bytes, then the words in order, then three special
    tokens."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    entries = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries += [
        "".join(piece for piece, _ in to_bytes.pre_tokenize_str(word))
        for word in vocabulary(language)
    ]
    tokenizer = Tokenizer(
        models.BPE(
            {entry: i for i, entry in enumerate(entries)}, merges=[], ignore_merges=True
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECE), "isolated"), to_bytes]
    )
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def export(model: CausalLM, folder: Path, language: TinyLanguage = QUANTITIES) -> None:
    """Write a bf16 copy of a model, and its tokenizer, as a checkpoint for
    `transformers`."""
    tokenizer = build_tokenizer(language)
    ids = {
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }
    save_model(copy.deepcopy(model).cpu().to(torch.bfloat16), folder, extra=ids)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "generation_config.json").write_text(
        json.dumps(SAMPLING | ids, indent=2) + "\n"
    )
    tokenizer.save_pretrained(folder)


@cache
def ids_of(family: str) -> Mapping[str, int]:
    """The vocabulary of a family's language, from token to id."""
    return build_tokenizer(LANGUAGES[family]).get_vocab()
