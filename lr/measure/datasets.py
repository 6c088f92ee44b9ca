"""Data sets: the problems, how each is graded, and the prompt for the model.

The field names of a row tell its layout; case does not matter, and spaces, dashes and
underscores are equal. Every field is used or known to be irrelevant; a row with another
one is refused, since it may be a part of the question or the answer. docs/evaluation.md
has the table. Read next: `answers.py`."""

import ast
import base64
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from lr.errors import SettingError
from lr.measure.answers import boxed_answer
from lr.measure.store import digest_of
from lr.rng import Stream, uniform
from lr.tiny.language import Split
from lr.tiny.stories import DATASETS
from lr.types import is_number, require

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_TINY = 100_000  # Problems of a tiny data set, which are made one by one.
_BOX = "Think it through step by step, and put {} into \\boxed{{}}."
_FUNCTION = (
    "Complete this Python code. Give all of it, imports included, in one Python code "
    "block."
)
_PROGRAM = (
    "Write a Python program that reads from standard input and writes to standard "
    "output. Give all of it in one Python code block."
)

HUMAN_EVAL = "prompt test entry_point".split()
IDS = "task_id unique_id question_id record_id id".split()
QUESTION_FIELDS = "problem question prompt".split()
ANSWER_FIELDS = (
    "answer expected_answer final_answer correct_answer ground_truth target gold "
    "answerkey correct"
).split()
# what a question is about, where it comes from, and how somebody or something solved it;
# in GPQA earlier versions of the question, and what its validators said
_IRRELEVANT = re.compile(
    r"""(?x)(?:(?:unique|task|question|record|problem|contest|data)_)?
    (?:id|idx|index|number|type|source|domain|date|title|category|level)
    |sub_?(?:field|domain|category)|subject_field|uuid|cleaning_status|modality|difficulty
    |grade|subject|topic|(?:solution|answer)_type
    |tags|language|split|src|dataset|url|link|license|year|exam|contest|platform|metadata
    |solutions?|rationale|explanation|reasoning|cot|cot_content|equation|formula
    |canonical_solution|generated_solution|generation_model|inference_mode|canary_string
    |is_multiple_answer|question_concat|pass_rate_72b_tir|used_in_kaggle|high_level_domain|question_writer
    |writer's_difficulty_estimate|(?:pre_revision|extra_revised|revision|self_reported
    |(?:majority_)?non_expert|expert_validator).*|.*_n?ev_\d|__.*"""
)


