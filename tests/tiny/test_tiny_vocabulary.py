"""The tiny tokenizer: one token per word and digit, the blank line one token, any text
comes back.
"""

import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training.vocabulary import build_tokenizer
from tiny_training.wording import Style, render

from lr.tiny.language import Split, problem
from lr.tiny.stories import story

TOKENIZER = build_tokenizer()


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(ids_of(text)) == text


def test_nothing_of_the_language_falls_apart_into_bytes():
    rng = random.Random(0)
    problems = [problem(Split.TEST, i) for i in range(150)]
    problems += [story(Split.TEST, i) for i in range(20)]
    for task in problems:
        steps = [render(step, style, rng) for step in task.steps for style in Style]
        for text in (task.question, *steps):
            pieces = re.findall(r"\\boxed\{|[A-Za-z]+|\d|[^\sA-Za-z\d]", text)
            assert len(ids_of(text)) == len(pieces), text
