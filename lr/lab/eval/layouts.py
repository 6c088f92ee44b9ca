"""From the fields of one JSONL line to an `Item`: the layouts that people have.

| layout | fields | task | | --- | --- | --- | | HumanEval | prompt, test, entry_point | code | |
LiveCodeBench | question_content, public_test_cases, private_test_cases, starter_code | code | |
GPQA | question, correct answer, incorrect answer 1, ... | choice | | MMLU and the like | question,
choices (or options), answer: a letter, a number from 0 or the text | choice | | GSM8K | question,
answer with "#### 42" at its end | math | | AIME, AMC, MATH-500 | problem or question, answer | math
| | MATH | problem, solution with a box | math | | MT-Bench | turns (the first is asked) | free | |
anything else to be answered | prompt, question or problem alone | free |

Case and the space, dash or underscore between words do not matter. The options of a choice are
shuffled with a stream keyed by the seed and the question, so the gold letter is not always the
same, and is the same in every run with that seed.
"""

from __future__ import annotations

import base64
import json
import pickletools
import re
import zlib
from collections.abc import Mapping
from typing import Any

from lr.errors import SettingError
from lr.lab.eval.answers import boxed
from lr.lab.eval.items import CodeTests, Item, Task
from lr.rng import Stream, uniform

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
GSM8K_MARK = "####"
QUESTION = ("problem", "question")
CHOICES = ("choices", "options")
NAMES = ("task_id", "unique_id", "question_id", "record_id", "id")
EXPECTED = (
    "problem or question with answer (AIME, AMC, MATH, GSM8K), prompt/test/entry_point (HumanEval), question_content/public_test_cases "
    "(LiveCodeBench), question/choices/answer or question/correct_answer/incorrect_answer_1 (multiple choice), turns or prompt (free)"
)


def read_item(line: Mapping[str, Any], number: int, seed: int = 0) -> Item:
    """The item of one line. `seed` shuffles the options of a choice. Raises `SettingError` with the
    fields that were found.
    """
    fields = {
        re.sub(r"[\s-]+", "_", str(name).strip().lower()): value for name, value in line.items()
    }
    name = next((str(fields[key]) for key in NAMES if fields.get(key) is not None), "")
    question = next((fields[key] for key in QUESTION if isinstance(fields.get(key), str)), None)
    if {"prompt", "test", "entry_point"} <= fields.keys():
        return _human_eval(fields, number, name)
    if {"question_content", "public_test_cases"} <= fields.keys():
        return _live_code_bench(fields, number, name)
    if question is not None and "correct_answer" in fields and "incorrect_answer_1" in fields:
        return _gpqa(question, fields, number, seed, name)
    choices = next(
        (fields[key] for key in CHOICES if isinstance(fields.get(key), (list, tuple))), None
    )
    if question is not None and choices is not None and fields.get("answer") is not None:
        texts = [str(choice) for choice in choices]
        return _choice(question, texts, _place(fields["answer"], texts, number), number, seed, name)
    if question is not None and _math_gold(fields) is not None:
        return Item(number, question, Task.MATH, _math_gold(fields), name=name)
    turns = fields.get("turns")
    free = turns[0] if isinstance(turns, list) and turns else fields.get("prompt", question)
    if isinstance(free, str) and not {"answer", "solution", "test", "test_cases"} & fields.keys():
        return Item(number, free, Task.FREE, name=name)
    raise SettingError(
        f"problem {number} has the fields {', '.join(map(str, line)) or '(none)'}, which is no layout known here. Known are: {EXPECTED}."
    )


def _math_gold(fields: Mapping[str, Any]) -> str | None:
    """The gold answer of a mathematical problem, or None. Example: "She has 3 + 4 = 7.\\n#### 7"
    gives "7".
    """
    answer, solution = fields.get("answer"), fields.get("solution")
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        return str(answer)
    if isinstance(answer, str) and answer.strip():
        if GSM8K_MARK in answer:
            return answer.rpartition(GSM8K_MARK)[2].strip()
        return boxed(answer) or answer.strip()
    return boxed(solution) if isinstance(solution, str) else None