# LaTeX with one backslash, after JSON has read \\b, \\f, \\n, \\r or \\t as a control
# character and it has been written as JSON again
_HALF_ESCAPED = re.compile(
    r"(?<!\\)(?:\\\\)*(\\(?:[bf][a-zA-Z]+|n(?:abla|otin|eq)|r(?:ho|ight|angle)"
    r"|t(?:imes|heta|ilde|au|riangle|(?:ext(?:bf|it|rm)?|frac)(?=[{\d]))))(?![a-z.])"
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
    return digest_of([*map(asdict, items)], 8)


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
    items = []
    if tiny := re.fullmatch(rf"({'|'.join(DATASETS)}):(\d+)", name):
        count = int(tiny[2])
        require(1 <= count <= MAX_TINY, "data set", name, f"1 to {MAX_TINY} problems")
        for number in range(count):
            problem = DATASETS[tiny[1]](Split.TEST, number, 0)
            items.append(Item(number, problem.question, Task.MATH, str(problem.answer)))
        return items
    try:  # with or without a byte order mark
        text = Path(name).expanduser().read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise SettingError(
            f"the data set {name!r} cannot be read ({error}). Give tiny:N, stories:N "
            "or a file in UTF-8 with one JSON object per line."
        ) from error
    # not splitlines: it also splits at other characters, such as U+2028 in a text
    for number, line in enumerate(filter(str.strip, text.split("\n"))):
        try:
            items.append(read_row(line, number, seed))
        except SettingError as error:
            if bad_rows is None:
                raise SettingError(
                    f"{name}: {error} Expected is JSONL, an object per line, no CSV and no "
                    "list. Mend the row, or leave bad rows out: --skip_bad_rows."
                ) from error
            bad_rows.append(str(error))
    return items


def between(items: Sequence[Item], start: int | None, end: int | None) -> list[Item]:
    """The problems numbered `start` to `end` (exclusive), of `items` in the order of
    their numbers. Raises `SettingError` if there are none."""
    numbers = range(items[-1].number + 1 if items else 0)[start:end]
    chosen = [item for item in items if item.number in numbers]
    expected = f"a range of problems; the data set has {len(items)}"
    require(bool(chosen), "start_qid, end_qid", (start, end), expected)
    return chosen


def read_row(line: str, number: int, seed: int = 0) -> Item:
    """The item of one row, a line of JSON. `seed` shuffles the options of GPQA. Raises
    `SettingError`, which names the row and the field."""
    try:  # NaN is no JSON; some programs write it for "nothing"
        content = json.loads(line, parse_constant=lambda name: None)
        check(isinstance(content, dict), "it is no JSON object.")
        row = _Row(content)
        ids = (value for value in map(row.get, IDS) if value is not None)
        name = str(next(ids, ""))
        item = replace(_recognise(row, seed), number=number, name=name)
        for field, value in row.items():
            check(
                value in (None, "", [], {}) or _IRRELEVANT.fullmatch(field),
                f"it has the field {field!r}, which may be a part of the question or the "
                "answer, and no known layout (docs/evaluation.md). Drop the field if it "
                f"does not matter. Its fields: {row.names}.",
            )
        # JSON can spell half a character, which no file of results can hold
        json.dumps(asdict(item), ensure_ascii=False).encode()
        return item
    except (ValueError, TypeError, SyntaxError, RecursionError, zlib.error) as error:
        raise SettingError(
            f"problem {number} cannot be read: {str(error)[:600]}"
        ) from error


class _Row(dict[str, Any]):
    """The fields of a row. What its layout uses is taken out; what is left must be
    known to be irrelevant."""

    def __init__(self, content: dict[str, Any]) -> None:
        for key, value in content.items():
            name = re.sub(r"[\s-]+", "_", key.strip().lower())
            check(name not in self, f"it has the field {name!r} twice.")
            if latex := _HALF_ESCAPED.search(json.dumps(value)):
                raise ValueError(
                    f"its field {name!r} has {latex[1]} with one backslash, a control "
                    "character in JSON. Write two."
                )
            self[name] = value
        self.names = ", ".join(self) or "(none)"

    def take(self, *names: str) -> str:
        """The text or number in the field with one of these names, or "" if there is no
        such field. Several must say the same."""
        texts = {}
        for name in names:
            if name in self:
                value = self.pop(name)
                match value:
                    case [single]:  # as in OlympiadBench
                        value = single
                is_text = isinstance(value, str) or is_number(value)
                wrong = f"it has {value!r} in its field {name!r}, expected text."
                check(is_text and str(value).strip(), wrong)
                texts[str(value)] = name
        fields = " and ".join(texts.values())
        check(len(texts) <= 1, f"it has {fields}, which differ; keep one.")
        return next(iter(texts), "")


def check(holds: object, fault: str) -> None:
    """Refuse the row unless it holds."""
    if not holds:
        raise ValueError(fault)


def _recognise(row: _Row, seed: int) -> Item:
    """The item without its number and name."""
    if row.keys() >= {*HUMAN_EVAL}:
        return _human_eval(row)
    if row.keys() >= {"question_content", "public_test_cases"}:
        return _live_code_bench(row)
    if "turns" in row:  # MT-Bench: the first turn is asked
        check(isinstance(row["turns"], list), "it has no list in its field 'turns'.")
        row["turns"] = row["turns"][:1]
        row.pop("reference", None)
        return Item(0, row.take("turns"), Task.FREE)
    # SVAMP and ASDiv tell the story apart from the question
    body = f"{row.take('body').strip()} " if row.get("body") else ""
    question = row.take(*QUESTION_FIELDS)
    check(
        question,
        f"it has no field {', '.join(QUESTION_FIELDS)}. Its fields: {row.names}.",
    )
    question = f"{body}{question}"
    if row.keys() >= {"correct_answer", "incorrect_answer_1"}:
        return _gpqa(row, question, seed)
    if options := row.pop("choices", None) or row.pop("options", None):
        return _choice(row, question, options)
    answer = row.take(*ANSWER_FIELDS)
    if not answer and "solution" not in row:
        return Item(0, question, Task.FREE)
    gold = gold_answer(answer) if answer else boxed_answer(row.take("solution"))
    if body and gold:  # ASDiv: "9 (apples)"
        gold = re.sub(r"\s*\([^()]*\)$", "", gold)
    check(gold, "it has no answer after its ####, or no \\boxed{} in its solution.")
    return Item(0, question, Task.MATH, gold)


def gold_answer(text: str) -> str:
    """The answer in the text of a solution: after the last `####` (GSM8K), or in its
    last boxes, or the text itself."""
    *_, end = text.rpartition("####")  # without ####: all of it
    return boxed_answer(end) or end.strip()


def _gpqa(row: _Row, question: str, seed: int) -> Item:
    """The right option comes first in the file: its place is drawn, from the
    question."""
    options = re.compile(r"correct_answer|incorrect_answer_\d+")
    texts = [row.take(key).strip() for key in sorted(filter(options.fullmatch, row))]
    stream = Stream.root(seed).fold_in("options", question)
    choices = sorted(texts, key=lambda text: uniform(stream.key(texts.index(text))))
    letter = LETTERS[choices.index(texts[0])]
    return Item(0, question, Task.CHOICE, letter, tuple(choices))


def _choice(row: _Row, question: str, options: Any) -> Item:
    """The right option is given as a letter, a number from 0, or its text."""
    labels = list(LETTERS)
    match options:
        case {"text": texts, "label": names}:  # ARC
            options = texts
            labels = [*map(str, names)]
    fits = isinstance(options, list) and 2 <= len(options) <= len(LETTERS)
    check(fits, "it has no list of 2 to 26 options.")
    texts = [str(option).strip() for option in options]
    check(all(texts) and None not in options, "it has an empty option.")
    numbers = range(len(texts))
    # a label wins over a text: options B, A, D, C and the answer A
    indices = dict(zip([*texts, *labels], [*numbers, *numbers], strict=False))

    def find(field: str, answer: Any) -> int | None:
        name = str(answer).strip()
        if is_number(answer) and (field == "answer_index" or name not in labels):
            return int(answer) if answer in numbers else None
        return indices.get(name, indices.get(name.strip(" ().").upper()))

    stated = {
        name: row.pop(name)
        for name in ("answer_index", *ANSWER_FIELDS)
        if row.get(name) is not None
    }
    right = {find(*field) for field in stated.items()}
    check(
        len(right) == 1 and None not in right,
        f"it has {stated}, expected one right option: its letter, its number from 0, or "
        "its text.",
    )
    return Item(0, question, Task.CHOICE, LETTERS[right.pop() or 0], tuple(texts))


def _human_eval(row: _Row) -> Item:
    prompt, test, entry = map(row.take, HUMAN_EVAL)
    nodes = ast.walk(ast.parse(test))
    fails = any(isinstance(node, ast.Assert | ast.Raise) for node in nodes)
    check(fails, "it has no test cases: any program would pass.")
    code = f"{test}\n\ncheck({entry})\n"
    return Item(0, prompt, Task.CODE, starter=prompt, entry_point=entry, check=code)


def _live_code_bench(row: _Row) -> Item:
    """The tests are a list, as JSON, or that packed as base64 of zlib of a pickled
    text. Nothing is unpickled, which could run code."""
    content = row.take("question_content")
    starter = str(row.pop("starter_code", None) or "")
    tests = ""
    for field in ("public_test_cases", "private_test_cases"):
        cases = str(row.pop(field, "")).strip()
        if not re.match(r"\[|null|None|$", cases):
            cases = zlib.decompress(base64.b64decode(cases)).decode("latin-1")
        tests += cases
    check("{" in tests, "it has no test cases: any program would pass.")
    entry = "Solution" if "class Solution" in starter else ""
    return Item(0, content, Task.CODE, starter=starter, entry_point=entry)
