"""Reading the answer out of a text, comparing it, and a comparison that never ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from lr.measure.datasets import Item, Task
from lr.measure.grading import (
    Grader,
    MathChecker,
    chosen_letter,
    code_block,
    final_answer,
    plain_number,
)
from lr.result import boxed, reply

EQUAL = [
    ("204", "204.0"),
    ("204", r"\frac{408}{2}"),
    ("204", r"204^\circ"),
    ("204", "204°"),
    ("73", "073"),
    ("18", r"\$18.00"),
    ("1000", "1{,}000"),
    ("1000", "1,000"),
    (r"\frac{1}{2}", "0.5"),
    (r"\frac12", r"\dfrac{1}{2}"),
    ("3.5", r"3\frac{1}{2}"),
    (r"2\sqrt{2}", r"\sqrt{8}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt2}"),
    (r"\{1,2,3\}", r"\{3,2,1\}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{\pi}{2})"),
    (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,2)"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("5", "x=5"),
    ("12", r"12 \text{ apples}"),
    (r"70\,\text{cm}", "70"),
    (r"\text{Evelyn}", "Evelyn"),
    ("2/3", r"\frac{4}{6}"),
    ("11:30", "11:30"),
]
DIFFERENT = [
    ("204", "203"),
    ("1", "-1"),
    ("(1,2)", "(2,1)"),
    ("[0,1]", "[0,1)"),
    (r"\frac{\sqrt{3}}{2}", r"\frac{3}{2}"),
    (r"\pi", "3.14159"),
    (r"\sqrt{2}", "1.414"),
    (r"\text{even}", r"\text{odd}"),
    ("1", r"\frac{1}{0}"),
    ("5", ""),
    ("5", r"}{\frac{"),
]


@pytest.fixture(scope="module")
def checker() -> Iterator[MathChecker]:
    with closing(MathChecker(20)) as made:
        yield made


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(checker: MathChecker, gold: str, answer: str) -> None:
    assert checker.compare(gold, answer)[0]


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(checker: MathChecker, gold: str, answer: str) -> None:
    equal, why = checker.compare(gold, answer)
    assert not equal and why


def test_a_gold_answer_that_cannot_be_read_is_told_apart(checker: MathChecker) -> None:
    assert "gold" in checker.compare("", "5")[1]


def test_a_comparison_that_never_ends_is_killed_and_the_next_one_works() -> None:
    with closing(MathChecker(1.5)) as checker:
        started = time.perf_counter()
        assert checker.compare(r"\frac{1}{2}", "0.5")[0]
        equal, why = checker.compare("9^{9^{9^{9}}}", "1")
        assert not equal and "more than 1.5 s" in why
        assert checker.compare(r"\frac{1}{2}", "0.5")[0]
        assert time.perf_counter() - started < 60


def test_the_thread_that_asked_first_may_end() -> None:
    """An evaluation grades in a thread of its own, and an experiment has one after
    another."""
    with closing(MathChecker(20)) as checker:
        for _ in range(2):
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(
                    checker.compare, r"\frac{1}{2}", r"\frac{2}{4}"
                ).result()[0]


def test_a_worker_that_dies_costs_one_answer(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "print('{\"ready\": true}', flush=True)\ninput()\n", encoding="utf-8"
    )
    with closing(MathChecker(20, worker=script)) as checker:
        for _ in range(2):
            assert not checker.compare("x", "y")[0]


NUMBERS = {
    "073": 73,
    "$1,000.50": 1000.5,
    " 42. ": 42,
    "-3": -3,
    "1{,}000": 1000,
    "1.": 1,
    r"\$18.00": 18,
    "1e5": 100000,
    "2.5E-1": 0.25,
    r"2.5 \times 10^{-1}": 0.25,
    r"3\cdot10^4": 30000,
}
NO_NUMBERS = (
    r"2 \times 10^",
    r"2e5 \times 10^{3}",
    "50%",
    "1,2",
    "1,00,0",
    r"\frac12",
    "",
    "--3",
    "1e9999",
    "²",
    "x",
    "9" * 2000,
)


@pytest.mark.parametrize(
    ("text", "value"), [*NUMBERS.items(), *((text, None) for text in NO_NUMBERS)]
)
def test_plain_numbers(text: str, value: float | None) -> None:
    assert plain_number(text) == value


@pytest.mark.parametrize(
    ("text", "answer", "where"),
    [
        (r"... \boxed{\frac{1}{2}}", r"\frac{1}{2}", "box"),
        (r"<think>\boxed{1}</think>So \boxed{2}.", "2", "box"),
        ("2 + 2 = 4\n#### 4", "4", "mark"),
        ("The answer is 72 clips.", "72", "said"),
        ("**The final answer is** $\\frac{3}{4}$.", r"\frac{3}{4}", "said"),
        ("She sold 48 + 24 = 72", "72", "number"),
        ("It costs $1,250.00 in all", "1,250.00", "number"),
        ("about 1e5 of them", "1e5", "number"),
        ("no idea", None, None),
        ("", None, None),
        (r"\boxed{}", None, None),
    ],
)
def test_final_answers(text: str, answer: str | None, where: str | None) -> None:
    found = final_answer(reply(text))
    assert (found.answer, found.where) == (answer, where) if found else answer is None


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{(C)}}", "C"),
        (r"\boxed{D. red}", "D"),
        ("The answer is (A).", "A"),
        ("so\n\nB", "B"),
        (r"\boxed{4}", None),
        ("B is wrong, C too", None),
        (r"\boxed{BC}", None),
    ],
)
def test_letters(text: str, letter: str | None) -> None:
    found = chosen_letter(text)
    assert (found.answer if found else None) == letter


def test_code_blocks() -> None:
    found = code_block("Try\n```python\nx = 1\n```\nbetter:\n```\nx = 2\n```\n")
    assert found is not None and found.answer == "x = 2\n"
    found = code_block("```python\nx = 1\n")
    assert found is not None and found.answer == "x = 1\n", "an answer that was cut"
    assert code_block("I do not know.") is None
    assert code_block("def f():\n    pass") is not None


def test_grades() -> None:
    with Grader() as grader:
        choice = Item(0, "?", Task.CHOICE, "B", ("x", "y"))
        assert grader.grade(choice, r"\boxed{B}").right is True
        assert grader.grade(choice, r"\boxed{A}").right is False
        assert grader.grade(Item(0, "?", Task.FREE), "anything").right is None
        lost = grader.grade(Item(0, "?", Task.MATH, "4"), "hm")
        assert (lost.right, lost.answer) == (False, None) and "no answer" in lost.why


BOXES = [
    (r"so \boxed{42}.", "42"),
    (r"\boxed{1} no, \boxed{ 2 }", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{a{b{c}}d}e}", "a{b{c}}d"),
    (r"\boxed{7} and then \boxed{8", "7"),
    (r"\boxed{5} as asked, in \boxed{}", "5"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{a\}b}", r"a\}b"),
    (r"$\boxed 42$.", "42"),
    (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
    (r"the \boxed command", None),
    (r"\\boxed{840}.", "840"),
    (r"\boxed{a\\}", "a\\\\"),
    ("42", None),
    ("", None),
    (r"\boxed{", None),
    (r"\boxed{\boxed{3}}", "3"),
]


@pytest.mark.parametrize(("text", "expected"), BOXES)
def test_the_last_whole_box_counts(text: str, expected: str | None) -> None:
    assert boxed(text) == expected


@pytest.mark.parametrize("text", [r"\boxed{", r"\boxed 2 ", "{", r"\boxed"])
def test_a_model_that_repeats_itself_costs_no_time(text: str) -> None:
    started = time.perf_counter()
    boxed(text * 100_000)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\\boxed{1}</think>\\boxed{2}", "\\boxed{2}"),
        ("no thought", "no thought"),
        ("a</think>b</think>c", "c"),
        ("<think>cut off", "<think>cut off"),
    ],
)
def test_the_thought_is_left_aside(text: str, expected: str) -> None:
    assert reply(text) == expected
