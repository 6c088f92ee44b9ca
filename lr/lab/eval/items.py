"""What is asked and how it will be graded: one `Item` per problem of a data set, whatever layout it
came in.

Plain data; `layouts.py` makes it from the fields of a JSONL line, `datasets.py` from files, names
and generators, `prompts.py` turns it into the text that a model is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum


class Task(Enum):
    """How the answer to a problem is graded."""

    MATH = "math"
    """The value in the box, or the final answer, is equal to the gold answer as mathematics."""
    CHOICE = "choice"
    """The letter in the box is the gold letter."""
    WORD = "word"
    """The words in the box are the gold ones; upper and lower case are one."""
    CODE = "code"
    """The program passes its tests."""
    FREE = "free"
    """Not graded: there is no gold answer."""


@dataclass(frozen=True)
class CodeTests:
    """How a program is tested. Either `check`, Python source that is appended to the program and
    raises if it is wrong, or `cases`, pairs of standard input and expected standard output of whole
    programs."""

    check: str | None = None
    cases: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Item:
    """One problem. `number` is its place in the data set, counted from 0; `name` its own id there,
    where it has one.

    `gold` is None for tasks without a gold answer. `choices` are the options of a multiple choice
    in the order they are shown in, the first is A. `starter` is code that the program begins with.
    """

    number: int
    question: str
    task: Task
    gold: str | None = None
    choices: tuple[str, ...] = ()
    tests: CodeTests | None = None
    starter: str = ""
    name: str = ""


def fingerprint(items: Sequence[Item]) -> str:
    """Sixteen hexadecimal digits that belong to exactly these problems: runs over equal problems
    can be compared.
    """
    content = json.dumps(
        [asdict(item) | {"task": item.task.value} for item in items], sort_keys=True
    )
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
