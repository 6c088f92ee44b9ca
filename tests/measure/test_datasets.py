"""Every layout that people have is read; a row with a field that may matter and is not
used is refused by name; one bad row does not take the file with it."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path

import pytest

from lr.errors import SettingError
from lr.measure.datasets import Task, ask, between, fingerprint, load_items, read_row
from lr.tiny.language import Split, problem

HALF = "\\frac{1}{2}"
MATHEMATICS = {
    "AIME": ({"id": 60, "problem": "How many?", "answer": 204, "year": "2024"}, "204"),
    "AIME, with headings": (
        {"ID": "2024-I-1", "Problem": "How many?", "Solution": "long", "Answer": 7}, "7"),
    "AMC": ({"id": 0, "question": "How many?", "answer": 27.0, "url": "https://x"}, "27.0"),
    "MATH": (
        {"problem": "x?", "level": "Level 3", "type": "Algebra", "solution": f"$\\boxed{{{HALF}}}$"},
        HALF),
    "MATH, no braces": ({"problem": "x?", "level": "", "type": "A", "solution": "so $\\boxed 2$."}, "2"),
    "MATH, two boxes": ({"problem": "x?", "solution": "\\boxed{1} and \\boxed{-2}"}, "1, -2"),
    "MATH-500": (
        {"problem": "x?", "solution": "\\boxed{1}", "answer": "(3, \\frac{\\pi}{2})",
         "subject": "Precalculus", "level": 2, "unique_id": "test/1.json"}, "(3, \\frac{\\pi}{2})"),
    "GSM8K": ({"question": "Eggs?", "answer": "9 * 2 = <<9*2=18>>18\n#### 18"}, "18"),
    "SVAMP": (
        {"ID": "chal-1", "Body": "Ann has 8 eggs.", "Question": "How many?", "Equation": "( 8.0 - 0 )",
         "Answer": "8", "Type": "Subtraction", "question_concat": "Ann has 8 eggs. How many?"}, "8"),
    "ASDiv": (
        {"body": "Ann has 8 eggs.", "question": "How many?", "answer": "8 (eggs)", "formula": "8=8",
         "solution_type": "Addition", "grade": "1"}, "8"),
    "OpenMathReasoning": (
        {"problem": "x?", "expected_answer": "5", "problem_type": "has_answer_extracted",
         "problem_source": "aops", "generation_model": "R1", "pass_rate_72b_tir": "0.5",
         "generated_solution": "<think>...", "inference_mode": "cot", "used_in_kaggle": True}, "5"),
    "OlympiadBench": (
        {"question": "x?", "final_answer": ["2"], "context": None, "image_1": None, "solution": ["..."]},
        "2"),
    "nothing in other fields": ({"problem": "x?", "answer": "5", "passage": "", "table": None}, "5"),
}  # fmt: skip


@pytest.mark.parametrize("layout", MATHEMATICS)
def test_mathematics(layout: str) -> None:
    line, gold = MATHEMATICS[layout]
    item = read_row(json.dumps(line), 3)
    assert (item.task, item.gold, item.number) == (Task.MATH, gold, 3)
    assert item.question in ask(item) and "\\boxed{}" in ask(item)
    assert ask(item, bare=True) == item.question
    if layout in ("SVAMP", "ASDiv"):
        assert item.question == "Ann has 8 eggs. How many?", "the story is asked too"


GPQA = {
    "Question": "Which?",
    "Correct Answer": "red",
    **{f"Incorrect Answer {i}": f"wrong {i}" for i in (1, 2, 3)},
    "Pre-Revision Question": "What?",
    "Feedback_EV_1": "good",
    "Self-reported time (minutes)_NEV_2": 5.0,
    "Writer's Difficulty Estimate": "hard",
    "Record ID": "rec1",
}


def test_options_are_shuffled_by_the_question_and_the_seed() -> None:
    items = [read_row(GPQA | {"Question": f"Which {i}?"}, i) for i in range(60)]
    for item in items:
        assert item.task is Task.CHOICE and item.gold is not None
        assert sorted(item.choices) == ["red", "wrong 1", "wrong 2", "wrong 3"]
        assert item.choices["ABCD".index(item.gold)] == "red"
    counts = [sum(item.gold == letter for item in items) for letter in "ABCD"]
    # 60 fair draws: fewer than 3 of a letter has probability below 1e-4
    assert min(counts) >= 3, "the gold answer is not always A"
    assert read_row(GPQA, 0) == read_row(GPQA, 0)
    assert any(read_row(GPQA, 0, seed) != read_row(GPQA, 0) for seed in range(1, 9))
    assert "B. " + items[0].choices[1] in ask(items[0])


SKY = {"question": "Sky?", "choices": ["red", "green", "both A and B", "blue"]}
CHOICES = {
    "a number": SKY | {"answer": 3},
    "a letter": SKY | {"answer": "D", "subject": "sky"},
    "in brackets": SKY | {"answer": "(d)"},
    "its text": SKY | {"answer": "blue"},
    "MMLU-Pro": {"question": "Sky?", "options": SKY["choices"], "answer": "D", "answer_index": 3},
    "AQuA": {
        "question": "Sky?", "options": ["A)red", "B)green", "C)both A and B", "D)blue"],
        "rationale": "...", "correct": "D"},
    "ARC": {
        "id": "x", "question": "Sky?", "answerKey": "4",
        "choices": {"text": SKY["choices"], "label": ["1", "2", "3", "4"]}},
}  # fmt: skip


@pytest.mark.parametrize("kind", CHOICES)
def test_options_that_have_an_order_keep_it(kind: str) -> None:
    item = read_row(CHOICES[kind], 0)
    assert item.gold == "D" and item.choices == tuple(SKY["choices"])


@pytest.mark.parametrize(
    "change",
    [{"answer": 4}, {"answer": "E"}, {"answer": "pink"}, {"answer": True}, {"answer": -1}, {},
     {"answer": "A", "answer_index": 1}, {"choices": ["red"], "answer": 0},
     {"choices": ["red", None], "answer": 0}],
)  # fmt: skip
def test_a_choice_without_one_right_option_is_refused(change: dict) -> None:
    with pytest.raises(SettingError, match="option"):
        read_row(SKY | change, 0)


HUMAN_EVAL = {
    "task_id": "T/0",
    "prompt": "def f(x):\n    ",
    "test": "def check(g):\n    assert g(1) == 1",
    "entry_point": "f",
    "canonical_solution": "return x",
}
CASES = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
LIVE_CODE_BENCH = {
    "question_title": "Add",
    "question_content": "Add.",
    "question_id": "abc",
    "contest_date": "2024",
    "starter_code": "",
    "public_test_cases": json.dumps(CASES),
    "private_test_cases": "",
    "metadata": "{}",
}


def packed(value: object) -> str:
    """As LiveCodeBench hides its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_programs() -> None:
    item = read_row(HUMAN_EVAL, 0)
    assert (item.task, item.name, item.entry_point) == (Task.CODE, "T/0", "f")
    assert item.check.rstrip().endswith("check(f)") and "def f(x):" in ask(item)
    item = read_row(LIVE_CODE_BENCH, 0)
    assert (item.task, item.name, item.gradable) == (Task.CODE, "abc", False)
    assert "standard input" in ask(item)
    private = {
        "public_test_cases": "[]",
        "private_test_cases": packed(json.dumps(CASES)),
    }
    assert read_row(LIVE_CODE_BENCH | private, 0).task is Task.CODE


