"""The long problems of the tiny language: long enough, right in every step, readable, and held-out
ones are never trained on.
"""

from __future__ import annotations

import random
import re

from lr.tiny.grammar import Style, render
from lr.tiny.language import HIGHEST, LOWEST, NOTES, Kind, Split
from lr.tiny.languages import QUANTITIES
from lr.tiny.oracle import parse
from lr.tiny.stories import LAST, story
from lr.tiny.vocabulary import build_tokenizer

STORIES = [story(Split.TEST, i) for i in range(120)]


def test_a_story_is_a_function_of_split_index_and_seed() -> None:
    assert story(Split.TEST, 7, seed=3) == story(Split.TEST, 7, seed=3)
    assert len({story(Split.TEST, i, seed).question for i in (7, 8) for seed in (3, 4)}) == 4


def test_the_splits_are_disjoint_and_every_question_is_of_the_language() -> None:
    train = {story(Split.TRAIN, i).question for i in range(100)}
    assert len(train) == 100 and not train & {what.question for what in STORIES}
    assert all(QUANTITIES.asks(question) for question in train)


def test_a_story_has_forty_to_eighty_steps() -> None:
    steps = [len(what.steps) for what in STORIES]
    assert min(steps) >= 40 and max(steps) <= 80
    tokenizer, rng = build_tokenizer(), random.Random(0)
    for what in STORIES[:20]:
        texts = [render(step, Style.TARGET, rng) + "\n\n" for step in what.steps]
        assert 700 <= len(tokenizer.encode("".join(texts))) <= 1600


def test_every_step_follows_from_the_question() -> None:
    """The question is played by rules written anew, and gives the numbers of the solution."""
    for what in STORIES:
        results = [step.result for step in what.steps if step.kind is Kind.OPERATION]
        assert results == played(what.question)
        assert what.answer == results[-1] == what.steps[-1].result
        assert all(r is None or LOWEST <= r <= HIGHEST for r in results)


def played(question: str) -> list[int | None]:
    """What the jar has after every change; None where a note refers to an earlier one."""
    start, *notes, asked = question.split(". ")
    assert asked.startswith("How many")
    jar = int(start.split()[3])
    results: list[int | None] = []
    moved: dict[str, int] = {}
    for letter, note in zip(NOTES, notes, strict=False):
        name, _, text = note.removeprefix("Note ").partition(": ")
        assert name == (letter + LAST.rstrip(",") if note is notes[-1] else letter)
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        if " in note " in text:
            results.append(None)
            numbers = [moved[text[-1]]]
        elif len(numbers) == 1:
            [moved[letter]] = numbers
        if "doubles" in text or "half" in text:
            jar = jar * 2 if "doubles" in text else jar // 2
            results.append(jar)
        elif len(numbers) == 2:
            results += [jar + numbers[0], jar + numbers[0] - numbers[1]]
            jar += numbers[0] - numbers[1]
        else:
            jar += numbers[0] if "puts" in text else -numbers[0]
            results.append(jar)
    return results


def test_both_styles_can_be_read() -> None:
    rng = random.Random(1)
    for what in STORIES[:40]:
        for step in what.steps:
            for style in Style:
                assert parse(render(step, style, rng)) == step
