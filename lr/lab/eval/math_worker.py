"""The process that decides whether two answers are equal as mathematics, one question per line; run
as a script, killed when it hangs.

math-verify (Apache-2.0) reads LaTeX into sympy and compares. Both can take for ever or eat the
memory on an answer such as 9^{9^{9^9}}, and math-verify's own time limit needs the main thread; so
this process has limits of its own and `equality.py` kills it from outside. It imports nothing of
this package, so that it can be run by its path.

Standard input: {"gold": ..., "answer": ...} per line. Standard output: {"ready": true} once, then
{"equal": ..., "gold_read": ..., "answer_read": ...} per line.
"""

from __future__ import annotations

import ctypes
import json
import logging
import re
import sys
from typing import Any

MEMORY = 4 << 30
CPU_SECONDS = 20
PARENT_DEATH_SIGNAL, SIGKILL = 1, 9


def main() -> None:
    """Answer until the input ends."""
    limit()
    logging.disable(logging.CRITICAL)
    with open(0, encoding="utf-8") as questions, open(1, "w", encoding="utf-8") as answers:

        def say(message: dict[str, Any]) -> None:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

        from math_verify import parse, verify

        say({"ready": True})
        for line in questions:
            asked = json.loads(line)
            renew_cpu()
            try:
                gold, answer = (
                    parse(boxed(asked[key]), parsing_timeout=None) for key in ("gold", "answer")
                )
                equal = bool(gold and answer and verify(gold, answer, timeout_seconds=None))
                say({"equal": equal, "gold_read": bool(gold), "answer_read": bool(answer)})
            except Exception as error:  # whatever a parser may raise: the answer is not equal, and the next question comes
                say(
                    {
                        "equal": False,
                        "gold_read": True,
                        "answer_read": False,
                        "error": type(error).__name__,
                    }
                )


def boxed(text: str) -> str:
    """The text as LaTeX that is read as a whole, with the decorations taken off that are read as
    something else.
    """
    text = re.sub(r"\\(?:left|right|[,;:! ])(?![a-zA-Z])", "", text.strip().strip("$").rstrip("."))
    text = re.sub(r"°|\^\s*\{?\s*\\circ\s*\}?|\\degree", "", text)
    return "\\boxed{" + text + "}"


def limit() -> None:
    """No more memory than `MEMORY`, and no life after the parent's, where the system knows how."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, SIGKILL, 0, 0, 0)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def renew_cpu() -> None:
    """From now on `CPU_SECONDS` of computing, then the system ends this process."""
    if sys.platform != "win32":
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(
            resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_SECONDS, hard)
        )


if __name__ == "__main__":
    main()
