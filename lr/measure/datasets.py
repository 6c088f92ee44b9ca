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
# what a question is about, where it comes from, and how somebody or something solved it
IRRELEVANT = set(
    """
    id idx index number unique_id task_id question_id record_id problem_id problem_idx
    problem_number question_number
    uuid cleaning_status modality level difficulty grade type subject topic category subcategory subfield domain
    subdomain subject_field problem_type question_type solution_type answer_type tags
    language split source src dataset data_source problem_source url link license year
    exam contest contest_id contest_date date platform question_title title metadata
    solution solutions rationale explanation reasoning cot cot_content equation formula
    canonical_solution generated_solution generation_model inference_mode
    pass_rate_72b_tir used_in_kaggle high_level_domain canary_string question_writer
    writer's_difficulty_estimate
    """.split()
)
# GPQA: earlier versions of the question, and what its validators said
_GPQA = re.compile(
    r"(?:pre_revision|extra_revised|revision|self_reported|(?:majority_)?non_expert"
    r"|expert_validator).*|.*_n?ev_\d|__.*"
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
    except ModuleNotFoundError as error:
        raise SettingError(
            f"there is no file {name}; to read the data set of that name from the hub: "
            "pip install datasets."
        ) from error
    except Exception as error:  # versions differ in what a failed download raises
        raise SettingError(
            f"there is no file {name}, and the Hugging Face data set of that name "
            f"cannot be read ({type(error).__name__}: {str(error)[:200]}). Check name "
            "and connection, or give a JSONL file."
        ) from error


def read_row(row: str | Mapping[str, Any], number: int, seed: int = 0) -> Item:
    """The item of one row: a line of JSON, or its fields. `seed` shuffles the options
    of GPQA. Raises `SettingError`, which names the row and the field."""
    try:
        if isinstance(row, str):  # NaN is no JSON; some programs write it for "nothing"
            row = json.loads(row, parse_constant=lambda name: None)
        if not isinstance(row, Mapping):
            raise SettingError(f"is {type(row).__name__}, expected a JSON object.")
        item = replace(_recognise(row, seed), number=number)
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


class _Row:
    """The fields of a row that hold something. Each is taken by its layout; `finish`
    refuses those that nobody took and that may matter."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.names = ", ".join(map(str, row)) or "(none)"
        self.fields: dict[str, Any] = {}
        for key, value in row.items():
            nan = isinstance(value, float) and value != value
            name = re.sub(r"[\s-]+", "_", str(key).strip().lower())
            if name in self.fields:
                raise SettingError(f"has the field {name!r} twice.")
            self.fields[name] = None if nan else value

    def has(self, *names: str) -> bool:
        return self.fields.keys() >= set(names)

    def take(self, name: str) -> str:
        """A field that must be text, or a number."""
        value = self.fields.pop(name)
        if isinstance(value, list) and len(value) == 1:  # as OlympiadBench writes it
            value = value[0]
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            text = str(value)
            if text.strip():
                return text
        raise SettingError(f"has {value!r} in its field {name!r}, expected text.")

    def take_any(self, names: Sequence[str]) -> str | None:
        """The field with one of these names, or None. Several must say the same."""
        texts = {name: self.take(name) for name in names if name in self.fields}
        if len(set(texts.values())) > 1:
            fields = " and ".join(texts)
            raise SettingError(f"has the fields {fields}, which differ; keep one.")
        return next(iter(texts.values()), None)

    def finish(self, *irrelevant: str) -> None:
        for name, value in self.fields.items():
            empty = value is None or value in ("", [], {})
            known = name in IRRELEVANT or name in irrelevant or _GPQA.fullmatch(name)
            if not (empty or known):
                raise SettingError(
                    f"has the field {name!r}, which may be a part of the question or the "
                    f"answer, and nothing here uses it. Its fields: {self.names}. "
                    "docs/evaluation.md lists the known layouts; drop the field if it "
                    "does not matter."
                )


def _recognise(line: Mapping[str, Any], seed: int) -> Item:
    """The item without its number. An error's message continues "problem 3 ..."
    (`read_row`)."""
    row = _Row(line)
    ids = ("task_id", "unique_id", "question_id", "record_id", "id")
    named = (row.fields[key] for key in ids if row.fields.get(key) is not None)
    name = str(next(named, ""))
    if row.has("prompt", "test", "entry_point"):
        return _human_eval(row, name)
    if row.has("question_content", "public_test_cases"):
        return _live_code_bench(row, name)
    if row.has("turns"):  # MT-Bench: the first turn is asked
        turns = row.fields.pop("turns")
        row.finish("reference")
        if not (isinstance(turns, list) and turns and isinstance(turns[0], str)):
            raise SettingError("has no text in its field 'turns'.")
        return Item(0, turns[0], Task.FREE, name=name)
    is_asdiv = row.has("body", "formula")
    question = _question(row)
    if row.has("correct_answer", "incorrect_answer_1"):  # GPQA
        wrong = sorted(
            k for k in row.fields if re.fullmatch(r"incorrect_answer_\d+", k)
        )
        texts = [row.take(key).strip() for key in ("correct_answer", *wrong)]
        row.finish()
        # the right one comes first in the file: its place is drawn, from the question
        stream = Stream.root(seed).fold_in("options", question)
        order = sorted(range(len(texts)), key=lambda place: uniform(stream.key(place)))
        choices = tuple(texts[place] for place in order)
        gold = LETTERS[order.index(0)]
        return Item(0, question, Task.CHOICE, gold, choices, name=name)
    options = row.fields.pop("choices", None) or row.fields.pop("options", None)
    if options is not None:
        texts, letters = _options(options)
        numbers = [row.fields.pop("answer_index", None)]
        numbers += [row.fields.pop(key) for key in ANSWERS if key in row.fields]
        row.finish()
        right = {_right_option(n, texts, letters) for n in numbers if n is not None}
        if len(right) != 1:
            raise SettingError(f"has {len(right)} right options, expected 1.")
        gold = LETTERS[right.pop()]
        return Item(0, question, Task.CHOICE, gold, tuple(texts), name=name)
    answer = row.take_any(ANSWERS)
    if answer is None and row.has("solution"):
        answer = row.take("solution")
        if boxed_answer(answer) is None:
            raise SettingError("has no answer, and no \\boxed{} in its solution.")
    row.finish()
    if answer is None:
        return Item(0, question, Task.FREE, name=name)
    if is_asdiv:  # "9 (apples)"
        answer = re.sub(r"\s*\([^()]*\)$", "", answer.strip())
    gold = gold_answer(answer)
    if not gold:
        raise SettingError("has no answer after its ####.")
    return Item(0, question, Task.MATH, gold, name=name)


def _question(row: _Row) -> str:
    """The question; SVAMP and ASDiv tell the story apart from it, in `body`."""
    if not any(key in row.fields for key in QUESTIONS):
        raise SettingError(
            f"has no field {', '.join(QUESTIONS)}, nor those of a known layout "
            f"(docs/evaluation.md). Its fields: {row.names}."
        )
    body = f"{row.take('body').strip()} " if row.fields.get("body") else ""
    row.fields.pop("question_concat", None)  # SVAMP: the two together
    return f"{body}{row.take_any(QUESTIONS)}"


def gold_answer(text: str) -> str:
    """The answer in the text of a solution: after the last `####` (GSM8K), or in its
    last boxes, or the text itself."""
    if "####" in text:
        return text.rpartition("####")[2].strip()
    return boxed_answer(text) or text.strip()


def _options(options: Any) -> tuple[list[str], list[str]]:
    """The texts of the options, and the letters that the row gives them."""
    letters = list(LETTERS)
    if isinstance(options, Mapping) and {"text", "label"} <= options.keys():  # ARC
        letters, options = [str(label) for label in options["label"]], options["text"]
    if not (isinstance(options, list) and 2 <= len(options) <= len(LETTERS)):
        raise SettingError("has no list of 2 to 26 options.")
    texts = [str(option).strip() for option in options]
    if not all(texts) or None in options:
        raise SettingError("has an empty option.")
    return texts, letters


def _right_option(answer: Any, texts: Sequence[str], letters: Sequence[str]) -> int:
    """The index of the right option, given as a number from 0, a letter, or its
    text."""
    names: Sequence[Any] = letters[: len(texts)]
    if isinstance(answer, str) and answer.strip() in texts:
        names, answer = texts, answer.strip()
    elif isinstance(answer, str):
        answer = answer.strip(" ().").upper()
    elif not isinstance(answer, bool):
        names = range(len(texts))
    if answer in names:
        return names.index(answer)
    raise SettingError(
        f"has the answer {answer!r} to {len(texts)} options, expected a letter, a number "
        "from 0, or the text of an option."
    )


def _human_eval(row: _Row, name: str) -> Item:
    prompt, test, entry = (row.take(key) for key in ("prompt", "test", "entry_point"))
    row.finish()
    statements = ast.walk(ast.parse(test))
    if not any(isinstance(node, ast.Assert | ast.Raise) for node in statements):
        raise SettingError("has no test cases: any program would pass.")
    check = f"{test}\n\ncheck({entry})\n"
    return Item(
        0, prompt, Task.CODE, starter=prompt, entry_point=entry, check=check, name=name
    )


def _cases(cases: Any) -> Any:
    """Test cases of LiveCodeBench: a list, as JSON, or that packed as base64 of zlib of
    a pickled text. The text stands in the pickle between brackets, and nothing is
    unpickled, which could run code."""
    if not isinstance(cases, str) or not cases.strip():
        return cases
    if cases.lstrip()[0] in "[n":
        return json.loads(cases)
    packed = zlib.decompress(base64.b64decode(cases))
    return json.loads(packed[packed.index(b"[") : packed.rindex(b"]") + 1])


def _live_code_bench(row: _Row, name: str) -> Item:
    content = row.take("question_content")
    starter = str(row.fields.pop("starter_code", None) or "")
    public = row.fields.pop("public_test_cases")
    private = row.fields.pop("private_test_cases", None)
    row.finish()
    if not (_cases(public) or _cases(private)):
        raise SettingError("has no test cases: any program would pass.")
    entry = "Solution" if "class Solution" in starter else ""
    return Item(0, content, Task.CODE, starter=starter, entry_point=entry, name=name)
