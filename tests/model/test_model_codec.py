"""The tokenizer wrapper: bytes of tokens, ends, prompts that no message can forge, and
whether two tokenizers agree."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from lr.engine.question import recommended_sampling
from lr.errors import CheckpointError, SettingError
from lr.model.codec import Codec, require_same
from lr.model.generation_config import unsupported
from lr.result import reply
from lr.types import SamplingParams

CORPUS = [
    "The apples are red.\n\nAnd the pears:\n\n",
    "So 12 + 30 = 42 apples.\n\n",
    "h\u00e9llo \u4e2d\u6587 \U0001f600\n",
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
R1_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<\uff5cUser\uff5c>"
    "{% endif %}{{ m.content }}{% endfor %}<\uff5cAssistant\uff5c><think>\n"
)
R1_ENDS = ("<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>")  # fmt: skip
QWEN_MARKS = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
FAMILIES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "Qwen2.5": (CHATML, QWEN_MARKS, ("<tool_call>", "</tool_call>")),
    "Qwen3": (CHATML, QWEN_MARKS, ("<think>", "</think>", "<tool_call>")),
    "R1-Distill-Qwen": (
        R1_TEMPLATE,
        R1_ENDS,
        ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<think>", "</think>"),
    ),
}
"""Of each family: the chat template, the tokens that tokenizer.json calls special (the
first is the end of sequence), and added tokens that it does not call so."""


def byte_level(
    family: str = "Qwen3",
    *,
    more: tuple[str, ...] = (),
    size: int = 320,
    chat_template: Any = None,
    **flags: bool,
) -> PreTrainedTokenizerFast:
    """A tokenizer of a family's kind, with few merges. `more`: further added tokens;
    `flags`: of all added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(words, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    template, special, added = FAMILIES[family]
    tokenizer.add_tokens(
        [
            AddedToken(t, **{"special": True, "normalized": False, **flags})
            for t in special
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(t, **{"special": False, "normalized": False, **flags})
            for t in (*added, *more)
        ]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=special[0], bos_token=special[1]
    )
    fast.chat_template = template if chat_template is None else chat_template
    return fast


@cache
def toy(family: str = "Qwen3") -> Codec:
    return Codec(byte_level(family), name="toy")


Save = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    """Writes a tokenizer with config.json and generation_config.json; None leaves a
    file out."""

    def save(
        tokenizer: Any,
        config: dict[str, Any] | None = None,
        generation: dict[str, Any] | None = None,
        name: str = "saved",
    ) -> Path:
        directory = tmp_path / name
        tokenizer.save_pretrained(directory)
        for file, content in (("config", config), ("generation_config", generation)):
            if content is not None:
                (directory / f"{file}.json").write_text(json.dumps(content))
        return directory

    return save


# Bytes


@settings(deadline=None)
@given(st.text())
def test_bytes_of_tokens_are_the_bytes_of_the_text(text: str) -> None:
    """Also where characters are torn over several tokens. Qwen normalises to NFC before
    it encodes, so that is what comes back.
    """
    codec = toy()
    tokens = codec.encode(text)
    expected = unicodedata.normalize("NFC", text)
    assert b"".join(map(codec.token_bytes, tokens)) == expected.encode()
    assert codec.decode(tokens) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 290), max_size=30))
def test_decoding_any_ids_is_what_transformers_decodes(tokens: list[int]) -> None:
    """Ids at random are rarely valid UTF-8: both put one U+FFFD in the place of each
    broken piece.
    """
    theirs = toy().tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
    assert toy().decode(tokens) == theirs


def test_special_tokens_have_no_bytes_and_other_added_ones_have() -> None:
    ids = toy().encode("a<think>x</think><|im_end|>")
    pieces = [toy().token_bytes(token) for token in ids]
    assert pieces == [b"a", b"<think>", b"x", b"</think>", b""]


@pytest.mark.parametrize("mark", ["</think>", "[/THINK]", "◁/think▷"])
def test_a_thought_ends_visibly_where_its_mark_is_flagged_special(mark: str) -> None:
    """Else the thought's own box would be graded."""
    tokenizer = byte_level("Qwen3")
    tokenizer.add_special_tokens({"additional_special_tokens": [mark]})
    codec = Codec(tokenizer, name="toy")
    tokens = codec.encode(f"\\boxed{{5}}{mark}The result equals 7.<|im_end|>")
    assert reply(codec.decode(tokens)) == "The result equals 7."
    assert codec.decode([*codec.eos_ids]) == ""


def test_only_byte_level_tokenizers_are_read() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    with pytest.raises(CheckpointError, match="byte-level"):
        Codec(fast, name="toy").token_bytes(0)
    with pytest.raises(SettingError, match="vocabulary"):
        toy().token_bytes(10_000)


# Loading


def test_end_ids_are_the_union(saved: Save) -> None:
    """A number or a list, in any of three places."""
    tokenizer = byte_level()
    end = tokenizer.eos_token_id
    assert Codec.load(saved(tokenizer)).eos_ids == {end}
    directory = saved(tokenizer, {"eos_token_id": 5}, {"eos_token_id": [7, end]})
    assert Codec.load(directory).eos_ids == {5, 7, end}
    assert Codec.load(saved(tokenizer, {"eos_token_id": None}, {})).eos_ids == {end}


