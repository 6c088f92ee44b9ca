"""The long problems of the tiny language: long enough, right in every step, readable,
and held-out ones are never trained on.
"""

from __future__ import annotations

import random

import pytest

from lr.tiny.grammar import Style, render
from lr.tiny.language import HIGHEST, LOWEST, NOTES, Meaning, Problem, Split, StepKind
from lr.tiny.languages import QUANTITIES
from lr.tiny.oracle import parse
from lr.tiny.stories import LAST, QUESTION, story
from lr.tiny.vocabulary import build_tokenizer


@pytest.fixture(scope="module")
def stories() -> list[Problem[Meaning]]:
    return [story(Split.TEST, i) for i in range(120)]


def test_a_story_is_a_function_of_split_index_and_seed() -> None:
    assert story(Split.TEST, 7, seed=3) == story(Split.TEST, 7, seed=3)
    assert (
        len({story(Split.TEST, i, seed).question for i in (7, 8) for seed in (3, 4)})
        == 4
    )


def test_the_splits_are_disjoint_and_every_question_is_of_the_language(
    stories: list[Problem[Meaning]],
) -> None:
    train = {story(Split.TRAIN, i).question for i in range(100)}
    assert len(train) == 100 and not train & {what.question for what in stories}
    assert all(QUANTITIES.asks(question) for question in train)


def test_a_story_has_forty_to_eighty_steps(stories: list[Problem[Meaning]]) -> None:
    steps = [len(what.steps) for what in stories]
    assert min(steps) >= 40 and max(steps) <= 80
    tokenizer, rng = build_tokenizer(), random.Random(0)
    for what in stories[:20]:
        texts = [render(step, Style.TARGET, rng) + "\n\n" for step in what.steps]
        assert 700 <= len(tokenizer.encode("".join(texts))) <= 1600


def test_every_step_follows_from_the_question(stories: list[Problem[Meaning]]) -> None:
    """The question is played by rules written anew, and gives the numbers of the
    solution."""
    for what in stories:
        results = played(what.question)
        told = [step.result for step in what.steps if step.kind is StepKind.OPERATION]
        assert told == results
        assert what.answer == results[-1]
        assert all(LOWEST <= result <= HIGHEST for result in results)


def played(question: str) -> list[int]:
    """What the jar has after every turn."""
    start, rules, *special, asked = question.split(". ")
    assert asked.startswith("How many") and rules.endswith(", and so on in turn")
    jar = int(start.split()[3])
    moves = rules.removesuffix(", and so on in turn").split(", then ")
    own = {text.split()[1][0]: text.partition(": ")[2] for text in special}
    last = max(own)
    assert [text.startswith(f"Turn {last}{LAST}: ") for text in special].count(
        True
    ) == 1
    results: list[int] = []
    number = 0
    for letter in NOTES[: NOTES.index(last) + 1]:
        move = own.get(letter, moves[number % len(moves)])
        number += letter not in own
        amount = [int(word) for word in move.split() if word.isdigit()]
        if amount:
            jar += amount[0] if " puts " in move else -amount[0]
        else:
            jar = jar * 2 if "doubles" in move else jar // 2
        results.append(jar)
    return results


def test_both_styles_can_be_read(stories: list[Problem[Meaning]]) -> None:
    rng = random.Random(1)
    for what in stories[:40]:
        for step in what.steps:
            for style in Style:
                assert parse(render(step, style, rng)) == step


def test_a_question_is_known_by_its_form() -> None:
    """Also one that is shorter than any the models have learnt."""
    assert all(
        QUESTION.fullmatch(story(split, i).question)
        for split in Split
        for i in range(50)
    )
    short = (
        "The jar has 36 shells. Finn puts 7 shells in, then Nora takes 12 shells out, and so on in "
        "turn. Turn E, the last: Nora doubles the shells. How many shells are in the jar in the "
        "end?"
    )
    assert not QUESTION.fullmatch(short)
