"""A script that decides whether two answers are equal as mathematics; it ends itself if
it hangs.

math-verify (Apache-2.0) reads LaTeX into sympy and compares. On an answer such as
9^{9^{9^9}} both can run for ever or exhaust the memory, and math-verify's own time
limit does not interrupt a long computation in C. So this process has a memory limit,
and a watchdog outside of Python that ends it after the seconds given as its argument.
It imports nothing of this package: it is run by its path.

Standard input: {"gold": ..., "answer": ...} per line. Standard output: {"ready": true}
once, then {"equal": ..., "gold_read": ..., "answer_read": ...} per line."""

from __future__ import annotations

import faulthandler
import json
import logging
import re
import sys

MEMORY = 4 << 30  # Bytes of address space.
START_SECONDS = 120.0  # sympy is large, and a machine may be busy.


def main() -> None:
    """Answer until the input ends, as it does when the parent process ends."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    with (
        open(0, encoding="utf-8") as questions,
        open(1, "w", encoding="utf-8") as answers,
    ):
        from math_verify import parse, verify

        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in questions:
            asked, said = json.loads(line), {"equal": False}
            faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
            try:
                gold = parse(boxed(asked["gold"]), parsing_timeout=None)
                answer = parse(boxed(asked["answer"]), parsing_timeout=None)
                said |= {"gold_read": bool(gold), "answer_read": bool(answer)}
                said["equal"] = bool(
                    gold and answer and verify(gold, answer, timeout_seconds=None)
                )
            except Exception:  # a parser may raise anything: not equal
                said = {"equal": False, "gold_read": True, "answer_read": False}
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(said), file=answers, flush=True)


def boxed(text: str) -> str:
    """The text as LaTeX that math-verify reads as a whole, without marks that it would
    misread."""
    text = re.sub(
        r"\\(?:left|right|[,;:! ])(?![a-zA-Z])", "", text.strip().strip("$").rstrip(".")
    )
    text = re.sub(r"°|\^\s*\{?\s*\\circ\s*\}?|\\degree", "", text)
    return "\\boxed{" + text + "}"


if __name__ == "__main__":
    main()
