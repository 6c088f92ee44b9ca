"""Every layout that people have is read; others are refused with the fields that were
found."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path

import pytest

from lr.errors import SettingError
from lr.measure.datasets import Task, ask, fingerprint, load_items, read_item
from lr.tiny.language import Split, problem

HALF, POINT = "\\frac{1}{2}", "\\left( 3, \\frac{\\pi}{2} \\right)"
MATHS = [
    ({"id": 60, "problem": "How many?", "answer": 204}, "204"),
    ({"question": "How many?", "answer": "073"}, "073"),
    ({"ID": "2024-I-1", "Problem": "How many?", "Solution": "long", "Answer": 7}, "7"),
    ({"question": "Eggs?", "answer": "9 * 2 = <<9*2=18>>18\n#### 18"}, "18"),
    ({"problem": "x?", "solution": f"so $x = \\boxed{{{HALF}}}$", "level": "Level 3"}, HALF),
    ({"problem": "x?", "solution": "...", "answer": POINT}, POINT),
]  # fmt: skip


@pytest.mark.parametrize(("line", "gold"), MATHS)
def test_mathematics(line: dict, gold: str) -> None:
    item = read_item(line, 3)
    assert (item.task, item.gold, item.number) == (Task.MATH, gold, 3)
    assert item.question in ask(item) and "\\boxed{}" in ask(item)
    assert ask(item, bare=True) == item.question


def test_options_are_shuffled_by_the_question_and_the_seed() -> None:
    line = {
        "Question": "Which?",
        "Correct Answer": "red",
        **{f"Incorrect Answer {i}": f"wrong {i}" for i in (1, 2, 3)},
    }
    items = [read_item(line | {"Question": f"Which {i}?"}, i) for i in range(60)]
    for item in items:
        assert item.task is Task.CHOICE and sorted(item.choices) == [
            "red",
            "wrong 1",
            "wrong 2",
            "wrong 3",
        ]
        assert item.gold is not None and item.choices["ABCD".index(item.gold)] == "red"
    counts = [sum(item.gold == letter for item in items) for letter in "ABCD"]
    assert min(counts) >= 3, (
        "the gold answer is not always A"
    )  # 60 fair draws: fewer than 3 of a letter has probability below 1e-4
    assert read_item(line, 0) == read_item(line, 0)
    assert any(read_item(line, 0, seed) != read_item(line, 0) for seed in range(1, 9))
    assert "B. " + items[0].choices[1] in ask(items[0])


@pytest.mark.parametrize("answer", [2, "C", "(c)", "blue"])
def test_the_right_option_however_it_is_named(answer: object) -> None:
    item = read_item(
        {"question": "Sky?", "choices": ["red", "green", "blue"], "answer": answer}, 0
    )
    assert item.gold is not None and item.choices["ABC".index(item.gold)] == "blue"


@pytest.mark.parametrize("answer", [3, "D", "pink", True, -1])
def test_an_option_that_is_none(answer: object) -> None:
    with pytest.raises(
        SettingError, match="expected a letter, a number from 0, or the text"
    ):
        read_item(
            {"question": "Sky?", "choices": ["red", "green", "blue"], "answer": answer},
            0,
        )


def test_human_eval() -> None:
    line = {
        "task_id": "T/0",
        "prompt": "def f(x):\n    ",
        "test": "def check(g):\n    assert g(1) == 1",
        "entry_point": "f",
    }
    item = read_item(line, 0)
    assert item.task is Task.CODE and item.name == "T/0"
    assert (
        item.tests is not None
        and item.tests.check is not None
        and item.tests.check.rstrip().endswith("check(f)")
    )
    assert "def f(x):" in ask(item)


def test_live_code_bench_without_running_its_pickle(tmp_path: Path) -> None:
    cases = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
    hidden = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()
    item = read_item(
        {
            "question_content": "Add.",
            "public_test_cases": json.dumps(cases),
            "private_test_cases": hidden,
        },
        0,
    )
    assert item.tests is not None and item.tests.cases == (("1 2\n", "3\n"),) * 2

    class Bomb:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "went off",)

    bomb = base64.b64encode(
        zlib.compress(pickle.dumps([Bomb(), json.dumps(cases)], protocol=0))
    ).decode()
    with pytest.raises(SettingError, match="problem 0 cannot be read"):
        read_item(
            {
                "question_content": "Add.",
                "public_test_cases": "[]",
                "private_test_cases": bomb,
            },
            0,
        )
    assert not list(tmp_path.iterdir())


def test_functional_cases_become_a_check() -> None:
    cases = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]
    line = {
        "question_content": "Add.",
        "public_test_cases": cases,
        "metadata": '{"func_name": "add"}',
        "starter_code": "class Solution:\n",
    }
    item = read_item(line, 0)
    assert item.tests is not None and item.tests.check is not None
    program = (
        "class Solution:\n    def add(self, xs, y):\n        return sum(xs) + {}\n"
    )
    exec(program.format("y") + item.tests.check, {})
    with pytest.raises(AssertionError):
        exec(program.format("0") + item.tests.check, {})


@pytest.mark.parametrize(
    "line",
    [
        {"turns": ["Write a poem.", "Shorter."]},
        {"prompt": "Write a poem."},
        {"question": "Write a poem."},
    ],
)
def test_free_form(line: dict) -> None:
    item = read_item(line, 0)
    assert (item.task, item.gold, ask(item)) == (Task.FREE, None, "Write a poem.")


@pytest.mark.parametrize(
    "line",
    [
        {"text": "x", "label": 1},
        {},
        {"problem": "x", "answer": ""},
        {"prompt": "x", "test": "y"},
    ],
)
def test_unknown_layouts_are_refused_with_their_fields(line: dict) -> None:
    with pytest.raises(SettingError, match=", ".join(line) or "none") as refused:
        read_item(line, 5)
    assert "problem 5" in str(refused.value) and "AIME" in str(refused.value)


def test_tiny_problems_are_held_out_and_numbered() -> None:
    items = load_items("tiny:5", start=2, end=4)
    assert [item.number for item in items] == [2, 3]
    assert items[0].question == problem(Split.TEST, 2).question and items[
        0
    ].gold == str(problem(Split.TEST, 2).answer)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(
        '{"problem": "a", "answer": 1}\n\n{"problem": "b", "answer": 2}\n',
        encoding="utf-8",
    )
    assert [item.gold for item in load_items(str(file))] == ["1", "2"]
    assert fingerprint(load_items(str(file))) != fingerprint(
        load_items(str(file), end=1)
    )
    for name, message in [
        (str(tmp_path / "other.jsonl"), "there is some.jsonl"),
        ("tiny:0", "at least 1"),
        (str(tmp_path), "is a folder"),
    ]:
        with pytest.raises(SettingError, match=message):
            load_items(name)
    with pytest.raises(SettingError, match="has 2"):
        load_items(str(file), start=2)
    file.write_text('{"problem": "a", "answer": 1}\n{"problem": \n', encoding="utf-8")
    with pytest.raises(SettingError, match="line 2"):
        load_items(str(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="UTF-8"):
        load_items(str(file))


def test_a_line_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    """JSON allows other ends of lines, as Unicode has them, inside a text."""
    file = tmp_path / "some.jsonl"
    asked = "a\u2028b\u0085c\u2029d"
    file.write_bytes(
        json.dumps({"problem": asked, "answer": 1}, ensure_ascii=False).encode()
    )
    assert [item.question for item in load_items(str(file))] == [asked]
    given = json.dumps(asked, ensure_ascii=False) + "\n"
    cases = [{"input": given, "output": "7", "testtype": "functional"}]
    how = {"public_test_cases": cases, "metadata": '{"func_name": "size"}'}
    item = read_item({"question_content": "How long?", **how}, 0)
    assert item.tests is not None and item.tests.check is not None
    program = "class Solution:\n    def size(self, text):\n        return len(text)\n"
    exec(program + item.tests.check, {})


@pytest.mark.parametrize(
    "line",
    [
        {"problem": "a", "answer": "\ud800"},
        {"problem": "a", "answer": 1, "id": "\ud800"},
        {"question": "a", "choices": ["b", "\ud800"], "answer": 0},
        {"prompt": "def f():", "test": "'\ud800'", "entry_point": "f"},
    ],
)
def test_half_a_character_is_refused_when_it_is_read(line: dict) -> None:
    with pytest.raises(SettingError, match=r"problem 3 cannot be read .*surrogates"):
        read_item(line, 3)
