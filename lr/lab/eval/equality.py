"""Are two answers equal as mathematics? Plain numbers are compared here, everything else by
math-verify in a process of its own that may end (`math_worker.py`).

`204`, `204.0`, `\\frac{408}{2}` and `204^\\circ` are equal. The gold answer comes first:
math-verify reads the second one more leniently."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lr.errors import SettingError

WORKER = Path(__file__).with_name("math_worker.py")
_NUMBER = re.compile(r"(-?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?:[eE]([+-]?\d{1,3}))?", re.ASCII)
_POWER = re.compile(r"\s*\\(?:times|cdot)\s*10\^(?:(\d)$|\{([+-]?\d+)\})")


class MathChecker(contextlib.AbstractContextManager["MathChecker"]):
    """Compares answers; good for any number of them, from one thread. `close` it at the end, or use
    it in a `with` block. A comparison of more than `seconds` counts as not equal, and says so."""

    def __init__(self, seconds: float = 10.0, worker: Path = WORKER) -> None:
        self.seconds, self.worker = seconds, worker
        self._process: subprocess.Popen[str] | None = None

    def compare(self, gold: str, answer: str) -> tuple[bool, str]:
        """Whether `answer` is equal to `gold`, and why. Raises `SettingError` if math-verify is
        needed and missing."""
        numbers = plain_number(gold), plain_number(answer)
        if None not in numbers:
            equal = numbers[0] == numbers[1]
            return equal, "equal numbers" if equal else "different numbers"
        if gold.strip() == answer.strip():
            return True, "the same text"
        said = self._ask({"gold": gold, "answer": answer})
        if said is None:
            return False, f"comparing took more than {self.seconds:g} s or too much memory"
        for which, name in (("gold", "gold answer"), ("answer", "answer")):
            if not said[f"{which}_read"]:
                return False, f"the {name} cannot be read as mathematics"
        return said["equal"], "equal" if said["equal"] else "not equal"

    def close(self) -> None:
        """End the process, if there is one. Another comparison starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(OSError, ValueError):  # what was not written yet is lost
                process.communicate()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, question: dict[str, str]) -> dict[str, Any] | None:
        """The worker's answer, or None if it ended instead: its time was up, or it crashed."""
        if self._process is None:
            require_math_verify()
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(self.worker), str(self.seconds)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
            )  # fmt: skip
            if self._line() is None:
                raise SettingError(
                    "the process that compares answers did not start; try: python -c 'import "
                    "math_verify'. Reinstall math-verify if that fails."
                )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died; then no line comes
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any] | None:
        """The next line of the worker; None if it has ended."""
        assert self._process is not None and self._process.stdout is not None
        if line := self._process.stdout.readline():
            said: dict[str, Any] = json.loads(line)
            return said
        self.close()
        return None


def require_math_verify() -> None:
    """Raises `SettingError` if math-verify is not installed."""
    if find_spec("math_verify") is None:
        raise SettingError(
            "comparing answers needs math-verify, which is not installed: pip install math-verify."
        )


def plain_number(text: str) -> Fraction | None:
    """The value of a plain number, or None. Example: "073", "$1,000.50", "1e5", "2 \\times
    10^{5}" and " 42. " are; "50%", "1,2" and "\\frac12" are not."""
    text = text.strip().rstrip(".").removeprefix("\\$").removeprefix("$").removesuffix("$")
    match = _NUMBER.fullmatch(_POWER.sub(r"e\1\2", text.replace("{,}", ",")).strip())
    if match is None or len(match[2]) > 1000:
        return None
    value = Fraction(match[2].replace(",", "")) * Fraction(10) ** int(match[3] or 0)
    return -value if match[1] else value
