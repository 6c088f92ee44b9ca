"""Every layout that people have is read; a row with a field that may matter and is not
used is refused by name; one bad row does not take the file with it."""

import base64
import json
import pickle
import zlib

import pytest
from tests_root import rows

from lr.errors import SettingError
from lr.measure.datasets import Task, ask, between, fingerprint, load_items, read_row
from lr.tiny.language import Split, problem


def read(row, number=0, seed=0):
    return read_row(json.dumps(row), number, seed)


@pytest.mark.parametrize("case", rows("layouts.jsonl"), ids=lambda case: case["layout"])
def test_layouts(case):
    item = read(case["row"], 3)
    assert (item.task, item.gold, item.number) == (case["task"], case["gold"], 3)
    assert item.question == case["question"] == ask(item, bare=True)
    assert item.question.rstrip() in ask(item)
    assert item.gradable is (item.task != "free" and case["layout"] != "LiveCodeBench")
    if item.task is Task.CHOICE:  # the order that the row gives
        assert [text[-5:] for text in item.choices][-1] in ("blue", ")blue")


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


def test_options_are_shuffled_by_the_question_and_the_seed():
    items = [read(GPQA | {"Question": f"Which {i}?"}, i) for i in range(60)]
    for item in items:
        assert len(item.choices) == 4
        assert item.choices["ABCD".index(item.gold)] == "red"
    # 60 fair draws: fewer than 3 of a letter has probability below 1e-4
    assert all(sum(item.gold == letter for item in items) >= 3 for letter in "ABCD")
    assert any(read(GPQA, 0, seed) != read(GPQA, 0) for seed in range(1, 9))
    assert "B. " + items[0].choices[1] in ask(items[0])


SKY = {"question": "Sky?", "choices": ["red", "green", "both A and B", "blue"]}


@pytest.mark.parametrize(
    "change",
    [{"answer": 4}, {"answer": "E"}, {"answer": "pink"}, {},
     {"answer": "A", "answer_index": 1}, {"choices": ["red"], "answer": 0}]
)  # fmt: skip
def test_a_choice_without_one_right_option_is_refused(change):
    with pytest.raises(SettingError, match="option"):
        read(SKY | change, 0)


ARC = {"label": ["1", "2", "3", "4"], "text": ["2", "3", "4", "5"]}


@pytest.mark.parametrize(
    "change, gold",
    [
        ({"choices": ARC, "answerKey": "3"}, "C"),
        ({"choices": ARC, "answer_index": 1}, "B"),
        ({"choices": ["B", "A", "D", "C"], "answer": "A", "answer_index": 0}, "A"),
        ({"choices": ["(b)", "(a)"], "answer": "(a)"}, "B"),
        ({"choices": ["2", "0", "1"], "answer": "0"}, "B"),
    ],
)
def test_a_label_wins_over_a_text(change, gold):
    assert read({"question": "Which?"} | change).gold == gold


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "a", "answer": r"\frac{1}{2}"},
        {"problem": "a", "choices": [r"$\beta$", "b"], "answer": 0},
        {"problem": r"a \\ \right) b", "answer": 6},
    ],
)
def test_latex_with_one_backslash_is_refused(row):
    line = json.dumps(row)
    read_row(line, 0)
    # the last command of the row, written as in a LaTeX file
    before, after = line.rsplit("\\\\", 1)
    with pytest.raises(SettingError, match="backslash"):
        read_row(f"{before}\\{after}", 0)


def test_ends_of_lines_and_tabs_are_no_latex():
    text = "the first\nequal part\n\nnot so\r\nrest\tand an apple\tfraction"
    assert read({"problem": text, "answer": 1}).question == text


def test_a_file_in_another_format_is_told_so(tmp_path):
    for name, text in (
        ("a.csv", "problem,answer\nx,1\n"),
        ("a.json", '[{"problem": "x", "answer": 1}]'),
        ("b.json", '[\n {"problem": "x", "answer": 1}\n]\n'),
    ):
        tmp_path.joinpath(name).write_text(text, "utf-8")
        with pytest.raises(SettingError, match="JSONL"):
            load_items(str(tmp_path / name))


