"""The tiny tokenizer: one token per word and digit, the blank line one token, any text
comes back.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lr.tiny.grammar import Style, render
from lr.tiny.language import Split, problem
from lr.tiny.stories import story
from lr.tiny.vocabulary import build_tokenizer

TOKENIZER = build_tokenizer()


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


def test_any_text_comes_back_after_loading(reloaded: PreTrainedTokenizerFast) -> None:
    for text in (
        "Then Ann has 12.\n\n",
        " ünï → 日本\n\n\n\t 12 \\boxed{3}",
        "a\r\nb  c",
    ):
        ids = reloaded.encode(text, add_special_tokens=False)
        assert ids == TOKENIZER.encode(text, add_special_tokens=False)
        assert reloaded.decode(ids) == text


def test_one_token_per_word_digit_and_blank_line() -> None:
    pieces = TOKENIZER.tokenize(
        "Then Ann owns 12 + 5 = 17 coins.\n\nSo the answer is \\boxed{17}."
    )
    assert pieces == (
        "Then ĠAnn Ġowns Ġ1 2 Ġ+ Ġ5 Ġ= Ġ1 7 Ġcoins . ĊĊ "
        "So Ġthe Ġanswer Ġis Ġ\\boxed{ 1 7 } .".split()
    )


def test_nothing_of_the_language_falls_apart_into_bytes() -> None:
    rng = random.Random(0)
    for i in range(170):
        what = problem(Split.TEST, i) if i < 150 else story(Split.TEST, i)
        texts = [
            what.question,
            *(render(step, style, rng) for step in what.steps for style in Style),
        ]
        for text in texts:
            words = (
                text.replace(".", " .")
                .replace(",", " ,")
                .replace(":", " :")
                .replace("?", " ?")
            )
            words = words.replace("{", "{ ").replace("}", " }")
            expected = sum(len(word) if word.isdigit() else 1 for word in words.split())
            assert len(TOKENIZER.encode(text, add_special_tokens=False)) == expected, (
                text
            )


def test_chat(reloaded: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
    ]
    text = reloaded.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow "
        "many?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert reloaded.eos_token == "<|im_end|>" and reloaded.pad_token == "<|endoftext|>"
    ids = reloaded.encode(text, add_special_tokens=False)
    assert (
        ids[0] == reloaded.convert_tokens_to_ids("<|im_start|>")
        and ids.count(reloaded.eos_token_id) == 2
    )
