"""The problems of the tiny language: deterministic, solvable, bounded, and held-out
ones are never trained on.
"""

from __future__ import annotations

import pytest

from lr.tiny.language import (
    HIGHEST,
    LOWEST,
    Split,
    StepKind,
    calculate,
    problem,
    split_of,
)


def test_a_problem_is_a_function_of_split_index_and_seed() -> None:
    assert problem(Split.TEST, 7, seed=3) == problem(Split.TEST, 7, seed=3)
    assert problem(Split.TEST, 7, seed=3) != problem(Split.TEST, 8, seed=3)
    assert problem(Split.TEST, 7, seed=3) != problem(Split.TEST, 7, seed=4)


def test_a_problem_stays_what_it_was() -> None:
    """Published numbers name problems by index; they must not change with a library or
    a refactoring.
    """
    what = problem(Split.TEST, 7)
    assert what.question == (
        "At first Leo has 47 shells. Then Eva gets 2 times as many shells as Leo. "
        "Then Ben gets 29 fewer shells than Eva. How many shells does Ben have?"
    )
    assert what.answer == 65


def test_the_splits_are_disjoint() -> None:
    train = {
        problem(Split.TRAIN, i, seed).question for i in range(400) for seed in (0, 1)
    }
    test = {
        problem(Split.TEST, i, seed).question for i in range(400) for seed in (0, 1)
    }
    assert len(train) > 780 and len(test) > 780
    assert not train & test
    assert {split_of(question) for question in train} == {Split.TRAIN}
    assert {split_of(question) for question in test} == {Split.TEST}


def test_every_solution_is_right_and_within_bounds() -> None:
    for i in range(500):
        what = problem(Split.TRAIN, i)
        goal, given, *operations, answer = what.steps
        assert (goal.kind, given.kind, answer.kind) == (
            StepKind.GOAL,
            StepKind.GIVEN,
            StepKind.ANSWER,
        )
        owned = {given.entity: given.result}
        assert 1 <= len(operations) <= 6
        for step in operations:
            assert step.kind is StepKind.OPERATION and step.entity not in owned
            known = [owned[person] for person in step.references]
            assert list(step.operands[: len(known)]) == known
            assert step.references[-1] == list(owned)[-1], (
                "each step uses the latest person"
            )
            assert step.result == calculate(step.operation, step.operands)
            owned[step.entity] = step.result
        assert all(
            value is not None and LOWEST <= value <= HIGHEST for value in owned.values()
        )
        assert answer.result == what.answer and LOWEST <= what.answer <= HIGHEST
        asked = [owned[person] for person in goal.references]
        assert sorted(answer.operands) == (sorted(asked) if len(asked) > 1 else [])
        if len(asked) == 1:
            assert asked == [what.answer]


@pytest.mark.parametrize(
    ("operation", "operands", "result"),
    [("half", (8, 2), 4), ("difference", (9, 4), 5)],
)
def test_calculate(operation: str, operands: tuple[int, int], result: int) -> None:
    assert calculate(operation, operands) == result
