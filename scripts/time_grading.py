"""How long grading takes: 10,000 answers, the replies in `tests/measure` over and over.

    python scripts/time_grading.py [NUMBER]

The process that compares mathematics starts before the clock does."""

from __future__ import annotations

import json
import sys
import time
from itertools import cycle, islice
from pathlib import Path

from lr.measure.datasets import Item, Task, gold_answer
from lr.measure.grading import Grader

DATA = Path(__file__).parents[1] / "tests" / "measure"


def main() -> None:
    """Grade, and print the time."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rows = []
    for name in ("replies.jsonl", "sentences.jsonl", "math_verify.jsonl"):
        lines = DATA.joinpath(name).read_text("utf-8").split("\n")
        rows += [json.loads(line) for line in lines if line]
    with Grader() as grader:
        grader.compare("x", "y")
        started = time.perf_counter()
        for row in islice(cycle(rows), number):
            item = Item(0, "?", Task.MATH, gold_answer(row["gold"]))
            grader.grade(item, row["reply"])
        seconds = time.perf_counter() - started
    print(f"{number} answers graded in {seconds:.1f} s ({number / seconds:.0f} per s)")


if __name__ == "__main__":
    main()
