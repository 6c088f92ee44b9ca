"""Data sets: the problems, how each is graded, and the prompt for the model.

`load_items` reads a JSONL file, a data set of the Hugging Face hub, or `tiny:N`,
`stories:N` (held-out problems of the tiny language). The field names of a
line tell its layout; case does not matter, and spaces, dashes and underscores are
equal. docs/evaluation.md has the table. An unknown layout raises an error that lists
the fields found. Read next: `grading.py`."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickletools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lr.errors import SettingError
from lr.result import boxed
from lr.rng import Stream, uniform
from lr.tiny.language import Split
from lr.tiny.stories import DATASETS
from lr.types import require

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_BYTES = 256 << 20  # The unpacked test cases of one problem.
MOST_TINY = 100_000  # Problems of a tiny data set: they are generated one by one, all in memory.
_TINY = re.compile(rf"({'|'.join(DATASETS)}):(\d+)")
_HUB = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?(?::([\w.-]+))?")
_EXPECTED = (
    "problem or question with answer (AIME, AMC, MATH, GSM8K), prompt/test/entry_point "
    "(HumanEval), question_content/public_test_cases (LiveCodeBench), question/choices/answer or "
    "question/correct_answer/incorrect_answer_1 (multiple choice), turns or prompt (free)"
)
_MATH = "Think it through step by step, and put your final answer into \\boxed{}."
_CHOICE = "Think it through step by step, and put the letter of the right option into \\boxed{}."
_FUNCTION = "Complete this Python code. Give all of it, imports included, in one Python code block."
_PROGRAM = (
    "Write a Python program that reads from standard input and writes to standard output. "
    "Give all of it in one Python code block."
)


class Task(StrEnum):
    """How the answer to a problem is graded."""

    MATH = "math"  # Equal to the gold answer as mathematics.
    CHOICE = "choice"  # The letter is the gold letter.
    WORD = "word"  # The words are the gold ones, ignoring case.
    CODE = "code"  # The program passes its tests.
    FREE = "free"  # Not graded: there is no gold answer.


@dataclass(frozen=True)
class CodeTests:
    """How to test a program: by `check`, Python source to append, which raises if the
    program is wrong; or by `cases`, pairs of standard input and expected output."""

    check: str | None = None
    cases: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Item:
    """One problem. `number` is its index in the data set, from 0; `name` is its own id.

    `gold` is None for tasks without a gold answer. `choices` are the options of a
    multiple choice in the order shown; the first is A. `starter`: code that the program
    begins with."""

    number: int
    question: str
    task: Task
    gold: str | None = None
    choices: tuple[str, ...] = ()
    tests: CodeTests | None = None
    starter: str = ""
    name: str = ""


def fingerprint(items: Sequence[Item]) -> str:
    """Sixteen hexadecimal digits; equal in runs that answer the same problems."""
    text = json.dumps([asdict(item) for item in items], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def ask(item: Item, *, bare: bool = False) -> str:
    """The prompt for an item: the question, and in which form to answer. `bare`: the
    question alone, for models that speak only a tiny language."""
    if bare or item.task is Task.FREE:
        return item.question
    if item.task in (Task.MATH, Task.WORD):
        return f"{item.question}\n\n{_MATH}"
    if item.task is Task.CHOICE:
        options = "\n".join(map("{}. {}".format, LETTERS, item.choices))
        return f"{item.question}\n\n{options}\n\n{_CHOICE}"
    if not item.starter:
        return f"{item.question}\n\n{_PROGRAM}"
    given = f"{_FUNCTION}\n\n```python\n{item.starter.rstrip()}\n```"
    return given if item.starter == item.question else f"{item.question}\n\n{given}"


def load_items(
    name: str, *, seed: int = 0, start: int | None = None, end: int | None = None
) -> list[Item]:
    """Problems `start` to `end` (exclusive), with their numbers in the whole data set.

    `name` is a JSONL file; `tiny:N` or `stories:N`; or a hub id,
    `owner/name[:split]` or `owner/name:config:split`. `seed` shuffles multiple-choice
    options. Raises `SettingError`."""
    path, hub, tiny = (
        Path(name).expanduser(),
        _HUB.fullmatch(name),
        _TINY.fullmatch(name),
    )
    if tiny is not None:
        family, count = tiny[1], int(tiny[2])
        expected = f"{family}:N with N of at least 1 and at most {MOST_TINY}"
        require(1 <= count <= MOST_TINY, "the data set", f"{family}:{count}", expected)
        items = []
        for number in range(count):
            one = DATASETS[family](Split.TEST, number, 0)
            task = Task.MATH if isinstance(one.answer, int) else Task.WORD
            items.append(Item(number, one.question, task, str(one.answer)))
    else:
        if os.path.isfile(path):  # noqa: PTH113  # Path.is_file raises if the name is too long
            rows: Iterable[dict[str, Any]] = read_lines(path)
        elif hub is None or path.exists() or name.endswith((".jsonl", ".json")):
            raise SettingError(
                f"there is no data set {name!r}: {_nearby(path)} Give a JSONL file, tiny:N, "
                "stories:N, or a hub id."
            )
        else:
            config, split = (hub[2], hub[3]) if hub[3] else (None, hub[2])
            rows = _from_hub(hub[1], config, split or "test")
        items = [read_item(row, number, seed) for number, row in enumerate(rows)]
    if chosen := items[slice(start, end)]:
        return chosen
    raise SettingError(
        f"{name} has {len(items)} problems, and none from start_qid {start} to end_qid {end}."
    )


def _nearby(path: Path) -> str:
    if os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises if the name is too long
        return f"{path} is a folder."
    folder = path.parent if os.path.isdir(path.parent) else Path()  # noqa: PTH112
    found = sorted(one.name for one in folder.glob("*.jsonl"))[:5]
    return f"no such file{', but there is ' + ', '.join(found) if found else ''}."


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one per line that is not empty. Raises
    `SettingError`."""
    where, lines = str(path), []
    try:
        # not splitlines: it also splits at other characters, such as U+2028 in a text
        for number, text in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            where = f"line {number} of {path}"
            if text.strip():
                lines.append(json.loads(text))
                if not isinstance(lines[-1], dict):
                    raise TypeError(f"it holds {type(lines[-1]).__name__}")
    except (
        OSError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: or not UTF-8
        raise SettingError(
            f"{where} cannot be read ({error}). A data set is UTF-8, one JSON object per line."
        ) from error
    return lines


def _from_hub(name: str, config: str | None, split: str) -> Iterable[dict[str, Any]]:
    """The rows of a hub data set. Without the package `datasets` it must be stored as
    JSONL."""
    try:
        if find_spec("datasets") is not None:
            from datasets import load_dataset

            return [dict(row) for row in load_dataset(name, config, split=split)]
        from huggingface_hub import HfApi, hf_hub_download

        files = HfApi().list_repo_files(name, repo_type="dataset")
        files = [file for file in files if file.endswith(".jsonl")]
        fitting = [
            file for file in files if split in file and (config or "") in file
        ] or files
        path = (
            Path(hf_hub_download(name, fitting[0], repo_type="dataset"))
            if fitting
            else None
        )
    except Exception as error:  # versions differ in what a failed download raises
        said = (str(error).splitlines() or ["no message"])[0]
        raise SettingError(
            f"there is no file {name}, and the Hugging Face data set of that name cannot be read "
            f"({type(error).__name__}: {said}). Check name and connection, or give a JSONL file."
        ) from error
    if path is None:
        raise SettingError(
            f"the data set {name} is not JSONL; to read it: pip install datasets."
        )
    return read_lines(path)


def read_item(line: Mapping[str, Any], number: int, seed: int = 0) -> Item:
    """The item of one line. `seed` shuffles the options of a choice. Raises
    `SettingError`, which lists the fields found or says what is wrong in one of
    them."""
    try:
        item = replace(_recognise(line, seed), number=number)
        # JSON can spell half a character, as "\\ud800", which no UTF-8 file of results
        # can hold
        json.dumps(asdict(item), ensure_ascii=False).encode()
        return item
    except (
        Exception
    ) as error:  # damaged test cases may fail in base64, zlib, pickle or JSON
        said = f"cannot be read ({type(error).__name__}: {str(error)[:200]})."
        said = str(error) if isinstance(error, SettingError) else said
        raise SettingError(f"problem {number} {said}") from error


def _recognise(line: Mapping[str, Any], seed: int) -> Item:
    """The item without its number. An error's message continues "problem 3 ..."
    (`read_item`)."""
    fields = {
        re.sub(r"[\s-]+", "_", str(key).strip().lower()): line[key] for key in line
    }
    ids = ("task_id", "unique_id", "question_id", "record_id", "id")
    name = next((str(fields[key]) for key in ids if fields.get(key) is not None), "")
    asked = (
        fields[key]
        for key in ("problem", "question")
        if isinstance(fields.get(key), str)
    )
    question = next(asked, None)
    if {"prompt", "test", "entry_point"} <= fields.keys():
        tests = CodeTests(f"{fields['test']}\n\ncheck({fields['entry_point']})\n")
        prompt = str(fields["prompt"])
        return Item(0, prompt, Task.CODE, tests=tests, starter=prompt, name=name)
    if {"question_content", "public_test_cases"} <= fields.keys():
        starter = str(fields.get("starter_code") or "")
        content, tests = str(fields["question_content"]), _live_code_bench(fields)
        return Item(0, content, Task.CODE, tests=tests, starter=starter, name=name)
    if (
        question is not None
        and "correct_answer" in fields
        and "incorrect_answer_1" in fields
    ):
        wrong = [
            key for key in sorted(fields) if re.fullmatch(r"incorrect_answer_\d+", key)
        ]
        texts = [str(fields[key]) for key in ("correct_answer", *wrong)]
        return _choice(question, texts, 0, seed, name)
    lists = [
        fields[key]
        for key in ("choices", "options")
        if isinstance(fields.get(key), list)
    ]
    if question is not None and lists and fields.get("answer") is not None:
        texts = [str(choice) for choice in lists[0]]
        return _choice(
            question, texts, _right_option(fields["answer"], texts), seed, name
        )
    if question is not None and (gold := _math_gold(fields)) is not None:
        return Item(0, question, Task.MATH, gold, name=name)
    turns = fields.get("turns")
    free = (
        turns[0]
        if isinstance(turns, list) and turns
        else fields.get("prompt", question)
    )
    if (
        isinstance(free, str)
        and not {"answer", "solution", "test", "test_cases"} & fields.keys()
    ):
        return Item(0, free, Task.FREE, name=name)
    found = ", ".join(map(str, line)) or "(none)"
    raise SettingError(f"has the fields {found}, but known layouts have {_EXPECTED}.")


def _math_gold(fields: Mapping[str, Any]) -> str | None:
    """The gold answer, or None. Example: "She has 3 + 4 = 7.\\n#### 7" gives "7"."""
    answer, solution = fields.get("answer"), fields.get("solution")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return str(answer)
    if isinstance(answer, str) and answer.strip():
        if "####" in answer:
            return answer.rpartition("####")[2].strip()
        return boxed(answer) or answer.strip()
    return boxed(solution) if isinstance(solution, str) else None


def _choice(question: str, texts: list[str], right: int, seed: int, name: str) -> Item:
    """Shuffle the options with random numbers keyed by seed and question. So the gold
    letter varies between questions, but not between runs with the same seed."""
    if len(texts) > len(LETTERS):
        raise SettingError(
            f"has {len(texts)} options, expected at most {len(LETTERS)}."
        )
    stream = Stream.root(seed).fold_in("options", question)
    order = sorted(range(len(texts)), key=lambda place: uniform(stream.key(place)))
    choices = tuple(texts[place].strip() for place in order)
    return Item(
        0, question, Task.CHOICE, LETTERS[order.index(right)], choices, name=name
    )


def _right_option(answer: object, texts: list[str]) -> int:
    """The index of the right option, given as a number from 0, a letter from A, or its
    text."""
    if (
        isinstance(answer, int)
        and not isinstance(answer, bool)
        and 0 <= answer < len(texts)
    ):
        return answer
    if isinstance(answer, str):
        if answer in texts:
            return texts.index(answer)
        if (letter := answer.strip(" ().").upper()) in list(LETTERS[: len(texts)]):
            return LETTERS.index(letter)
    raise SettingError(
        f"has the answer {answer!r} to {len(texts)} options, expected a letter, a number from 0, "
        "or the text of an option."
    )


def _live_code_bench(fields: Mapping[str, Any]) -> CodeTests:
    """Tests of whole programs: their input and output. Functional tests: Python source
    that calls the method under test with every input (one JSON value per line) and
    compares."""
    tests = [
        *_cases(fields["public_test_cases"]),
        *_cases(fields.get("private_test_cases")),
    ]
    if not any(test.get("testtype") == "functional" for test in tests):
        return CodeTests(
            cases=tuple((str(test["input"]), str(test["output"])) for test in tests)
        )
    metadata = _json(fields.get("metadata"))
    method = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(method, str):
        raise SettingError("has functional tests but no func_name in its metadata.")
    rows = (
        [row for row in str(test["input"]).split("\n") if row.strip()] for test in tests
    )
    outputs = (_json(test["output"]) for test in tests)
    cases = [
        ([*map(_json, given)], out) for given, out in zip(rows, outputs, strict=True)
    ]
    return CodeTests(
        f"import json\n_cases = json.loads({json.dumps(json.dumps(cases))})\n"
        f"for _given, _wanted in _cases:\n    _got = Solution().{method}(*_given)\n"
        "    _got = json.loads(json.dumps(_got))\n"
        "    assert _got == _wanted, (_given, _got, _wanted)\n"
    )


def _cases(value: Any) -> list[dict[str, Any]]:
    """Test cases as a list: from a list, from JSON, or from base64 of zlib of a pickled
    JSON text, which is how LiveCodeBench hides its private ones. A data set must not
    run code here: the pickle is never executed, only its one text is read."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or not value.strip():
        return []
    if value.lstrip().startswith("["):
        return list(json.loads(value))
    packed = zlib.decompressobj().decompress(base64.b64decode(value), MOST_BYTES)
    texts = [
        argument
        for _, argument, _ in pickletools.genops(packed)
        if isinstance(argument, str)
    ]
    return list(json.loads(texts[0])) if texts else []


def _json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
