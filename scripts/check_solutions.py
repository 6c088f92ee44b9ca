"""Grade a data set of programming problems by its own solutions: the canonical ones
must pass, and mutated ones must fail.

    python scripts/check_solutions.py HumanEval.jsonl
    python scripts/check_solutions.py livecodebench.jsonl --solutions solutions.jsonl

HumanEval has `canonical_solution`. LiveCodeBench has none: give them in a file with
`question_id` and `solution` per line, or put `solution` into the data set. Problems
without one are counted, not graded. The exit code is 1 where a grade is not what it
should be.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lr.measure.datasets import read_item, read_lines
from lr.measure.grading import Grader
from lr.measure.sandbox import SandboxLimits, open_sandbox


class Altered(ast.NodeTransformer):
    """Every function returns a list of what it should return."""

    def visit_Return(self, node: ast.Return) -> ast.Return:
        value = node.value or ast.Constant(None)
        return ast.Return(ast.List([value], ast.Load()))


def mutated(program: str, *, prints: bool) -> str:
    """The program with one fault: it `prints` a word too many, or its functions return
    lists."""
    if prints:
        return f"print('mutated')\n{program}"
    return ast.unparse(ast.fix_missing_locations(Altered().visit(ast.parse(program))))


def solution_of(line: dict[str, Any], others: dict[str, str]) -> str | None:
    """The whole program that solves a problem, or None where nobody gives one."""
    if line.get("canonical_solution") is not None:
        return f"{line['prompt']}{line['canonical_solution']}"
    return line.get("solution") or others.get(str(line.get("question_id")))


def grades(
    lines: Sequence[dict[str, Any]], others: dict[str, str], grader: Grader
) -> Iterator[tuple[str, str, bool, str]]:
    """For every solution and its mutation: the problem, which of the two, whether the
    grade is what it should be, and the grader's reason."""
    for number, line in enumerate(lines):
        item, program = read_item(line, number), solution_of(line, others)
        if program is None:
            yield item.name or str(number), "without a solution", True, ""
            continue
        prints = item.tests is not None and item.tests.check is None
        for kind, code in (
            ("right", program),
            ("mutated", mutated(program, prints=prints)),
        ):
            grade = grader.grade(item, f"```python\n{code}\n```")
            yield (
                item.name or str(number),
                kind,
                grade.right is (kind == "right"),
                grade.why,
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade the file; the return value is the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", type=Path, help="JSONL in the layout of HumanEval or LiveCodeBench"
    )
    parser.add_argument(
        "--solutions", type=Path, help="JSONL with question_id and solution"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="for one program")
    parser.add_argument(
        "--allow_unsafe_code", action="store_true", help="without bubblewrap"
    )
    asked = parser.parse_args(arguments)
    others = {} if asked.solutions is None else {
        str(line["question_id"]): str(line["solution"]) for line in read_lines(asked.solutions)
    }  # fmt: skip
    seen, wrong = Counter[str](), 0
    box = open_sandbox(SandboxLimits(asked.seconds), unsafe=asked.allow_unsafe_code)
    for name, kind, good, why in grades(read_lines(asked.file), others, Grader(box)):
        seen[kind] += 1
        if not good:
            wrong += 1
            print(f"{name}: {kind}, but graded otherwise: {why}")
    print(
        f"{', '.join(f'{count} {kind}' for kind, count in seen.items())}; {wrong} graded wrongly"
    )
    return 1 if wrong or not seen["right"] else 0


if __name__ == "__main__":
    sys.exit(main())