LAYOUTS = {case["layout"]: case["row"] for case in rows("layouts.jsonl")}
HUMAN_EVAL = LAYOUTS["HumanEval"]
LIVE_CODE_BENCH = LAYOUTS["LiveCodeBench"]


EMPTY = base64.b64encode(zlib.compress(pickle.dumps("[]"))).decode()


NO_TESTS = [
    LIVE_CODE_BENCH | {"public_test_cases": "[]", "private_test_cases": EMPTY},
    LIVE_CODE_BENCH | {"public_test_cases": " [ ] ", "private_test_cases": "null"},
    LIVE_CODE_BENCH | {"public_test_cases": [], "private_test_cases": None},
    HUMAN_EVAL | {"test": "def check(candidate):\n    pass  # assert\n"},
    HUMAN_EVAL | {"test": ""},
]


@pytest.mark.parametrize("line", NO_TESTS)
def test_a_problem_without_tests_is_refused(line):
    with pytest.raises(SettingError, match="test"):
        read(line)


@pytest.mark.parametrize("case", rows("refused.jsonl"), ids=lambda case: case["word"])
def test_a_row_is_never_half_asked(case):
    with pytest.raises(SettingError, match=case["word"]) as refused:
        read(case["row"], 5)
    assert "problem 5" in str(refused.value)


def test_tiny_problems_are_held_out_and_numbered():
    items = between(load_items("tiny:5"), 2, 4)
    assert [item.number for item in items] == [2, 3]
    assert items[0].question == problem(Split.TEST, 2).question
    assert items[0].gold == str(problem(Split.TEST, 2).answer)


def test_files(tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_text(
        '{"problem": "a", "answer": 1}\n\n{"problem": "b", "answer": 2}\n', "utf-8-sig"
    )
    items = load_items(str(file))
    assert [item.gold for item in items] == ["1", "2"], "a mark in front is no fault"
    assert fingerprint(items) != fingerprint(between(items, None, 1))
    with pytest.raises(SettingError, match="has 2"):
        between(items, 2, None)
    with pytest.raises(SettingError, match="cannot be read"):
        load_items(str(tmp_path / "other.jsonl"))
    with pytest.raises(SettingError, match="1 to"):
        load_items("tiny:0")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="UTF-8"):
        load_items(str(file))


@pytest.mark.parametrize(
    "bad", ['{"problem": ', "[1]", '{"problem": "x", "answer": NaN}', '{"problem": "x", "answer": ""}']
)  # fmt: skip
def test_a_bad_row_names_itself_and_can_be_left_out(bad, tmp_path):
    file = tmp_path / "some.jsonl"
    good = '{"problem": "a", "answer": 1, "rating": NaN}'
    file.write_text(f"{good}\n{bad}\n{good}\n", "utf-8")
    with pytest.raises(SettingError, match=r"problem 1 .*--skip_bad_rows"):
        load_items(str(file))
    bad_rows = []
    items = load_items(str(file), bad_rows=bad_rows)
    assert [item.number for item in items] == [0, 2]
    assert len(bad_rows) == 1 and "problem 1" in bad_rows[0]


def test_a_line_ends_at_a_line_feed_alone(tmp_path):
    """JSON allows other ends of lines, as Unicode has them, inside a text."""
    file = tmp_path / "some.jsonl"
    question = "a\u2028b\u0085c\u2029d"
    line = json.dumps({"problem": question, "answer": 1}, ensure_ascii=False)
    file.write_bytes(line.encode())
    assert [item.question for item in load_items(str(file))] == [question]


def test_half_a_character_is_refused_when_it_is_read():
    with pytest.raises(SettingError, match=r"problem 3 .*surrogates"):
        read({"problem": "a", "answer": 1, "id": "\ud800"}, 3)
