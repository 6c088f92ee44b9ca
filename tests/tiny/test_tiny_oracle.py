"""Grammar and oracle are inverse to each other, in both styles; the oracle tells the
smallest changes of meaning apart.
"""

import random
import re

import pytest
from tiny_training.wording import Style, render, slots

from lr.tiny.grammar import PIECES, glue
from lr.tiny.language import ITEMS, NAMES, Split, problem
from lr.tiny.oracle import differing, parse, same_meaning
from lr.tiny.stories import story


@pytest.fixture(scope="module")
def meanings():
    """Every step of many problems."""
    short = [step for i in range(700) for step in problem(Split.TEST, i).steps]
    return short + [step for i in range(60) for step in story(Split.TEST, i).steps]


@pytest.mark.parametrize("style", list(Style))
def test_the_oracle_reads_what_the_grammar_writes(meanings, style):
    rng = random.Random(0)
    assert len(meanings) > 7000
    for meaning in meanings:
        text = render(meaning, style, rng)
        assert parse(text) == meaning, text


def test_every_alternative_can_be_read(meanings):
    """Not sampled: every template with every alternative of every place, the others at
    their first."""
    examples = {(m.kind, m.operation): m for m in meanings}
    assert examples.keys() == PIECES.keys()
    for key, templates in PIECES.items():
        values = slots(examples[key])
        for template in templates:
            first = [alternatives[0] for alternatives in template]
            for index, alternatives in enumerate(template):
                for word in alternatives:
                    words = [*first[:index], word, *first[index + 1 :]]
                    text = glue(values.get(word, word) for word in words)
                    assert parse(text) == examples[key], text


def test_minimal_changes_are_told_apart(meanings):
    """One number, one person, one item changed wherever it stands: never the same
    meaning, and never an error."""
    rng = random.Random(2)
    words = re.compile(r"\d+|" + "|".join(rf"\b{w}\b" for w in (*NAMES, *ITEMS)))
    for meaning in (*meanings[:1000], *meanings[-500:]):
        text = render(meaning, rng.choice(list(Style)), rng)
        match = rng.choice(list(words.finditer(text)))
        word = match.group()
        if word.isdigit():
            changed = str(int(word) + rng.choice((-1, 1, 10)))
        else:
            names = NAMES if word in NAMES else ITEMS
            changed = rng.choice([name for name in names if name != word])
        edited = text[: match.start()] + changed + text[match.end() :]
        assert not same_meaning(text, edited), edited


def test_other_words_mean_the_same_and_other_operations_do_not():
    text = "Then Eva has 5 more than Ann, so we get 12 + 5 = 17 apples."
    fewer = "Then Eva has 5 fewer than Ann, so we get 12 - 5 = 7 apples."
    assert same_meaning(
        text,
        "I read that Eva holds 5 more than Ann: you find 12 plus 5 makes 17 apples now.",
    )
    assert not same_meaning(text, fewer)
    assert "operation" in differing(text, fewer) and not differing(text, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Eva has 17.",
        "Then Eva has 5 more than Ann, so we get 12 + 6 = 18 apples.",  # says 5, adds 6
        "Then Eva has 5 more than Ann, so we get 12 - 5 = 7 apples.",  # subtracts
        "Then Eva has 5 more  than Ann, so we get 12 + 5 = 17 apples.",  # two spaces
        "Then Eva has 5 more than Zoe, so we get 12 + 5 = 17 apples.",  # unknown
        "So the answer is \\boxed{17.",
    ],
)
def test_what_is_not_in_the_language_equals_nothing(text):
    assert parse(text) is None
    assert not same_meaning(text, text)