def _gpqa(question: str, fields: Mapping[str, Any], number: int, seed: int, name: str) -> Item:
    wrong = [
        str(fields[key]) for key in sorted(fields) if re.fullmatch(r"incorrect_answer_\d+", key)
    ]
    return _choice(question, [str(fields["correct_answer"]), *wrong], 0, number, seed, name)


def _choice(question: str, texts: list[str], right: int, number: int, seed: int, name: str) -> Item:
    """The options in a shuffled order: sorted by a number drawn for each."""
    if len(texts) > len(LETTERS):
        raise SettingError(
            f"problem {number} has {len(texts)} options, expected at most {len(LETTERS)}."
        )
    stream = Stream.root(seed).child("options", question)
    order = sorted(range(len(texts)), key=lambda place: uniform(stream.key(place)))
    choices = tuple(texts[place].strip() for place in order)
    return Item(number, question, Task.CHOICE, LETTERS[order.index(right)], choices, name=name)


def _place(answer: object, texts: list[str], number: int) -> int:
    """Which option is right: a number counts from 0, a letter from A, anything else is the text of
    the option.
    """
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(texts):
        return answer
    if isinstance(answer, str) and answer in texts:
        return texts.index(answer)
    if isinstance(answer, str) and len(answer.strip(" ().")) == 1:
        place = LETTERS.find(answer.strip(" ().").upper())
        if 0 <= place < len(texts):
            return place
    raise SettingError(
        f"problem {number} has the answer {answer!r} to {len(texts)} options, expected a letter, a number from 0, or the text of an option."
    )


def _human_eval(fields: Mapping[str, Any], number: int, name: str) -> Item:
    check = f"{fields['test']}\n\ncheck({fields['entry_point']})\n"
    prompt = str(fields["prompt"])
    return Item(number, prompt, Task.CODE, tests=CodeTests(check), starter=prompt, name=name)


def _live_code_bench(fields: Mapping[str, Any], number: int, name: str) -> Item:
    tests = [*_cases(fields["public_test_cases"]), *_cases(fields.get("private_test_cases"))]
    starter = str(fields.get("starter_code") or "")
    functional = any(test.get("testtype") == "functional" for test in tests)
    if functional:
        made = CodeTests(_functional_check(_json(fields.get("metadata")), tests, number))
    else:
        made = CodeTests(cases=tuple((str(test["input"]), str(test["output"])) for test in tests))
    return Item(
        number, str(fields["question_content"]), Task.CODE, tests=made, starter=starter, name=name
    )


def _functional_check(metadata: Any, tests: list[dict[str, Any]], number: int) -> str:
    """Python source that calls the method under test with every input (one JSON value per line) and
    compares.
    """
    method = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(method, str):
        raise SettingError(
            f"problem {number} has functional tests but no func_name in its metadata."
        )
    cases = [
        ([_json(row) for row in str(t["input"]).splitlines()], _json(t["output"])) for t in tests
    ]
    return (
        f"import json\n_cases = json.loads({json.dumps(json.dumps(cases))})\n"
        f"for _given, _wanted in _cases:\n    _got = Solution().{method}(*_given)\n"
        "    _got = json.loads(json.dumps(_got))\n    assert _got == _wanted, (_given, _got, _wanted)\n"
    )


def _cases(value: Any) -> list[dict[str, Any]]:
    """Test cases as a list, from a list, JSON, or (as LiveCodeBench hides its private ones) base64
    of zlib of a pickled JSON text.

    The pickle is read for its one text without being executed: a data set must not run code here.
    """
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or not value.strip():
        return []
    if value.lstrip().startswith("["):
        return list(json.loads(value))
    packed = zlib.decompress(base64.b64decode(value))
    texts = [argument for _, argument, _ in pickletools.genops(packed) if isinstance(argument, str)]
    return list(json.loads(texts[0])) if texts else []


def _json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
