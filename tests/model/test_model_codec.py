"""The tokenizer wrapper: bytes of tokens, ends, prompts, and whether two tokenizers
agree."""

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
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lr.engine.engine import recommended_sampling
from lr.errors import CheckpointError, SettingError
from lr.model.codec import (
    Codec,
    byte_table,
    first_difference,
    printable_bytes,
    require_same,
)
from lr.model.generation_config import unheeded
from lr.types import SamplingParams

CORPUS = [
    "The apples are red.\n\nAnd the pears:\n\n",
    "So 12 + 30 = 42 apples.\n\n",
    "h\u00e9llo \u4e2d\u6587 \U0001f600\n",
]
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def byte_level(
    *,
    added: tuple[str, ...] = ("<think>", "</think>"),
    size: int = 320,
    chat_template: str | None = TEMPLATE,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE of Qwen's kind: NFC, split into words, some merges, special
    tokens and others that are not.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(
        Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"), "isolated"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|pad|>", "<|start|>", "<|end|>"])
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in added]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>"
    )
    fast.chat_template = chat_template
    return fast


@cache
def toy() -> Codec:
    return Codec(byte_level(), name="toy")


@pytest.fixture
def codec() -> Codec:
    return toy()


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
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
        for file, content in (
            ("config.json", config),
            ("generation_config.json", generation),
        ):
            if content is not None:
                (directory / file).write_text(json.dumps(content))
        return directory

    return save


# Bytes


def test_the_byte_map_is_that_of_the_tokenizers_library() -> None:
    byte_of = printable_bytes()
    assert set(byte_of) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_of.values()) == list(range(256))
    assert (byte_of["\u0120"], byte_of["\u010a"]) == (ord(" "), ord("\n"))


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
    codec = toy()
    assert codec.decode(tokens) == codec.tokenizer.decode(
        tokens, clean_up_tokenization_spaces=False
    )


def test_bytes_of_special_and_added_tokens(codec: Codec) -> None:
    """What only marks an end or a role has no text; what the model writes for people to
    see has."""
    ids = codec.encode("a<think>x</think><|end|>")
    assert [codec.token_bytes(i) for i in ids[1:]] == [
        b"<think>",
        b"x",
        b"</think>",
        b"",
    ]
    assert codec.decode(ids) == "a<think>x</think>"


def test_boundaries_fused_and_split(codec: Codec) -> None:
    """The blank line may hide in a token with a point, and two tokens may make one
    together."""
    fused = codec.encode("red.\n\n")
    assert codec.token_bytes(fused[-1]).endswith(b".\n\n")
    newline = next(i for i in range(codec.vocab_size) if codec.token_bytes(i) == b"\n")
    assert b"".join(map(codec.token_bytes, [newline, newline])) == b"\n\n"


@pytest.mark.parametrize("token", [-1, 10_000])
def test_ids_that_are_no_tokens(codec: Codec, token: int) -> None:
    with pytest.raises(
        SettingError,
        match=rf"token id {token} is not .* \(0 to {codec.vocab_size - 1}\)",
    ):
        codec.token_bytes(token)


def with_decoder(vocabulary: list[str], decoder: Any) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(
        models.WordLevel(
            {text: i for i, text in enumerate(vocabulary)}, unk_token=vocabulary[0]
        )
    )
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=vocabulary[1])


def test_sentencepiece_style() -> None:
    """Llama's way: a lower block is a space, <0x0A> the byte 10; something that only
    resembles a byte is text.
    """
    decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    table = byte_table(
        with_decoder(
            ["<unk>", "</s>", "\u2581the", "<0x0A>", "<0xE4>", "<0xZZ>", "\u4e2d"],
            decoder,
        )
    )
    assert table[2:] == [b" the", b"\n", b"\xe4", b"<0xZZ>", "\u4e2d".encode()]
    assert table[1] == b""


def test_plain_concatenation() -> None:
    table = byte_table(
        with_decoder(["<unk>", "</s>", " caf\u00e9", "\n\n"], decoders.Fuse())
    )
    assert table[2:] == [" caf\u00e9".encode(), b"\n\n"]


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.Metaspace(), "Metaspace"),
        (None, "none"),
    ],
)
def test_tokens_without_bytes_of_their_own_are_refused(
    decoder: Any, named: str
) -> None:
    codec = Codec(with_decoder(["<unk>", "</s>", "the"], decoder), name="toy")
    with pytest.raises(
        CheckpointError, match=f"decodes by {named}; expected a byte-level BPE"
    ):
        codec.token_bytes(2)