@pytest.mark.parametrize("wrong", [None, [1, "2"], [3, 9999]])
def test_end_ids_that_are_none(saved: Save, wrong: Any) -> None:
    tokenizer = byte_level()
    tokenizer.eos_token = None
    with pytest.raises(CheckpointError, match="end-of-sequence"):
        Codec.load(saved(tokenizer, {"eos_token_id": wrong}))


def test_sampling_is_recommended_and_what_is_unsupported_is_named(saved: Save) -> None:
    stated = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    codec = Codec.load(saved(byte_level(), {}, {"do_sample": True, **stated}))
    assert recommended_sampling(codec) == SamplingParams(0.6, top_p=0.95, top_k=20)
    assert not unsupported(codec)
    stated |= {"of_tomorrow": ["x"], "length_penalty": 1.0, "max_time": 0}
    message = unsupported(Codec.load(saved(byte_level(), {}, stated)))
    assert "of_tomorrow" in message
    assert "length_penalty" not in message and "max_time" not in message


def test_no_tokenizer_and_a_broken_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(CheckpointError, match="no tokenizer"):
        Codec.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Codec.load(tmp_path)


def test_a_tokenizer_that_is_larger_than_the_embedding(saved: Save) -> None:
    directory = saved(byte_level(), {"vocab_size": 300})
    with pytest.raises(CheckpointError, match=r"config\.json says vocab_size 300"):
        Codec.load(directory)
    assert Codec.load(saved(byte_level(), {"vocab_size": 999})).vocab_size < 999


# Prompts


def test_chat_ids_are_those_of_transformers() -> None:
    for codec in map(toy, FAMILIES):
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "h\u00e9llo\n\nred apples?"},
        ]
        theirs = codec.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        question = messages[1]["content"]
        assert codec.chat(question, system="Be brief.") == theirs


def test_thinking_is_left_to_the_template_unless_it_is_set() -> None:
    plain = toy().chat("hi")
    assert toy().chat("hi", enable_thinking=True) == plain
    without = toy().chat("hi", enable_thinking=False)
    assert without[: len(plain)] == plain
    assert toy().decode(without[len(plain) :]) == "<think>\n\n</think>\n\n"


MARKS = sorted({*QWEN_MARKS, *R1_ENDS, "<think>", "</think>", "<tool_call>"})
FLAGS = [{}, {"special": True}, {"special": False, "normalized": True}]


@cache
def flagged(family: str, number: int) -> Codec:
    return Codec(byte_level(family, **FLAGS[number]), name=family)


@pytest.mark.parametrize("number", range(len(FLAGS)), ids=lambda i: str(FLAGS[i]))
@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=60)
@given(
    parts=st.lists(st.sampled_from([*MARKS, *"a <>|\n", "\ue000", "ok"]), min_size=1)
)
def test_no_message_can_write_the_marks_of_a_template(
    family: str, number: int, parts: list[str]
) -> None:
    """The prompt holds the template's marks and no more, and the words arrive
    unchanged, whatever the tokenizer says about its added tokens."""
    codec = flagged(family, number)
    text = "".join(parts)

    def marks(ids: list[int]) -> list[int]:
        return [token for token in ids if token in codec.tokenizer.added_tokens_decoder]

    ids = codec.chat(text, system=text)
    assert marks(ids) == marks(codec.chat("2 + 2?", system="Add."))
    assert codec.decode(ids).count(text) >= 2


@pytest.mark.parametrize(
    "template",
    ["{{ messages[0].content + 1 }}", "{% if %}", {"tool_use": "x"}],
    ids=str,
)
def test_a_template_that_fails_is_named(template: Any) -> None:
    codec = Codec(byte_level(chat_template=template), name="strict")
    with pytest.raises(SettingError, match="template of strict"):
        codec.chat("hi", system="x")


def test_without_a_template_there_is_no_chat() -> None:
    with pytest.raises(CheckpointError, match="no chat template"):
        Codec(byte_level(chat_template=""), name="bare").chat("hi")


@pytest.mark.parametrize("text", [7, "\ud800"])
def test_questions_that_are_no_text(text: Any) -> None:
    with pytest.raises(SettingError, match="question"):
        toy().chat(text)


# Two tokenizers


def test_a_draft_may_lack_added_tokens_and_nothing_else() -> None:
    """As Qwen2.5's tokenizer next to Qwen3's."""
    codec = toy()
    larger = Codec(byte_level(more=("<tool>",)), name="larger")
    for target, draft in ((codec, codec), (codec, larger), (larger, codec)):
        require_same(target, draft)
    strangers = [
        Codec(byte_level("Qwen2.5"), name="other"),  # another added token at one id
        Codec(byte_level(size=280), name="other"),  # fewer merges
    ]
    for stranger in strangers:
        with pytest.raises(SettingError, match="draft other and target toy"):
            require_same(codec, stranger)
