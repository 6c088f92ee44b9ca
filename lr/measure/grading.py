"""From a model's text to right or wrong: find the answer, then compare it as the task
requires.

docs/evaluation.md says where the answer is looked for and what counts as equal. `why`
distinguishes wrong answers from those that could not be judged: "no answer was found",
"the gold answer cannot be read", "time was up". Read next: `sandbox.py`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from lr.errors import SettingError
from lr.measure.datasets import Item, Task
from lr.measure.sandbox import Sandbox, SandboxLimits, open_sandbox
from lr.result import boxed, reply

NOT_FOUND = "no answer was found"
WORKER = Path(__file__).with_name("math_worker.py")
_SAID = re.compile(
    r"(?:answer|result)\s*(?:is|=|:|equals)\s*:?\s*\**([^\n]+)", re.IGNORECASE
)
_GSM8K = re.compile(r"####\s*([^\n]+)")
_NUMBER = re.compile(
    r"(?<![\w.])-?\$?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+(?!\w))?(?:/\d+)?%?"
)
_LETTER = re.compile(
    r"(?:\\(?:text|mathrm|textbf)\{)?\s*\(?([A-Z])\)?(?:[.:)\s}].*)?", re.DOTALL
)
_CODE = re.compile(
    r"```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE
)
_PLAIN = re.compile(
    r"(-?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?:[eE]([+-]?\d{1,3}))?", re.ASCII
)
_POWER = re.compile(r"\s*\\(?:times|cdot)\s*10\^(?:(\d)$|\{([+-]?\d+)\})")
_BARE_CODE = re.compile(
    r"^\s*(def |import |from |class |return |print\()", re.MULTILINE
)


@dataclass(frozen=True)
class Found:
    """An answer and where it was found: "box", "mark" (#### 42), "said" (the answer is
    42), "number" (the last one), "code block", "text"."""

    answer: str
    where: str


def final_answer(text: str) -> Found | None:
    """The final answer of a mathematical solution, or None."""
    if box := boxed(text):
        return Found(box, "box")
    for pattern, where in ((_GSM8K, "mark"), (_SAID, "said")):
        if found := pattern.findall(text):
            said = found[-1].strip().rstrip(".*").strip()
            numbers = _NUMBER.findall(said)
            if where == "mark" or "$" in said or "\\" in said or not numbers:
                return Found(said.strip("$ "), where)
            return Found(numbers[0].strip("$"), where)
    numbers = _NUMBER.findall(text)
    return Found(numbers[-1].strip("$"), "number") if numbers else None


def chosen_letter(text: str) -> Found | None:
    """The chosen letter, or None. Example: "\\boxed{\\text{(B)}}", "the answer is (B)."
    and "B" at the end give "B"."""
    box, said = boxed(text), _SAID.findall(text)
    if box is not None or said:
        match = _LETTER.fullmatch(said[-1].strip(" *.") if box is None else box)
        return Found(match[1], "said" if box is None else "box") if match else None
    last = text.strip().rpartition("\n")[2].strip(" *.()")
    return Found(last, "text") if re.fullmatch("[A-Z]", last) else None


def code_block(text: str) -> Found | None:
    """The last Python block of a reply; the whole reply if it is code without a fence;
    or None."""
    if blocks := [block for block in _CODE.findall(text) if block.strip()]:
        return Found(blocks[-1], "code block")
    return Found(text, "text") if _BARE_CODE.search(text) else None


class MathChecker:
    """Compares answers as mathematics: plain numbers here, everything else with
    math-verify in a separate process (`math_worker.py`).

    `204`, `204.0`, `\\frac{408}{2}` and `204^\\circ` are equal. The gold answer comes
    first: math-verify reads the second one more leniently. A comparison that takes more
    than `seconds` counts as not equal, and says so. Use it from one thread, and `close`
    it."""

    def __init__(self, seconds: float = 10.0, worker: Path = WORKER) -> None:
        self.seconds, self.worker = seconds, worker
        self._process: subprocess.Popen[str] | None = None

    def compare(self, gold: str, answer: str) -> tuple[bool, str]:
        """Whether they are equal, and why. Raises `SettingError` if math-verify does
        not start."""
        numbers = plain_number(gold), plain_number(answer)
        if None not in numbers:
            equal = numbers[0] == numbers[1]
            return equal, "equal numbers" if equal else "different numbers"
        if gold.strip() == answer.strip():
            return True, "the same text"
        said = self._ask({"gold": gold, "answer": answer})
        if said is None:
            return (
                False,
                f"comparing took more than {self.seconds:g} s or too much memory",
            )
        for which, name in (("gold", "gold answer"), ("answer", "answer")):
            if not said[f"{which}_read"]:
                return False, f"the {name} cannot be read as mathematics"
        return said["equal"], "equal" if said["equal"] else "not equal"

    def close(self) -> None:
        """End the process, if any. The next comparison starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError, ValueError):  # unwritten input is lost
                process.communicate()

    def _ask(self, question: dict[str, str]) -> dict[str, Any] | None:
        """The worker's answer, or None if it ended: its time was up, or it crashed."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(self.worker), str(self.seconds)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
            )  # fmt: skip
            if self._line() is None:
                raise SettingError(
                    "the process that compares answers did not start; try: python -c 'import "
                    "math_verify'. If that fails: pip install math-verify."
                )
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended; then no line comes
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


def plain_number(text: str) -> Fraction | None:
    """The value of a plain number, or None. Examples: "073", "$1,000.50", "1e5", "2
    \\times 10^{5}" and " 42. " are plain numbers; "50%", "1,2" and "\\frac12" are
    not."""
    text = (
        text.strip().rstrip(".").removeprefix("\\$").removeprefix("$").removesuffix("$")
    )
    match = _PLAIN.fullmatch(_POWER.sub(r"e\1\2", text.replace("{,}", ",")).strip())
    if match is None or len(match[2]) > 1000:
        return None
    value = Fraction(match[2].replace(",", "")) * Fraction(10) ** int(match[3] or 0)
    return -value if match[1] else value


@dataclass(frozen=True)
class Grade:
    """`right` None: cannot be graded. `answer` was found at `where`; `why`: the
    reason."""

    right: bool | None
    answer: str | None
    where: str | None
    why: str


@dataclass
class Grader(AbstractContextManager["Grader"]):
    """Grades texts. The process that compares mathematics starts when first needed, and
    ends with the `with` block. Without a `sandbox` code is not graded (see
    `grader_for`)."""

    sandbox: Sandbox | None = None
    checker: MathChecker = field(default_factory=MathChecker)

    def grade(self, item: Item, text: str) -> Grade:
        """The grade of a model's text without the prompt; a thought in it does not
        count."""
        if item.task is Task.FREE:
            return Grade(None, None, None, "not graded: the problem has no gold answer")
        find = {Task.CHOICE: chosen_letter, Task.CODE: code_block}.get(
            item.task, final_answer
        )
        found = find(reply(text))
        if found is None:
            return Grade(False, None, None, NOT_FOUND)
        if item.task is Task.CODE:
            right, why = self._run(item, found.answer)
        else:
            assert item.gold is not None, "graded tasks have a gold answer"
            if item.task is Task.MATH:
                right, why = self.checker.compare(item.gold, found.answer)
            else:
                what = "letter" if item.task is Task.CHOICE else "word"
                right = found.answer.casefold().split() == item.gold.casefold().split()
                why = f"the right {what}" if right else f"the {what} is {item.gold}"
        return Grade(right, found.answer, found.where, why)

    def __exit__(self, *exception: object) -> None:
        self.checker.close()

    def _run(self, item: Item, code: str) -> tuple[bool | None, str]:
        """Whether a program passes its tests.

        With `check`, program and check run in one process, which must print a secret
        word at the end, so `exit(0)` does not pass. With `cases`, each case runs in a
        process until one fails; trailing white space, of lines and of the whole, does
        not count."""
        if self.sandbox is None or item.tests is None:
            return None, "not graded: code was not run"
        program = whole_program(item, code)
        if item.tests.check is not None:
            word = uuid4().hex
            ran = self.sandbox.run(
                f"{program}\n\n{item.tests.check}\nprint({word!r})\n"
            )
            passed = ran.code == 0 and ran.output.rstrip().endswith(word)
            return passed, "the tests pass" if passed else ran.reason
        for number, (given, wanted) in enumerate(item.tests.cases):
            ran = self.sandbox.run(program, given)
            if ran.code != 0:
                return False, f"case {number}: {ran.reason}"
            if _lines(ran.output) != _lines(wanted):
                return False, f"case {number}: other output"
        return True, f"{len(item.tests.cases)} cases pass"


def grader_for(
    items: Sequence[Item],
    limits: SandboxLimits,
    *,
    run_code: bool = False,
    unsafe: bool = False,
) -> Grader:
    """A grader with what these items need. Raises `SettingError` if they need
    math-verify and it is not installed, or if programs must run and the user did not
    allow it (`run_code`), or if this system cannot contain programs and the user did
    not accept that (`unsafe`)."""
    tasks = {item.task for item in items}
    if Task.MATH in tasks and find_spec("math_verify") is None:
        raise SettingError(
            "comparing answers needs math-verify: pip install math-verify."
        )
    if Task.CODE not in tasks:
        return Grader()
    if not (run_code or unsafe):
        raise SettingError(
            "grading these problems runs programs that a model wrote. That is off by default; give "
            "--run_code to allow it (docs/evaluation.md says what contains the programs)."
        )
    return Grader(open_sandbox(limits, unsafe=unsafe))


def whole_program(item: Item, code: str) -> str:
    """The program to test. Code that does not repeat the given definition is appended
    to it."""
    lines = item.starter.splitlines()
    defined = [
        line.split("(")[0].strip()
        for line in lines
        if line.startswith(("def ", "class "))
    ]
    if not defined or defined[-1] in code:
        imports = [line for line in lines if line.startswith(("import ", "from "))]
        return "\n".join([*imports, code])
    return item.starter + code


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
