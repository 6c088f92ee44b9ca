"""Reading the answer out of a text."""

import pytest

from lr.result import boxed, reply

TABLE = [
    (r"so \boxed{42}.", "42"),
    (r"\boxed{1} no, \boxed{ 2 }", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{a{b{c}}d}e}", "a{b{c}}d"),
    (r"\boxed{7} and then \boxed{8", "7"),
    (r"\boxed{}", ""),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{a\}b}", r"a\}b"),
    (r"\boxed 42", None),
    ("42", None),
    ("", None),
    (r"\boxed{", None),
    (r"\boxed{\boxed{3}}", "3"),
]


@pytest.mark.parametrize(("text", "expected"), TABLE)
def test_the_last_whole_box_counts(text: str, expected: str | None) -> None:
    assert boxed(text) == expected


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
