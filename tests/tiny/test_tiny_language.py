"""The problems of the tiny language, short and long: deterministic, solvable, bounded,
and held-out ones are never trained on.
"""

import random

import pytest
from tiny_training.vocabulary import build_tokenizer
from tiny_training.wording import Style, render

from lr.tiny.language import (
    HIGHEST,
    LOWEST,
    NOTES,
    Split,
    StepKind,
    calculate,
    problem,
    split_of,
)
from lr.tiny.stories import DATASETS, EXAMPLES, LAST, story, unreadable

each_data_set = pytest.mark.parametrize("draw", DATASETS.values(), ids=DATASETS)


@pytest.fixture(scope="module")
def stories():
    return [story(Split.TEST, i) for i in range(120)]


@each_data_set
def test_a_problem_is_a_function_of_split_index_and_seed(draw):
    assert draw(Split.TEST, 7, 3) == draw(Split.TEST, 7, 3)
    questions = {draw(Split.TEST, i, seed).question for i in (7, 8) for seed in (3, 4)}
    assert len(questions) == 4


def test_a_problem_is_the_same_for_ever():
    """What the models were trained on does not change with a library."""
    task = problem(Split.TEST, 7)
    assert task.question == (
        "At first Leo has 47 shells. Then Eva gets 2 times as many shells as Leo. "
        "Then Ben gets 29 fewer shells than Eva. How many shells does Ben have?"
    )
    assert task.answer == 65


@each_data_set
def test_the_splits_are_disjoint_and_every_question_is_known(draw):
    questions = {
        split: {draw(split, i, 0).question for i in range(200)} for split in Split
    }
    assert not questions[Split.TRAIN] & questions[Split.TEST]
    for split in Split:
        assert len(questions[split]) > 190
        assert all(
            split_of(text) is split and not unreadable(text)
            for text in questions[split]
        )


def test_a_question_of_another_kind_is_told_apart():
    for text, reason in {
        "How many coins?": "begins with",
        "Ann has 7 coins. Ben has 3 more. How many has Ben?": "begins with",
        "At first Ann has 7 coins. How many has Ann": "begins with",
        "At first Ann has 7 elephants. How many has Ann?": "no 'elephants'",
        "At first Ann has 700 coins. How many has Ann?": "no '700'",
    }.items():
        assert reason in unreadable(text).split(".")[0]
    assert not any(map(unreadable, EXAMPLES)), "what it names as examples it can read"


def test_every_short_solution_is_right_and_within_bounds():
    for i in range(500):
        task = problem(Split.TRAIN, i)
        goal, first, *operations, answer = task.steps
        owned = {first.entity: first.result}
        for step in operations:
            values = [owned[person] for person in step.references]
            assert list(step.operands[: len(values)]) == values
            assert step.references[-1] == list(owned)[-1], "of the latest person"
            assert step.result == calculate(step.operation, step.operands)
            owned[step.entity] = step.result
        assert len(owned) == 1 + len(operations) <= 7
        assert all(value and LOWEST <= value <= HIGHEST for value in owned.values())
        assert answer.result == task.answer and LOWEST <= task.answer <= HIGHEST
        parts = sorted(owned[person] for person in goal.references)
        assert parts in ([task.answer], sorted(answer.operands))


def test_a_story_has_forty_to_eighty_steps(stories):
    steps = [len(task.steps) for task in stories]
    assert min(steps) >= 40 and max(steps) <= 80
    tokenizer, rng = build_tokenizer(), random.Random(0)
    for task in stories[:20]:
        texts = [render(step, Style.TARGET, rng) + "\n\n" for step in task.steps]
        assert 700 <= len(tokenizer.encode("".join(texts))) <= 1600


def test_every_step_of_a_story_follows_from_the_question(stories):
    """The question is played by rules written anew, and gives the numbers of the
    solution."""
    for task in stories:
        results = played(task.question)
        assert results == [s.result for s in task.steps if s.kind is StepKind.OPERATION]
        assert task.answer == results[-1]
        assert all(LOWEST <= result <= HIGHEST for result in results)


def played(question):
    """What the jar has after every turn."""
    start, rules, *special, _ = question.split(". ")
    jar = int(start.split()[3])
    moves = rules.removesuffix(", and so on in turn").split(", then ")
    exceptions = {text.split()[1][0]: text.partition(": ")[2] for text in special}
    last = max(exceptions)
    assert sum(text.startswith(f"Turn {last}{LAST}: ") for text in special) == 1
    results = []
    number = 0
    for letter in NOTES[: NOTES.index(last) + 1]:
        move = exceptions.get(letter, moves[number % len(moves)])
        number += letter not in exceptions
        amount = [int(word) for word in move.split() if word.isdigit()]
        if amount:
            jar += amount[0] if " puts " in move else -amount[0]
        else:
            jar = jar * 2 if "doubles" in move else jar // 2
        results.append(jar)
    return results
