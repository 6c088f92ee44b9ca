"""The long problems of the tiny language: long enough, right in every step, readable, and held-out
ones are never trained on.
"""

from __future__ import annotations

import random
import re

from lr.tiny.grammar import Style, render
from lr.tiny.language import HIGHEST, LOWEST, NOTES, Kind, Meaning, Problem, Split
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
        assert 600 <= len(tokenizer.encode("".join(texts))) <= 1600


def test_every_step_follows_from_the_question() -> None:
    """The question is played by rules written anew, and gives the numbers of the solution."""
    for what in STORIES:
        assert solved(what) == what.answer
        results = [step.result for step in what.steps if step.kind is Kind.OPERATION]
        assert all(r is None or LOWEST <= r <= HIGHEST for r in results)


def solved(what: Problem[Meaning]) -> int:
    """The answer, from the question alone; the solution's steps are compared on the way."""
    start, *said = what.question.split(". ")
    has = {one.split()[0]: int(one.split()[2]) for one in re.split(", | and ", start)}
    moved: dict[str, int] = {}
    told = [step for step in what.steps if step.kind is Kind.OPERATION]
    expected: list[tuple[str, int | None]] = []
    *notes, asked = said
    assert [note[5] for note in notes] == list(NOTES[: len(notes)])
    for note in notes:
        name, _, text = note.removeprefix("Note ").partition(": ")
        assert (LAST.rstrip(",") in name) == (note is notes[-1])
        who, *rest = text.split()
        if "count" in rest:
            expected.append(("", has[who] + has[rest[1]]))
            continue
        if rest[:2] == ["now", "has"]:
            has[who] = has[who] * 2 if rest[2] == "twice" else has[who] // 2
        else:
            far = rest[-1] if "note" in rest else ""
            amount = moved[far] if far else int(rest[1])
            if far:
                expected.append(("", None))
            else:
                moved[name[0]] = amount
            has[who] += amount if rest[0] == "finds" else -amount
            if rest[0] == "gives":
                expected.append((who, has[who]))
                who = rest[-1]
                has[who] += amount
        expected.append((who, has[who]))
    assert [(step.entity, step.result) for step in told] == expected
    people = [name for name in has if name in asked.split()]
    if len(people) == 1:
        return has[people[0]]
    a, b = (has[name] for name in people)
    return a + b if "together" in asked else abs(a - b)


def test_both_styles_can_be_read() -> None:
    rng = random.Random(1)
    for what in STORIES[:40]:
        for step in what.steps:
            for style in Style:
                assert parse(render(step, style, rng)) == step
