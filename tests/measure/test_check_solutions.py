"""HumanEval's and LiveCodeBench's layouts, with problems of our own: canonical
solutions pass, mutated ones fail, and `scripts/check_solutions.py` notices where they
do not.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from check_solutions import main, mutated

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits are tried on Linux only"
)


def human_eval(number: int, head: str, body: str, *checks: str) -> dict[str, Any]:
    """A line in HumanEval's layout: a signature with its docstring, and a body that
    fits it."""
    name = head.partition("(")[0]
    asserts = "".join(f"    assert candidate{check}\n" for check in checks)
    return {
        "task_id": f"Ours/{number}",
        "prompt": f'from typing import List\n\ndef {head}\n    """Say it."""\n',
        "canonical_solution": "".join(f"    {line}\n" for line in body.splitlines()),
        "test": f"METADATA = {{}}\n\ndef check(candidate):\n{asserts}",
        "entry_point": name,
    }


HUMAN_EVAL = [
    human_eval(0, "add(a: int, b: int) -> int:", "return a + b", "(2, 3) == 5", "(-1, 1) == 0"),
    human_eval(
        1, "evens(xs: List[int]) -> List[int]:", "return [x for x in xs if x % 2 == 0]",
        "([1, 2, 4]) == [2, 4]", "([]) == []",
    ),
    human_eval(
        2, "mean(xs: List[float]) -> float:", "total = sum(xs)\nreturn total / len(xs)",
        "([1.0, 2.0]) - 1.5 < 1e-9",
    ),
    human_eval(
        3, "is_prime(n: int) -> bool:",
        "if n < 2:\n    return False\nreturn all(n % d for d in range(2, int(n ** 0.5) + 1))",
        "(7) == True", "(9) == False", "(1) == False",
    ),
    human_eval(
        4, "longest(words: List[str]):",
        "if not words:\n    return None\nreturn max(words, key=len)",
        "([]) == None", "(['a', 'bcd', 'ef']) == 'bcd'",
    ),
    human_eval(
        5, "count(text: str) -> dict:",
        "found = {}\nfor one in text:\n    found[one] = found.get(one, 0) + 1\nreturn found",
        "('abca') == {'a': 2, 'b': 1, 'c': 1}",
    ),
]  # fmt: skip


def packed(cases: list[dict[str, str]]) -> str:
    """As LiveCodeBench hides its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def live_code_bench(
    name: str, solution: str, cases: list[tuple[str, str]], method: str | None = None
) -> dict[str, Any]:
    """A line in LiveCodeBench's layout, its last case private: whole programs, or a
    method."""
    kind = "stdin" if method is None else "functional"
    tests = [
        {"input": given, "output": wanted, "testtype": kind} for given, wanted in cases
    ]
    starter = (
        ""
        if method is None
        else f"class Solution:\n    def {method}(self, xs):\n        "
    )
    return {
        "question_id": name,
        "question_content": "Solve it.",
        "starter_code": starter,
        "metadata": json.dumps({} if method is None else {"func_name": method}),
        "public_test_cases": json.dumps(tests[:-1]),
        "private_test_cases": packed(tests[-1:]),
        "solution": solution,
    }


LIVE_CODE_BENCH = [
    live_code_bench(
        "sum", "print(sum(map(int, input().split())))", [("1 2\n", "3\n"), ("4 5 6\n", "15\n")]
    ),
    live_code_bench(
        "lines", "import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1])",
        [("ab\ncd\n", "ba\ndc"), ("x\n", "x \n")],
    ),
    live_code_bench(
        "total", "class Solution:\n    def total(self, xs):\n        return sum(xs)",
        [("[1, 2]", "3"), ("[]", "0")], "total",
    ),
    live_code_bench(
        "pairs", "class Solution:\n    def pairs(self, xs, k):\n"
        "        return [(x, x + k) for x in xs if x + k in xs]",
        [("[1, 2, 3]\n1", "[[1, 2], [2, 3]]"), ("[5]\n1", "[]")], "pairs",
    ),
]  # fmt: skip


def written(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    "lines", [HUMAN_EVAL, LIVE_CODE_BENCH], ids=["HumanEval", "LiveCodeBench"]
)
def test_canonical_solutions_pass_and_mutated_ones_fail(
    lines: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        written(tmp_path / "data.jsonl", lines),
        "--allow_unsafe_code",
        "--seconds",
        "60",
    ]
    code, said = main(words), capsys.readouterr().out
    assert (
        said == f"{len(lines)} right, {len(lines)} mutated; 0 graded wrongly\n"
        and code == 0
    )


def test_solutions_in_a_file_of_their_own_and_wrong_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = [
        {k: v for k, v in line.items() if k != "solution"}
        for line in LIVE_CODE_BENCH[:3]
    ]
    solutions = [
        {"question_id": "sum", "solution": LIVE_CODE_BENCH[0]["solution"]},
        {"question_id": "lines", "solution": "print('other')"},
    ]
    data = written(tmp_path / "data.jsonl", bare)
    given = written(tmp_path / "solutions.jsonl", solutions)
    assert (
        main([data, "--solutions", given, "--allow_unsafe_code", "--seconds", "60"])
        == 1
    )
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "lines: right, but graded otherwise: case 0: other output"
    assert said[-1] == "2 right, 2 mutated, 1 without a solution; 1 graded wrongly"


def test_a_mutation_changes_what_every_function_returns() -> None:
    made = mutated("def f(x):\n    if x:\n        return 1\n    return", prints=False)
    assert made.count("return [") == 2
