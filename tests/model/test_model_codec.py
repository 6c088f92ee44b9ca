"""The tokenizer wrapper: bytes of tokens, ends, prompts that no message can forge, and
whether two tokenizers agree."""

import unicodedata
from functools import cache
from types import SimpleNamespace

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
from lr.model.codec import Codec, require_same, unsupported
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
FAMILIES = {
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


def byte_level(family="Qwen3", *, more=(), size=320, chat_template=None, **flags):
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
    for text in (*special, *added, *more):
        usual = {"special": text in special, "normalized": False}
        tokenizer.add_tokens([AddedToken(text, **usual | flags)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=special[0], bos_token=special[1]
    )
    fast.chat_template = template if chat_template is None else chat_template
    return fast


@cache
def toy(family="Qwen3", **flags):
    return Codec(byte_level(family, **flags), name="toy")


# Bytes


@settings(deadline=None)
@given(st.lists(st.integers(0, 290), max_size=30))
def test_decoding_any_ids_is_what_transformers_decodes(tokens):
    """One U+FFFD stands in the place of each piece that is no UTF-8."""
    theirs = toy().tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
    assert toy().decode(tokens) == theirs


@settings(deadline=None)
@given(st.text())
def test_bytes_of_tokens_are_the_bytes_of_the_text(text):
    """Also where characters are torn over several tokens. Qwen normalises to NFC before
    it encodes, so that is what comes back.
    """
    codec = toy()
    tokens = codec.encode(text)
    expected = unicodedata.normalize("NFC", text)
    assert b"".join(map(codec.token_bytes, tokens)) == expected.encode()
    assert codec.decode(tokens) == expected


@pytest.mark.parametrize("mark", ["</think>", "[/THINK]", "◁/think▷"])
def test_a_thought_ends_visibly_at_a_mark_flagged_special(mark):
    """Else the thought's own box would be graded."""
    tokenizer = byte_level("Qwen3")
    tokenizer.add_special_tokens({"additional_special_tokens": [mark]})
    codec = Codec(tokenizer, name="toy")
    tokens = codec.encode(f"\\boxed{{5}}{mark}The result equals 7.<|im_end|>")
    assert reply(codec.decode(tokens)) == "The result equals 7."
    assert codec.decode([*codec.eos_ids]) == ""


def test_only_byte_level_tokenizers_are_read():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    with pytest.raises(CheckpointError, match="byte-level"):
        Codec(fast, name="toy").token_bytes(0)
    with pytest.raises(SettingError, match="vocabulary"):
        toy().token_bytes(10_000)


# Loading and prompts


def saved(folder, tokenizer, config="{}", generation="{}"):
    """A folder with a tokenizer, config.json and generation_config.json."""
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(config)
    (folder / "generation_config.json").write_text(generation)
    return folder


def test_a_folder_says_what_ends_the_text_and_how_to_sample(tmp_path):
    """The ends are a number or a list, in any of three places; what is not supported is
    named."""
    tokenizer = byte_level()
    end = tokenizer.eos_token_id
    generation = (
        f'{{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": true, '
        f'"eos_token_id": [7, {end}], "of_tomorrow": ["x"], '
        f'"length_penalty": 1.0, "max_time": 0}}'
    )
    codec = Codec.load(saved(tmp_path, tokenizer, '{"eos_token_id": 5}', generation))
    assert codec.eos_ids == {5, 7, end}
    assert recommended_sampling(codec) == SamplingParams(0.6, top_p=0.95, top_k=20)
    message = unsupported(codec)
    assert "of_tomorrow" in message
    assert "length_penalty" not in message and "max_time" not in message


@pytest.mark.parametrize(
    "config, noun",
    [
        ('{"eos_token_id": null}', "end-of-sequence"),
        ('{"eos_token_id": [1, "2"]}', "end-of-sequence"),
        ('{"eos_token_id": [3, 9999]}', "end-of-sequence"),
        ('{"eos_token_id": 5, "vocab_size": 300}', "vocab_size 300"),
    ],
)
def test_a_tokenizer_that_does_not_fit_its_model_is_refused(tmp_path, config, noun):
    tokenizer = byte_level()
    tokenizer.eos_token = None
    with pytest.raises(CheckpointError, match=noun):
        Codec.load(saved(tmp_path, tokenizer, config))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Codec.load(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_chat_ids_are_those_of_transformers(family):
    codec = toy(family)
    question = "h\u00e9llo\n\nred apples?"
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": question},
    ]
    for thinking in (None, True, False):
        flags = {} if thinking is None else {"enable_thinking": thinking}
        theirs = codec.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, **flags
        )
        assert codec.chat(question, system="Be brief.", **flags) == theirs


MARKS = sorted({*QWEN_MARKS, *R1_ENDS, "<think>", "</think>", "<tool_call>"})
FLAGS = [{}, {"special": True}, {"special": False, "normalized": True}]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=60)
@given(
    parts=st.lists(st.sampled_from([*MARKS, *"a <>|\n", "\ue000", "ok"]), min_size=1)
)
def test_no_message_can_write_the_marks_of_a_template(family, flags, parts):
    """The prompt holds the template's marks and no more, and the words arrive
    unchanged, whatever the tokenizer says about its added tokens."""
    codec = toy(family, **flags)
    text = "".join(parts)

    def marks(ids):
        return [token for token in ids if token in codec.tokenizer.added_tokens_decoder]

    ids = codec.chat(text, system=text)
    assert marks(ids) == marks(codec.chat("2 + 2?", system="Add."))
    assert codec.decode(ids).count(text) >= 2