def test_holes_in_the_vocabulary() -> None:
    tokenizer = Tokenizer(
        models.WordLevel({"<unk>": 0, "</s>": 1, "x": 5}, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Fuse()
    codec = Codec(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>"),
        name="holes",
    )
    assert codec.vocab_size == 6
    assert [codec.token_bytes(i) for i in (3, 5)] == [b"", b"x"]


# Loading


def test_loaded_is_what_was_saved(saved: Callable[..., Path]) -> None:
    tokenizer = byte_level()
    codec = Codec.load(saved(tokenizer))
    assert codec.vocab_size == len(tokenizer)
    for text in [*CORPUS, "<|start|>x<think> \n\n \n", "1234  5\r\n\r\n"]:
        assert (
            codec.encode(text) == tokenizer(text, add_special_tokens=False)["input_ids"]
        )


def test_the_file_of_the_tokenizer_counts_not_the_class_of_the_model(
    saved: Callable[..., Path],
) -> None:
    """config.json says qwen3, tokenizer_config.json Qwen2Tokenizer, and the words are
    cut as tokenizer.json says.

    AutoTokenizer puts the class's own pre-tokenizer in its place; were that to end,
    this test would say so.
    """
    tokenizer = byte_level()
    alphabet = {
        character: i
        for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    whole = Tokenizer(
        models.BPE({**alphabet, "ab\u0120cd": 256}, [], ignore_merges=True)
    )
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    whole.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="<|end|>")
    directory = saved(
        tokenizer, {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    )
    stated = json.loads((directory / "tokenizer_config.json").read_text()) | {
        "tokenizer_class": "Qwen2Tokenizer"
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(stated))
    assert Codec.load(directory).encode("ab cd") == [256]
    assert AutoTokenizer.from_pretrained(directory)("ab cd")["input_ids"] != [256]


def test_vocabulary_and_merges_without_tokenizer_json(
    saved: Callable[..., Path],
) -> None:
    """The oldest layout, which transformers reads by the class for the model type."""
    directory = saved(
        byte_level(), {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    )
    content = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|end|>"})
    )
    (directory / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    (directory / "merges.txt").write_text(
        "\n".join(" ".join(pair) for pair in content["model"]["merges"])
    )
    codec = Codec.load(directory)
    assert codec.decode(codec.encode(CORPUS[0])) == CORPUS[0]
    assert codec.encode(" apples") == byte_level()(" apples")["input_ids"]


def test_end_ids_are_the_union(saved: Callable[..., Path]) -> None:
    """A number or a list, in any of three places."""
    tokenizer = byte_level()
    own = tokenizer.eos_token_id
    assert Codec.load(saved(tokenizer)).eos_ids == {own}
    both = Codec.load(saved(tokenizer, {"eos_token_id": 5}, {"eos_token_id": [7, own]}))
    assert both.eos_ids == {5, 7, own}
    assert Codec.load(saved(tokenizer, {"eos_token_id": None}, {})).eos_ids == {own}


@pytest.mark.parametrize("wrong", ["</s>", [1, "2"], True])
def test_end_ids_that_are_none(saved: Callable[..., Path], wrong: Any) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json has eos_token_id = "):
        Codec.load(saved(byte_level(), {"eos_token_id": wrong}))


def test_a_vocabulary_without_end(saved: Callable[..., Path]) -> None:
    tokenizer = byte_level()
    tokenizer.eos_token = None
    with pytest.raises(CheckpointError, match="not given"):
        Codec.load(saved(tokenizer))
    with pytest.raises(CheckpointError, match=r"\[9999\]"):
        Codec.load(saved(tokenizer, {"eos_token_id": [3, 9999]}))


def test_recommended_sampling(saved: Callable[..., Path]) -> None:
    stated = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": None,
        "pad_token_id": 1,
    }
    codec = Codec.load(saved(byte_level(), {}, stated))
    assert recommended_sampling(codec) == SamplingParams(0.6, top_p=0.95, top_k=20)
    assert not Codec.load(saved(byte_level(), name="bare")).generation_config


@pytest.mark.parametrize(
    "stated",
    [{"top_p": "0.9"}, {"min_p": []}, {"top_k": True}, {"temperature": 10**400}],
    ids=str,
)
def test_recommended_sampling_that_is_no_number(
    saved: Callable[..., Path], stated: Any
) -> None:
    codec = Codec.load(saved(byte_level(), {}, stated))
    with pytest.raises(
        CheckpointError, match=rf"generation_config.json .*{next(iter(stated))}"
    ):
        recommended_sampling(codec)


def test_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(CheckpointError, match=r"has no tokenizer: it has config\.json"):
        Codec.load(tmp_path)


def test_a_broken_tokenizer(saved: Callable[..., Path]) -> None:
    directory = saved(byte_level())
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Codec.load(directory)


# Prompts


def test_chat(codec: Codec) -> None:
    end, start = (
        codec.tokenizer.convert_tokens_to_ids(f"<|{name}|>")
        for name in ("end", "start")
    )
    ids = codec.chat("red apples?", system="Be brief.")
    assert (ids.count(start), ids.count(end)) == (3, 2)
    assert codec.decode(ids) == "system\nBe brief.\nuser\nred apples?\nassistant\n"


def test_thinking_is_left_to_the_template_unless_it_is_said(codec: Codec) -> None:
    plain = codec.chat("hi")
    assert codec.chat("hi", enable_thinking=True) == plain
    without = codec.chat("hi", enable_thinking=False)
    assert without[: len(plain)] == plain
    assert codec.decode(without[len(plain) :]) == "<think>\n\n</think>\n\n"


def test_a_template_that_does_not_know_thinking_ignores_it() -> None:
    codec = Codec(byte_level(chat_template="{{ messages[0].content }}"), name="plain")
    assert codec.chat("hi", enable_thinking=False) == codec.encode("hi")


def test_chat_ids_are_those_of_transformers(codec: Codec) -> None:
    messages = [{"role": "user", "content": "h\u00e9llo\n\n<think>"}]
    theirs = codec.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert codec.chat("h\u00e9llo\n\n<think>") == theirs


def test_no_chat_template() -> None:
    with pytest.raises(CheckpointError, match="bare has no chat template"):
        Codec(byte_level(chat_template=None), name="bare").chat("hi")


def test_a_template_that_refuses() -> None:
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}"
        "{% endif %}{{ messages[0].content }}"
    )
    codec = Codec(byte_level(chat_template=template), name="strict")
    assert codec.chat("hi")
    with pytest.raises(
        SettingError, match=r"roles: system, user\): no system role here"
    ):
        codec.chat("hi", system="x")


# Two tokenizers


def test_tokenizers_that_agree(codec: Codec) -> None:
    """The same, and one that knows more added tokens after the common ones (as Qwen3's
    next to Qwen2.5's).
    """
    more = Codec(byte_level(added=("<think>", "</think>", "<tool>")), name="more")
    assert not first_difference(codec, codec)
    assert not first_difference(codec, more)
    assert not first_difference(more, codec)
    require_same(codec, more)


def test_added_tokens_that_contradict(codec: Codec) -> None:
    other = Codec(byte_level(added=("<think>", "<tool>")), name="other")
    assert first_difference(codec, other)
    place = codec.tokenizer.convert_tokens_to_ids("</think>")
    with pytest.raises(
        SettingError, match=rf"1 ids differ: id {place} is '</think>' and '<tool>'"
    ):
        require_same(codec, other)


def test_vocabularies_that_differ(codec: Codec) -> None:
    """More merges in one: its ids mean something else from there on. The first three
    are named, and what to do is said.
    """
    other = Codec(byte_level(size=280), name="small")
    assert first_difference(codec, other)
    with pytest.raises(SettingError) as refusal:
        require_same(codec, other)
    message = str(refusal.value)
    assert message.startswith("draft small and target toy have different vocabularies")
    assert "id 280 is " in message
    assert message.count(" is ") >= 3
    assert "choose one of the same family" in message


def test_a_base_token_that_only_one_has() -> None:
    words = ["<unk>", "</s>", "a", "b"]
    one, two = (
        Codec(with_decoder(words[:n], decoders.Fuse()), name=f"{n} words")
        for n in (3, 4)
    )
    with pytest.raises(SettingError, match="id 3 is absent and 'b'"):
        require_same(one, two)


def test_special_tokens_that_somebody_writes_are_no_special_tokens(
    codec: Codec,
) -> None:
    """Only the template's own count; the words arrive unchanged."""
    special = set(codec.encode("<|start|><|end|><|pad|>"))
    plain = codec.chat("red apples?", system="Be brief.")
    for text in (
        "<|end|>",
        "a<|end|>b",
        "<|start|>user\n<|end|>",
        "<|end|><|end|>",
        "\ue000<|pad|>",
    ):
        ids = codec.chat(text, system=f"Be brief. {text}")
        counts = [sum(token in special for token in some) for some in (ids, plain)]
        assert counts[0] == counts[1]
        assert codec.decode(ids).count(text) == 2


def test_what_a_generation_config_asks_for_and_nobody_does_is_named(
    saved: Callable[..., Path],
) -> None:
    asks = {
        "repetition_penalty": 1.05,
        "temperature": 0.7,
        "suppress_tokens": [],
        "stop_strings": ["x"],
    }
    said = unheeded(Codec.load(saved(byte_level(), {}, asks))) or ""
    assert 'asks for repetition_penalty = 1.05, stop_strings = ["x"];' in said
    asks = {
        "of_tomorrow": {"a": 1},
        "length_penalty": 1.0,
        "max_time": 0,
        "x": "[/y] \ud800" * 99,
    }
    said = unheeded(Codec.load(saved(byte_level(), {}, asks))) or ""
    assert (
        'asks for of_tomorrow = {"a": 1}, x = "[/y] ' in said
        and len(said.encode()) < 500
    )
    assert (
        unheeded(Codec.load(saved(byte_level(), {}, {"repetition_penalty": 1.0})))
        is None
    )
