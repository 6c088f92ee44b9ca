"""Data sets: the problems, how each is graded, and the prompt for the model.

The field names of a row tell its layout; case does not matter, and spaces, dashes and
underscores are equal. Every field is used or known to be irrelevant; a row with another
one is refused, since it may be a part of the question or the answer. docs/evaluation.md
has the table. Read next: `answers.py`."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from lr.errors import SettingError
from lr.measure.answers import boxed_answer
from lr.rng import Stream, uniform
from lr.tiny.language import Split
from lr.tiny.stories import DATASETS
from lr.types import require

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_TINY = 100_000  # Problems of a tiny data set, which are made one by one.
_TINY = re.compile(rf"({'|'.join(DATASETS)}):(\d+)")
_BOX = "Think it through step by step, and put {} into \\boxed{{}}."
_FUNCTION = (
    "Complete this Python code. Give all of it, imports included, in one Python code "
    "block."
)
_PROGRAM = (
    "Write a Python program that reads from standard input and writes to standard "
    "output. Give all of it in one Python code block."
)

IDS = ("task_id", "unique_id", "question_id", "record_id", "id")
QUESTIONS = ("problem", "question", "prompt")
ANSWERS = (
    "answer", "expected_answer", "final_answer", "correct_answer", "ground_truth",
    "target", "gold", "answerkey", "correct",
)  # fmt: skip
# what a question is about, where it comes from, and how somebody or something solved it;
# in GPQA earlier versions of the question, and what its validators said
_IRRELEVANT = re.compile(
    r"""(?:(?:unique|task|question|record|problem|contest|data)_)?
    (?:id|idx|index|number|type|source|domain|date|title|category|level)
    |sub_?(?:field|domain|category)|subject_field|uuid|cleaning_status|modality|difficulty
    |grade|subject|topic|(?:solution|answer)_type
    |tags|language|split|src|dataset|url|link|license|year|exam|contest|platform|metadata
    |solutions?|rationale|explanation|reasoning|cot|cot_content|equation|formula
    |canonical_solution|generated_solution|generation_model|inference_mode|canary_string
    |pass_rate_72b_tir|used_in_kaggle|high_level_domain|question_writer
    |writer's_difficulty_estimate|(?:pre_revision|extra_revised|revision|self_reported
    |(?:majority_)?non_expert|expert_validator).*|.*_n?ev_\d|__.*""",
    re.VERBOSE,
)


class Task(StrEnum):
    """How the answer to a problem is graded."""

    MATH = "math"  # Equal to the gold answer as mathematics.
    CHOICE = "choice"  # The letter is the gold letter.
    CODE = "code"  # The program passes its tests.
    FREE = "free"  # Not graded: there is no gold answer.


@dataclass(frozen=True)
class Item:
    """One problem. `number` is its index in the data set, from 0; `name` is its own id.

    `choices` are the options of a multiple choice in the order shown; the first is A.
    `starter`: code that the program begins with; `entry_point`: what it must define;
    `check`: HumanEval's tests, Python source that raises if the program is wrong."""

    number: int
    question: str
    task: Task
    gold: str | None = None
    choices: tuple[str, ...] = ()
    starter: str = ""
    entry_point: str = ""
    check: str = ""
    name: str = ""

    @property
    def gradable(self) -> bool:
        """Whether an answer to it can be right or wrong here."""
        return self.gold is not None or bool(self.check)