class Bomb:
    def __reduce__(self) -> tuple:
        return Path.touch, (Path("went off"),)


NO_TESTS = [
    HUMAN_EVAL | {"test": "METADATA = {}\n"},
    HUMAN_EVAL | {"test": "def check(candidate):\n    pass"},
    HUMAN_EVAL | {"test": ""},
    LIVE_CODE_BENCH | {"public_test_cases": "[]"},
    LIVE_CODE_BENCH | {"public_test_cases": [], "private_test_cases": packed("[]")},
    LIVE_CODE_BENCH
    | {"public_test_cases": "[]", "private_test_cases": packed([Bomb()])},
]


@pytest.mark.parametrize("line", NO_TESTS)
def test_a_problem_without_tests_is_refused(line: dict, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="test"):
        read_row(line, 0)
    assert not Path("went off").exists(), "a pickle in a data set never runs"


FREE = [
    {"turns": ["Write a poem.", "Shorter."], "question_id": 81, "category": "writing"},
    {"prompt": "Write a poem."},
    {"question": "Write a poem.", "category": "writing"},
]


@pytest.mark.parametrize("line", FREE)
def test_free_form(line: dict) -> None:
    item = read_row(line, 0)
    assert (item.task, item.gold, ask(item)) == (Task.FREE, None, "Write a poem.")
    assert not item.gradable


