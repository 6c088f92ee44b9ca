"""The tiny reasoning language: its meanings, and its short problems.

`stories.py` draws the long problems, `grammar.py` words a meaning, `oracle.py` reads it
back.

A short problem states a start quantity and one to six operations, each of which gives a
quantity to a new person, and asks for a value, a total or a difference. Its solution is
a list of `Meaning`: the goal, the given, one per operation, the answer. Every problem
is a pure function of (split, index, seed). A hash of the question decides whether it is
for training or for test, so the splits are disjoint for all seeds. All quantities lie
in 2..99.

Standard library only. Read next: `grammar.py`."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

NAMES = tuple(
    "Ann Ben Cleo Dan Eva Finn Gus Hana Ivan Jo Kim Leo Mia Nora Omar Pia".split()
)
ITEMS = tuple(
    "apples pears coins marbles stickers cards shells buttons pencils stamps".split()
)
LOWEST = 2
HIGHEST = 99
NOTES = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
MAX_OPERATIONS = 6
TEST_SHARE = 16  # one question in sixteen belongs to the test split


class StepKind(Enum):
    """The purpose of a step in a solution."""

    GOAL = "goal"
    GIVEN = "given"
    NOTE = "note"
    OPERATION = "operation"
    ANSWER = "answer"


class Split(Enum):
    """The problems for training, and those held out for test."""

    TRAIN = "train"
    TEST = "test"


class Meaning(NamedTuple):
    """What a step says, independent of its wording.

    Two steps mean the same iff both can be read and their meanings are equal.

    `operation`: for an operation add, subtract, times, half, sum; for goal and answer
    value, total, difference; for the given "". In a long problem it is "jar" for goal,
    given and answer; for a turn put, take, doubles, halves ("then put", "then take" in
    the next person's regular turn); for its effect on the jar plus, minus, doubled,
    halved. `entity`: the person who owns or does something, or "". `references`: the
    people the quantity is derived from, in order; in a turn, the person before.
    `operands` and `result`: the numbers as written, right or wrong (none in a goal).
    `item`: what is counted ("" in a short answer). `note`: the letter of the turn,
    followed by ", the last" in the last turn."""

    kind: StepKind
    operation: str
    entity: str = ""
    references: tuple[str, ...] = ()
    operands: tuple[int, ...] = ()
    result: int | None = None
    item: str = ""
    note: str = ""


@dataclass(frozen=True)
class Problem:
    """A question, the meanings of its solution's steps, and the content of the answer's
    box."""

    question: str
    steps: tuple[Meaning, ...]
    answer: int


def split_of(question: str) -> Split:
    """The split of a question. Its text alone decides, so no question is in both
    splits."""
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    return Split.TEST if digest[0] % TEST_SHARE == 0 else Split.TRAIN


def first_in(split: Split, draw: Callable[[], Problem | None]) -> Problem:
    """Call `draw` until it returns a problem of this split."""
    while True:
        candidate = draw()
        if candidate is not None and split_of(candidate.question) is split:
            return candidate


def problem(split: Split, index: int, seed: int = 0) -> Problem:
    """Short problem number `index` of a split. Deterministic."""
    rng = random.Random(f"problem/{split.value}/{seed}/{index}/0.0")
    return first_in(split, lambda: _draw(rng))


def _draw(rng: random.Random) -> Problem | None:
    """Draw a problem, or None if the answer to its question is out of bounds."""
    names = list(NAMES)
    item = ITEMS[rng.randrange(len(ITEMS))]
    rng.shuffle(names)
    people = [(names[0], rng.randrange(3, 51))]
    operations = []
    for _ in range(rng.randrange(1, MAX_OPERATIONS + 1)):
        rng.random()  # unused; keeps the problems equal to those of earlier versions
        step = random_operation(rng, names[len(people)], people[-1], people, item)
        operations.append(step)
        assert step.result is not None
        people.append((step.entity, step.result))
    goal_and_answer = query(rng, people[-2:], item)
    if goal_and_answer is None:
        return None
    goal, answer = goal_and_answer
    start = Meaning(
        StepKind.GIVEN, "", entity=people[0][0], result=people[0][1], item=item
    )
    assert answer.result is not None
    return Problem(
        _question(start, operations, goal),
        (goal, start, *operations, answer),
        answer.result,
    )


def random_operation(
    rng: random.Random,
    person: str,
    latest: tuple[str, int],
    people: list[tuple[str, int]],
    item: str,
) -> Meaning:
    """Draw an operation on the quantity of `latest` whose result is within bounds."""
    name, value = latest
    while True:
        operation = ("add", "subtract", "times", "half", "sum")[rng.randrange(5)]
        references: tuple[str, ...] = (name,)
        operands = (value, rng.randrange(2, 41))
        if operation == "times":
            operands = (value, rng.randrange(2, 5))
        elif operation == "half":
            operands = (value, 2)
        elif operation == "sum":
            others = [person for person in people if person[0] != name]
            if not others:
                continue
            references = (others[-1][0], name)
            operands = (others[-1][1], value)
        if operation == "half" and value % 2:
            continue
        result = calculate(operation, operands)
        if LOWEST <= result <= HIGHEST:
            return Meaning(
                StepKind.OPERATION,
                operation,
                person,
                references,
                operands,
                result,
                item,
            )


def calculate(operation: str, operands: tuple[int, ...]) -> int:
    """The true result of an operation (half needs an even number, difference the larger
    first)."""
    a, b = operands
    if operation in ("add", "sum", "total", "plus"):
        return a + b
    if operation in ("subtract", "difference", "minus"):
        return a - b
    return a * b if operation in ("times", "doubled") else a // b


def query(
    rng: random.Random, people: list[tuple[str, int]], item: str
) -> tuple[Meaning, Meaning] | None:
    """Draw goal and answer about two people: the value of the second, their total or
    difference.

    None if the answer is out of bounds."""
    (first, a), (second, b) = people
    operation = ("value", "total", "difference")[rng.randrange(3)]
    if operation == "value":
        answer = Meaning(StepKind.ANSWER, operation, result=b)
        return Meaning(
            StepKind.GOAL, operation, references=(second,), item=item
        ), answer
    operands = (max(a, b), min(a, b)) if operation == "difference" else (a, b)
    result = calculate(operation, operands)
    if not LOWEST <= result <= HIGHEST:
        return None
    goal = Meaning(StepKind.GOAL, operation, references=(first, second), item=item)
    return goal, Meaning(StepKind.ANSWER, operation, operands=operands, result=result)


AMOUNTS = {
    "add": "{n} more {item} than {A}",
    "subtract": "{n} fewer {item} than {A}",
    "times": "{n} times as many {item} as {A}",
    "half": "half as many {item} as {A}",
    "sum": "as many {item} as {A} and {B} together",
}
QUESTIONS = {
    "value": "How many {item} does {A} have",
    "total": "How many {item} do {A} and {B} have together",
    "difference": "By how many {item} do {A} and {B} differ",
}


def _question(start: Meaning, operations: list[Meaning], goal: Meaning) -> str:
    """The question in plain words: one sentence per fact, then the query."""

    def say(wording: dict[str, str], step: Meaning) -> str:
        amount = step.operands[-1] if step.operands else 0
        people = (*step.references, "")
        places = {"n": amount, "item": step.item, "A": people[0], "B": people[1]}
        return wording[step.operation].format(**places)

    sentences = [f"At first {start.entity} has {start.result} {start.item}."]
    sentences += [
        f"Then {step.entity} gets {say(AMOUNTS, step)}." for step in operations
    ]
    return f"{' '.join(sentences)} {say(QUESTIONS, goal)}?"