def fingerprint(items: Sequence[Item]) -> str:
    """Sixteen hexadecimal digits; equal in runs that answer the same problems."""
    text = json.dumps([asdict(item) for item in items], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def ask(item: Item, *, bare: bool = False) -> str:
    """The prompt for an item: the question, and in which form to answer. `bare`: the
    question alone, for models that speak only a tiny language."""
    if bare or item.task is Task.FREE:
        return item.question
    if item.task is Task.MATH:
        return f"{item.question}\n\n{_BOX.format('your final answer')}"
    if item.task is Task.CHOICE:
        options = "\n".join(map("{}. {}".format, LETTERS, item.choices))
        prompt = _BOX.format("the letter of the right option")
        return f"{item.question}\n\n{options}\n\n{prompt}"
    if not item.starter:
        return f"{item.question}\n\n{_PROGRAM}"
    code = f"{_FUNCTION}\n\n```python\n{item.starter.rstrip()}\n```"
    return code if item.starter == item.question else f"{item.question}\n\n{code}"


def load_items(
    name: str, *, seed: int = 0, bad_rows: list[str] | None = None
) -> list[Item]:
    """All problems of a data set, numbered by their rows.

    `name` is a JSONL file, `tiny:N` or `stories:N`. `seed` shuffles GPQA's options. A
    bad row raises `SettingError`, or is left out and described in `bad_rows`."""
    if tiny := _TINY.fullmatch(name):
        count = int(tiny[2])
        expected = f"1 to {MAX_TINY} problems"
        require(1 <= count <= MAX_TINY, "the data set", name, expected)
        problems = [DATASETS[tiny[1]](Split.TEST, n, 0) for n in range(count)]
        return [
            Item(n, problem.question, Task.MATH, str(problem.answer))
            for n, problem in enumerate(problems)
        ]
    path = Path(name).expanduser()
    if not os.path.isfile(path):  # noqa: PTH113  # Path.is_file fails on long names
        raise SettingError(
            f"there is no file {str(path.absolute())!r}. Give a JSONL file, tiny:N or "
            "stories:N."
        )
    items = []
    for number, row in enumerate(read_lines(path)):
        try:
            items.append(read_row(row, number, seed))
        except SettingError as error:
            if bad_rows is None:
                advice = "Mend the row, or leave bad rows out: --skip_bad_rows."
                raise SettingError(f"{name}: {error} {advice}") from error
            bad_rows.append(str(error))
    return items


def between(items: Sequence[Item], start: int | None, end: int | None) -> list[Item]:
    """The problems numbered `start` to `end` (exclusive). Raises `SettingError` if
    there are none."""
    count = max((item.number + 1 for item in items), default=0)
    numbers = range(count)[slice(start, end)]
    if chosen := [item for item in items if item.number in numbers]:
        return chosen
    asked_for = f"from start_qid {start} to end_qid {end}"
    raise SettingError(f"the data set has {len(items)} problems, and none {asked_for}.")


def read_lines(path: Path) -> list[str]:
    """The lines of a file that are not empty. Raises `SettingError`."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # with or without a mark in front
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{path} cannot be read ({error}). A data set is UTF-8, one JSON object "
            "per line."
        ) from error
    # not splitlines: it also splits at other characters, such as U+2028 in a text
    return [line for line in text.split("\n") if line.strip()]


def read_row(row: str | Mapping[str, Any], number: int, seed: int = 0) -> Item:
    """The item of one row: a line of JSON, or its fields. `seed` shuffles the options
    of GPQA. Raises `SettingError`, which names the row and the field."""
    try:
        fields: Any = row
        if isinstance(row, str):  # NaN is no JSON; some programs write it for "nothing"
            fields = json.loads(row, parse_constant=lambda name: None)
        check(isinstance(fields, Mapping), "is no JSON object.")
        fields = _Row(fields)
        ids = (fields[key] for key in IDS if fields.get(key) is not None)
        name = str(next(ids, ""))
        item = replace(_recognise(fields, seed), number=number, name=name)
        fields.refuse_unknown()
        # JSON can spell half a character, which no file of results can hold
        json.dumps(asdict(item), ensure_ascii=False).encode()
        return item
    except SettingError as error:
        raise SettingError(f"problem {number} {error}") from error
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise SettingError(f"problem {number} cannot be read ({reason}).") from error


class _Row(dict[str, Any]):
    """The fields of a row. What its layout uses is taken out; what is left must be
    known to be irrelevant."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        for key, value in row.items():
            name = re.sub(r"[\s-]+", "_", str(key).strip().lower())
            check(name not in self, f"has the field {name!r} twice.")
            is_nan = isinstance(value, float) and math.isnan(value)
            self[name] = None if is_nan else value
        self.names = ", ".join(self) or "(none)"

    def has(self, *names: str) -> bool:
        return self.keys() >= set(names)

    def take(self, name: str) -> str:
        """A field that must be text, or a number."""
        value = self.pop(name)
        if isinstance(value, list) and len(value) == 1:  # as OlympiadBench writes it
            value = value[0]
        is_text = isinstance(value, str | int | float) and not isinstance(value, bool)
        wrong = f"has {value!r} in its field {name!r}, expected text."
        check(is_text and str(value).strip(), wrong)
        return str(value)

    def take_any(self, names: Sequence[str]) -> str | None:
        """The field with one of these names, or None. Several must say the same."""
        texts = {name: self.take(name) for name in names if name in self}
        fields = " and ".join(texts)
        check(len(set(texts.values())) <= 1, f"has {fields}, which differ; keep one.")
        return next(iter(texts.values()), None)

    def refuse_unknown(self) -> None:
        for name, value in self.items():
            unused = value not in (None, "", [], {})
            check(
                not unused or _IRRELEVANT.fullmatch(name),
                f"has the field {name!r}, which may be a part of the question or the "
                "answer, and no known layout (docs/evaluation.md). Drop the field if it "
                f"does not matter. Its fields: {self.names}.",
            )


def check(holds: object, fault: str) -> None:
    """Raise `SettingError` unless it holds. A fault continues "problem 3 ..."."""
    if not holds:
        raise SettingError(fault)


def _recognise(row: _Row, seed: int) -> Item:
    """The item without its number and name."""
    if row.has("prompt", "test", "entry_point"):
        return _human_eval(row)
    if row.has("question_content", "public_test_cases"):
        return _live_code_bench(row)
    if row.has("turns"):  # MT-Bench: the first turn is asked
        turns = row.pop("turns")
        row.pop("reference", None)
        is_text = isinstance(turns, list) and turns and isinstance(turns[0], str)
        check(is_text, "has no text in its field 'turns'.")
        return Item(0, turns[0], Task.FREE)
    is_asdiv = row.has("body", "formula")
    # SVAMP and ASDiv tell the story apart from the question
    body = f"{row.take('body').strip()} " if row.get("body") else ""
    row.pop("question_concat", None)  # SVAMP: the two together
    question = row.take_any(QUESTIONS)
    no_question = f"has no field {', '.join(QUESTIONS)}. Its fields: {row.names}."
    check(question is not None, no_question)
    question = f"{body}{question}"
    if row.has("correct_answer", "incorrect_answer_1"):
        return _gpqa(row, question, seed)
    options = row.pop("choices", None) or row.pop("options", None)
    if options is not None:
        return _choice(row, question, options)
    answer = row.take_any(ANSWERS)
    if answer is None and row.has("solution"):
        answer = row.take("solution")
        check(boxed_answer(answer), "has no answer, and no \\boxed{} in its solution.")
    if answer is None:
        return Item(0, question, Task.FREE)
    if is_asdiv:  # "9 (apples)"
        answer = re.sub(r"\s*\([^()]*\)$", "", answer.strip())
    gold = gold_answer(answer)
    check(gold, "has no answer after its ####.")
    return Item(0, question, Task.MATH, gold)


def gold_answer(text: str) -> str:
    """The answer in the text of a solution: after the last `####` (GSM8K), or in its
    last boxes, or the text itself."""
    if "####" in text:
        return text.rpartition("####")[2].strip()
    return boxed_answer(text) or text.strip()


def _gpqa(row: _Row, question: str, seed: int) -> Item:
    """The right option comes first in the file: its place is drawn, from the
    question."""
    wrong = sorted(key for key in row if re.fullmatch(r"incorrect_answer_\d+", key))
    texts = [row.take(key).strip() for key in ("correct_answer", *wrong)]
    stream = Stream.root(seed).fold_in("options", question)
    order = sorted(range(len(texts)), key=lambda index: uniform(stream.key(index)))
    choices = tuple(texts[index] for index in order)
    return Item(0, question, Task.CHOICE, LETTERS[order.index(0)], choices)


def _choice(row: _Row, question: str, options: Any) -> Item:
    letters = list(LETTERS)
    if isinstance(options, Mapping) and {"text", "label"} <= options.keys():  # ARC
        letters, options = [str(label) for label in options["label"]], options["text"]
    fits = isinstance(options, list) and 2 <= len(options) <= len(LETTERS)
    check(fits, "has no list of 2 to 26 options.")
    texts = [str(option).strip() for option in options]
    check(all(texts) and None not in options, "has an empty option.")
    answers = [row.pop(key) for key in ("answer_index", *ANSWERS) if key in row]
    stated = [answer for answer in answers if answer is not None]
    right = {_option(answer, texts, letters) for answer in stated}
    check(len(right) == 1, f"has {len(right)} right options, expected 1.")
    return Item(0, question, Task.CHOICE, LETTERS[right.pop()], tuple(texts))


def _option(answer: Any, texts: Sequence[str], letters: Sequence[str]) -> int:
    """The index of an option, given as a number from 0, a letter, or its text."""
    if isinstance(answer, str):
        if answer.strip() in texts:
            return texts.index(answer.strip())
        letter = answer.strip(" ().").upper()
        if letter in letters[: len(texts)]:
            return letters.index(letter)
    elif answer in range(len(texts)) and not isinstance(answer, bool):
        return int(answer)
    expected = "a letter, a number from 0, or the text of an option"
    raise SettingError(
        f"has the answer {answer!r} to its options, expected {expected}."
    )


def _human_eval(row: _Row) -> Item:
    prompt, test, entry = (row.take(key) for key in ("prompt", "test", "entry_point"))
    statements = ast.walk(ast.parse(test))
    tests = [node for node in statements if isinstance(node, ast.Assert | ast.Raise)]
    check(tests, "has no test cases: any program would pass.")
    code = f"{test}\n\ncheck({entry})\n"
    return Item(0, prompt, Task.CODE, starter=prompt, entry_point=entry, check=code)


def _live_code_bench(row: _Row) -> Item:
    content = row.take("question_content")
    starter = str(row.pop("starter_code", None) or "")
    public = row.pop("public_test_cases")
    private = row.pop("private_test_cases", None)
    tested = _holds_a_case(public) or _holds_a_case(private)
    check(tested, "has no test cases: any program would pass.")
    entry = "Solution" if "class Solution" in starter else ""
    return Item(0, content, Task.CODE, starter=starter, entry_point=entry)


def _holds_a_case(cases: Any) -> bool:
    """Whether there is a JSON object among test cases: a list, as JSON, or that packed
    as base64 of zlib of a pickled text. Nothing is unpickled, which could run code."""
    if isinstance(cases, str) and re.match(r"\s*[^\s\[n]", cases):
        return b"{" in zlib.decompress(base64.b64decode(cases))
    return "{" in str(cases)
