"""The table of `docs/answers.md`: what a person says about pairs of answers, and what
we say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lr.measure.grading import MathChecker

PAGE = Path(__file__).parents[2] / "docs" / "answers.md"
WORDS = {"equal": True, "different": False}
ROWS = [
    [
        cell.strip().strip("`").replace("(nothing)", "")
        for cell in line.strip("|").split("|")
    ]
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("| ") and line.count("|") in (5, 6) and "`" in line
]


def test_there_are_a_hundred_and_both_words_are_common() -> None:
    agreed = [row[3] for row in ROWS if len(row) == 4]
    assert len(agreed) == 100 and min(map(agreed.count, WORDS)) >= 30
    assert len({tuple(row[1:3]) for row in ROWS}) == len(ROWS)


@pytest.fixture(scope="module")
def checker() -> Iterator[MathChecker]:
    with closing(MathChecker(20)) as made:
        yield made


@pytest.mark.parametrize("kind", sorted({row[0] for row in ROWS}))
def test_we_say_what_the_table_says(checker: MathChecker, kind: str) -> None:
    for _, expected, given, *said in (row for row in ROWS if row[0] == kind):
        assert checker.compare(expected, given)[0] is WORDS[said[-1]], (expected, given)
