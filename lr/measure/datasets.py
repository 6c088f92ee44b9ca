"""Data sets: the problems, how each is graded, and the prompt for the model.

`load_items` reads a JSONL file, a data set of the Hugging Face hub, or the held-out
problems of the tiny language (`tiny:N`, `stories:N`). The field names of a row tell its layout; case
does not matter, and spaces, dashes and underscores are equal. Every field is used or
known to be irrelevant; a row with another one is refused, since it may be a part of the
question or the answer. docs/evaluation.md has the table. Read next: `answers.py`."""

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
_HUB = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?(?::([\w.-]+))?")
_MATH = "Think it through step by step, and put your final answer into \\boxed{}."
_CHOICE = (
    "Think it through step by step, and put the letter of the right option into "
    "\\boxed{}."
)
_FUNCTION = (
    "Complete this Python code. Give all of it, imports included, in one Python code "
    "block."
)
_PROGRAM = (
    "Write a Python program that reads from standard input and writes to standard "
    "output. Give all of it in one Python code block."
)

QUESTIONS = ("problem", "question", "prompt")
ANSWERS = (
    "answer", "expected_answer", "final_answer", "correct_answer", "ground_truth",
    "target", "gold", "answerkey", "correct",
)  # fmt: skip
# what a question is about, where it comes from, and how somebody or something solved it;
# in GPQA earlier versions of the question, and what its validators said
_IRRELEVANT = re.compile(
    r"""(?:(?:unique|task|question|record|problem|contest|data|sub|sub_|subject)_?)?
    (?:id|idx|index|number|type|source|domain|field|date|title|category|level)
    |uuid|cleaning_status|modality|difficulty|grade|subject|topic|(?:solution|answer)_type
    |tags|language|split|src|dataset|url|link|license|year|exam|contest|platform|metadata
    |solutions?|rationale|explanation|reasoning|cot|cot_content|equation|formula|reference
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
        return f"{item.question}\n\n{_MATH}"
    if item.task is Task.CHOICE:
        options = "\n".join(map("{}. {}".format, LETTERS, item.choices))
        return f"{item.question}\n\n{options}\n\n{_CHOICE}"
    if not item.starter:
        return f"{item.question}\n\n{_PROGRAM}"
    code = f"{_FUNCTION}\n\n```python\n{item.starter.rstrip()}\n```"
    return code if item.starter == item.question else f"{item.question}\n\n{code}"


def load_items(
    name: str, *, seed: int = 0, bad_rows: list[str] | None = None
) -> list[Item]:
    """All problems of a data set, numbered by their rows.

    `name` is a JSONL file; `tiny:N` or `stories:N`; or a hub id, `owner/name[:split]`
    or `owner/name:config:split`. `seed` shuffles GPQA's options. A bad row raises
    `SettingError`, or, with `bad_rows`, is left out and described in that list."""
    if tiny := _TINY.fullmatch(name):
        count = int(tiny[2])
        require(
            1 <= count <= MAX_TINY, "the data set", name, f"1 to {MAX_TINY} problems"
        )
        problems = [DATASETS[tiny[1]](Split.TEST, n, 0) for n in range(count)]
        return [
            Item(n, problem.question, Task.MATH, str(problem.answer))
            for n, problem in enumerate(problems)
        ]
    path = Path(name).expanduser()
    if os.path.isfile(path):  # noqa: PTH113  # Path.is_file fails on long names
        rows: Sequence[Any] = read_lines(path)
    elif (hub := _HUB.fullmatch(name)) and not name.endswith((".jsonl", ".json")):
        rows = _from_hub(hub[1], hub[2] if hub[3] else None, hub[3] or hub[2] or "test")
    else:
        raise SettingError(
            f"there is no file {str(path.absolute())!r}. Give a JSONL file, tiny:N, "
            "stories:N, or a hub id."
        )
    items = []
    for number, row in enumerate(rows):
        try:
            items.append(read_row(row, number, seed))
        except SettingError as error:
            if bad_rows is None:
                raise SettingError(
                    f"{name}: {error} Mend the row, or leave bad rows out: "
                    "--skip_bad_rows."
                ) from error
            bad_rows.append(str(error))
    return items


def between(items: Sequence[Item], start: int | None, end: int | None) -> list[Item]:
    """The problems numbered `start` to `end` (exclusive). Raises `SettingError` if
    there are none."""
    count = max((item.number + 1 for item in items), default=0)
    numbers = range(count)[slice(start, end)]
    if chosen := [item for item in items if item.number in numbers]:
        return chosen
    raise SettingError(
        f"the data set has {len(items)} problems, and none from start_qid {start} to "
        f"end_qid {end}."
    )


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


def _from_hub(name: str, config: str | None, split: str) -> Sequence[Any]:
    """The rows of a hub data set, read by the package `datasets`."""
    try:
        from datasets import load_dataset

        return [dict(row) for row in load_dataset(name, config, split=split)]
    except Exception as error:  # versions differ in what a failed download raises
        raise SettingError(
            f"there is no file {name}, and the Hugging Face data set of that name "
            f"cannot be read ({type(error).__name__}: {str(error)[:200]}). Give a JSONL "
            "file, or for the hub: pip install datasets."
        ) from error


def read_row(row: str | Mapping[str, Any], number: int, seed: int = 0) -> Item:
    """The item of one row: a line of JSON, or its fields. `seed` shuffles the options
    of GPQA. Raises `SettingError`, which names the row and the field."""
    try:
        if isinstance(row, str):  # NaN is no JSON; some programs write it for "nothing"
            row = json.loads(row, parse_constant=lambda name: None)
        if not isinstance(row, Mapping):
            raise SettingError(f"is {type(row).__name__}, expected a JSON object.")
        fields = _Row(row)
        item = replace(_recognise(fields, seed), number=number, name=fields.identity())
        fields.refuse_unknown()
        # JSON can spell half a character, as "\\ud800", which no UTF-8 file of results
        # can hold
        json.dumps(asdict(item), ensure_ascii=False).encode()
        return item
    except SettingError as error:
        raise SettingError(f"problem {number} {error}") from error
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise SettingError(
            f"problem {number} cannot be read ({type(error).__name__}: "
            f"{str(error)[:200]})."
        ) from error


class _Row(dict[str, Any]):
    """The fields of a row. What its layout uses is taken out; what is left must be
    known to be irrelevant."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        for key, value in row.items():
            name = re.sub(r"[\s-]+", "_", str(key).strip().lower())
            if name in self:
                raise SettingError(f"has the field {name!r} twice.")
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
        if not is_text or not str(value).strip():
            raise SettingError(f"has {value!r} in its field {name!r}, expected text.")
        return str(value)

    def take_any(self, names: Sequence[str]) -> str | None:
        """The field with one of these names, or None. Several must say the same."""
        texts = {name: self.take(name) for name in names if name in self}
        if len(set(texts.values())) > 1:
            fields = " and ".join(texts)
            raise SettingError(f"has the fields {fields}, which differ; keep one.")
        return next(iter(texts.values()), None)

    def identity(self) -> str:
        """The row's own id, or ""."""
        ids = ("task_id", "unique_id", "question_id", "record_id", "id")
        values = (self[key] for key in ids if self.get(key) is not None)
        return str(next(values, ""))

    def refuse_unknown(self) -> None:
        for name, value in self.items():
            if value not in (None, "", [], {}) and not _IRRELEVANT.fullmatch(name):
                raise SettingError(
                    f"has the field {name!r}, which may be a part of the question or the "
                    f"answer, and nothing here uses it. Its fields: {self.names}. "
                    "docs/evaluation.md lists the known layouts; drop the field if it "
                    "does not matter."
                )


def _recognise(row: _Row, seed: int) -> Item:
    """The item without its number and name. An error's message continues "problem 3
    ..." (`read_row`)."""
    if row.has("prompt", "test", "entry_point"):
        return _human_eval(row)
    if row.has("question_content", "public_test_cases"):
        return _live_code_bench(row)
    if row.has("turns"):  # MT-Bench: the first turn is asked
        turns = row.pop("turns")
        if not (isinstance(turns, list) and turns and isinstance(turns[0], str)):
            raise SettingError("has no text in its field 'turns'.")
        return Item(0, turns[0], Task.FREE)
    is_asdiv = row.has("body", "formula")
    # SVAMP and ASDiv tell the story apart from the question
    body = f"{row.take('body').strip()} " if row.get("body") else ""
    row.pop("question_concat", None)  # SVAMP: the two together
    question = row.take_any(QUESTIONS)
    if question is None:
        raise SettingError(
            f"has no field {', '.join(QUESTIONS)}, nor those of a known layout "
            f"(docs/evaluation.md). Its fields: {row.names}."
        )
    question = body + question
    if row.has("correct_answer", "incorrect_answer_1"):
        return _gpqa(row, question, seed)
    options = row.pop("choices", None) or row.pop("options", None)
    if options is not None:
        return _choice(row, question, options)
    answer = row.take_any(ANSWERS)
    if answer is None and row.has("solution"):
        answer = row.take("solution")
        if boxed_answer(answer) is None:
            raise SettingError("has no answer, and no \\boxed{} in its solution.")
    if answer is None:
        return Item(0, question, Task.FREE)
    if is_asdiv:  # "9 (apples)"
        answer = re.sub(r"\s*\([^()]*\)$", "", answer.strip())
    gold = gold_answer(answer)
    if not gold:
        raise SettingError("has no answer after its ####.")
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
    order = sorted(range(len(texts)), key=lambda place: uniform(stream.key(place)))
    choices = tuple(texts[place] for place in order)
    return Item(0, question, Task.CHOICE, LETTERS[order.index(0)], choices)


def _choice(row: _Row, question: str, options: Any) -> Item:
    letters = list(LETTERS)
    if isinstance(options, Mapping) and {"text", "label"} <= options.keys():  # ARC
        letters, options = [str(label) for label in options["label"]], options["text"]
    if not (isinstance(options, list) and 2 <= len(options) <= len(LETTERS)):
        raise SettingError("has no list of 2 to 26 options.")
    texts = [str(option).strip() for option in options]
    if not all(texts) or None in options:
        raise SettingError("has an empty option.")
    answers = [row.pop(key) for key in ("answer_index", *ANSWERS) if key in row]
    right = {
        _option(answer, texts, letters) for answer in answers if answer is not None
    }
    if len(right) != 1:
        raise SettingError(f"has {len(right)} right options, expected 1.")
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
    raise SettingError(
        f"has the answer {answer!r} to {len(texts)} options, expected a letter, a number "
        "from 0, or the text of an option."
    )


def _human_eval(row: _Row) -> Item:
    prompt, test, entry = (row.take(key) for key in ("prompt", "test", "entry_point"))
    statements = ast.walk(ast.parse(test))
    if not any(isinstance(node, ast.Assert | ast.Raise) for node in statements):
        raise SettingError("has no test cases: any program would pass.")
    check = f"{test}\n\ncheck({entry})\n"
    return Item(0, prompt, Task.CODE, starter=prompt, entry_point=entry, check=check)


def _live_code_bench(row: _Row) -> Item:
    content = row.take("question_content")
    starter = str(row.pop("starter_code", None) or "")
    cases = (
        row.pop(name, None) for name in ("public_test_cases", "private_test_cases")
    )
    if not any(map(_holds_a_case, cases)):
        raise SettingError("has no test cases: any program would pass.")
    entry = "Solution" if "class Solution" in starter else ""
    return Item(0, content, Task.CODE, starter=starter, entry_point=entry)


def _holds_a_case(cases: Any) -> bool:
    """Whether there is a JSON object among test cases: a list, as JSON, or that packed
    as base64 of zlib of a pickled text. Nothing is unpickled, which could run code."""
    if isinstance(cases, str) and re.match(r"\s*[^\s\[n]", cases):
        return b"{" in zlib.decompress(base64.b64decode(cases))
    return "{" in str(cases)
