"""The tokenizer of the tiny language: a Hugging Face fast tokenizer like Qwen's, one
token per word.

It is byte-level BPE without merges. Each word of the vocabulary (with its leading
space) is one token, and so are every digit, the blank line that ends a step, and the
opening of the answer's box. All other text falls apart into bytes, so any text can be
decoded unchanged. The chat template is ChatML."""

import re
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lr.tiny.grammar import PIECES
from lr.tiny.language import ITEMS, NAMES, NOTES, Split
from lr.tiny.stories import DATASETS

PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
PIECE = r"\n\n| ?\\boxed\{| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s"
"""One piece of text: a blank line, the box, a word, a digit, a mark, or white space.
Words, digits and marks keep one leading space."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@cache
def vocabulary() -> tuple[str, ...]:
    """All words of the language as they occur in text, with or without leading space.
    Sorted."""
    words = {"system", "user", "assistant", "\n\n", " \\boxed{", "\\boxed{"}
    words |= {f" {word}" for word in (*NAMES, *ITEMS, *NOTES, "the", "last")}
    words |= {f" {digit}" for digit in "0123456789"}
    templates = [template for group in PIECES.values() for template in group]
    alternatives = [
        run for template in templates for choices in template for run in choices
    ]
    for word in " ".join(alternatives).split():
        if word[0].isupper():
            words.add(word)
        if word[0] not in "{\\" and word not in ",.:;}":
            words.add(f" {word}")
    for draw in DATASETS.values():
        for index in range(200):  # enough to contain all words of the questions
            question = draw(Split.TRAIN, index, 0).question
            words |= set(re.findall(r" ?[A-Za-z]+", question))
    return tuple(sorted(word for word in words if len(word) > 1))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer. Ids: 256 bytes, then the words in order, then three special
    tokens."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    entries = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries += [
        "".join(piece for piece, _ in to_bytes.pre_tokenize_str(word))
        for word in vocabulary()
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