REFUSED = {
    "text": {"text": "x", "label": 1},
    "problem": {},
    "answer": {"problem": "x", "answer": ""},
    "test": {"prompt": "x", "test": "y"},
    "context": {"question": "x", "answer": "5", "context": "Ann has 5 eggs."},
    "passage": {"question": "x", "passage": "Ann has 5 eggs."},
    "table": {"question": "x", "answer": "5", "table": "a | b"},
    "image": {"problem": "x", "answer": "5", "image": "a.png"},
    "label": {"question": "x", "label": 1},
    "input": {"instruction": "x", "input": "y", "output": "z"},
    "solution": {"problem": "x", "solution": "a proof without a box"},
    "expected_answer": {"problem": "x", "answer": "5", "expected_answer": "6"},
    "prompt": {"problem": "x", "prompt": "y", "answer": "5"},
    r"\[1, 2\]": {"problem": "x", "answer": [1, 2]},
    "'answer'": {"problem": "x", "answer": None},
    "incorrect_answer_2": GPQA | {"Incorrect Answer 2": None},
    "'problem'": {"problem": {"text": "x"}, "answer": "5"},
    "twice": {"problem": "x", "answer": "5", "Answer": "6"},
}  # fmt: skip


@pytest.mark.parametrize("word", REFUSED)
def test_a_row_is_never_half_asked(word: str) -> None:
    with pytest.raises(SettingError, match=word) as refused:
        read_row(REFUSED[word], 5)
    assert "problem 5" in str(refused.value)


def test_tiny_problems_are_held_out_and_numbered() -> None:
    items = between(load_items("tiny:5"), 2, 4)
    assert [item.number for item in items] == [2, 3]
    assert items[0].question == problem(Split.TEST, 2).question
    assert items[0].gold == str(problem(Split.TEST, 2).answer)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(
        '{"problem": "a", "answer": 1}\n\n{"problem": "b", "answer": 2}\n', "utf-8-sig"
    )
    items = load_items(str(file))
    assert [item.gold for item in items] == ["1", "2"], "a mark in front is no fault"
    assert fingerprint(items) != fingerprint(between(items, None, 1))
    with pytest.raises(SettingError, match="has 2"):
        between(items, 2, None)
    for name, word in [
        (str(tmp_path / "other.jsonl"), "some.jsonl"),
        ("tiny:0", "at least 1"),
        (str(tmp_path), "folder"),
    ]:
        with pytest.raises(SettingError, match=word):
            load_items(name)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="UTF-8"):
        load_items(str(file))


@pytest.mark.parametrize(
    "bad", ['{"problem": ', "[1]", '{"problem": "x", "answer": NaN}', '{"problem": "x", "answer": ""}']
)  # fmt: skip
def test_a_bad_row_names_itself_and_can_be_left_out(bad: str, tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    good = '{"problem": "a", "answer": 1, "rating": NaN}'
    file.write_text(f"{good}\n{bad}\n{good}\n", "utf-8")
    with pytest.raises(SettingError, match=r"problem 1 .*--skip_bad_rows"):
        load_items(str(file))
    bad_rows: list[str] = []
    items = load_items(str(file), bad_rows=bad_rows)
    assert [item.number for item in items] == [0, 2]
    assert len(bad_rows) == 1 and "problem 1" in bad_rows[0]


def test_a_line_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    """JSON allows other ends of lines, as Unicode has them, inside a text."""
    file = tmp_path / "some.jsonl"
    question = "a\u2028b\u0085c\u2029d"
    line = json.dumps({"problem": question, "answer": 1}, ensure_ascii=False)
    file.write_bytes(line.encode())
    assert [item.question for item in load_items(str(file))] == [question]


@pytest.mark.parametrize(
    "line",
    [{"problem": "a", "answer": "\ud800"}, {"problem": "a", "answer": 1, "id": "\ud800"},
     {"question": "a", "choices": ["b", "\ud800"], "answer": 0}],
)  # fmt: skip
def test_half_a_character_is_refused_when_it_is_read(line: dict) -> None:
    with pytest.raises(SettingError, match=r"problem 3 .*surrogates"):
        read_row(line, 3)