@pytest.mark.parametrize("text", [7, "\ud800"])
def test_what_is_no_text_is_no_question(text):
    with pytest.raises(SettingError, match="question"):
        toy().chat(text)


@pytest.mark.parametrize("template", ["{{ messages[0].content + 1 }}", "{% if %}", ""])
def test_a_template_that_fails_is_named(template):
    codec = Codec(byte_level(chat_template=template), name="strict")
    with pytest.raises((SettingError, CheckpointError), match="template"):
        codec.chat("hi", system="x")


# Two tokenizers


def test_a_draft_may_lack_added_tokens_and_nothing_else():
    """As Qwen2.5's tokenizer next to Qwen3's."""
    codec = toy()
    larger = Codec(byte_level(more=("<tool>",)), name="larger")
    for target, draft in ((codec, codec), (codec, larger), (larger, codec)):
        require_same(target, draft)
    # another added token at one id, fewer merges, and a hole
    vocabulary = codec.tokenizer.get_vocab().items()
    holed = SimpleNamespace(
        get_vocab=lambda: {text: token for text, token in vocabulary if token},
        added_tokens_decoder=codec.tokenizer.added_tokens_decoder,
    )
    for stranger in (byte_level("Qwen2.5"), byte_level(size=280), holed):
        other = SimpleNamespace(name="other", tokenizer=stranger)
        with pytest.raises(SettingError, match="draft other and target toy"):
            require_same(codec, other)


def test_a_draft_with_the_same_files_shares_the_tokenizer(tmp_path):
    """Which takes seconds to load. One other token makes another tokenizer."""
    target, same, other = (
        saved(tmp_path / name, byte_level(more=more))
        for name, more in (("target", ()), ("same", ()), ("other", ("<tool>",)))
    )
    codec = Codec.load(target)
    assert Codec.load(same, like=codec).tokenizer is codec.tokenizer
    assert Codec.load(other, like=codec).vocab_size == codec.vocab_size + 1


def test_special_tokens_have_no_bytes_and_other_added_ones_have():
    ids = toy().encode("a<think>x</think><|im_end|>")
    pieces = [toy().token_bytes(token) for token in ids]
    assert pieces == [b"a", b"<think>", b"x", b"</think>", b""]
