"""From a model's text to right or wrong: extraction and comparison by the task of the item.

What is wrong is told apart from what could not be judged: `why` says "no answer was found", "the
gold answer cannot be read", "time was up". A grade of None means that the task has no gold answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from lr.lab.eval.answers import chosen_letter, code_block, final_answer
from lr.lab.eval.equality import MathChecker, require_math_verify
from lr.lab.eval.items import CodeTests, Item, Task
from lr.lab.eval.jail import BROKEN
from lr.lab.eval.sandbox import Limits, Ran, Sandbox, open_sandbox

NOT_FOUND = "no answer was found"


@dataclass(frozen=True)
class Grade:
    """`right` is None where nothing can be graded. `answer` is what was found, `where` it stood,
    `why` it counts as it does.
    """

    right: bool | None
    answer: str | None
    where: str | None
    why: str


@dataclass
class Grader:
    """Grades texts. The process that compares mathematics is started when it is first needed;
    `close` ends it.

    `sandbox` runs programs; None: code is not graded (say so before a run, see `grader_for`).
    """

    sandbox: Sandbox | None = None
    checker: MathChecker = field(default_factory=MathChecker)

    def grade(self, item: Item, text: str) -> Grade:
        """The grade of what a model wrote, prompt excluded."""
        if item.task is Task.FREE:
            return Grade(None, None, None, "not graded: the problem has no gold answer")
        if item.task is Task.CODE:
            return self._code(item, text)
        found = chosen_letter(text) if item.task is Task.CHOICE else final_answer(text)
        if found is None:
            return Grade(False, None, None, NOT_FOUND)
        assert item.gold is not None, "tasks that are graded have a gold answer"
        if item.task is Task.CHOICE:
            right = found.answer == item.gold
            return Grade(
                right,
                found.answer,
                found.where,
                "the right letter" if right else f"the letter is {item.gold}",
            )
        if item.task is Task.WORD:
            right = found.answer.casefold().split() == item.gold.casefold().split()
            return Grade(
                right,
                found.answer,
                found.where,
                "the right word" if right else f"the word is {item.gold}",
            )
        compared = self.checker.compare(item.gold, found.answer)
        return Grade(compared.equal, found.answer, found.where, compared.why)

    def close(self) -> None:
        """End the process that compares."""
        self.checker.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _code(self, item: Item, text: str) -> Grade:
        found = code_block(text)
        if found is None:
            return Grade(False, None, None, NOT_FOUND)
        if self.sandbox is None or item.tests is None:
            return Grade(None, found.answer, found.where, "not graded: code was not run")
        program = whole_program(item, found.answer)
        verdict = _run_check if item.tests.check is not None else _run_cases
        right, why = verdict(self.sandbox, program, item.tests)
        return Grade(right, found.answer, found.where, why)


def grader_for(items: Sequence[Item], limits: Limits, *, unsafe: bool = False) -> Grader:
    """A grader with what these items need. Raises `SettingError` where that is math-verify or a
    sandbox, and there is none.
    """
    if any(item.task is Task.MATH for item in items):
        require_math_verify()
    needs_sandbox = any(item.task is Task.CODE for item in items)
    return Grader(open_sandbox(limits, unsafe=unsafe) if needs_sandbox else None)


def whole_program(item: Item, code: str) -> str:
    """The program to be tested. A reply that only continues the given code (no line of it defines
    the function again) goes behind it.
    """
    defined = [
        line.split("(")[0].strip()
        for line in item.starter.splitlines()
        if line.startswith(("def ", "class "))
    ]
    if not defined or any(name in code for name in defined[-1:]):
        imports = [
            line for line in item.starter.splitlines() if line.startswith(("import ", "from "))
        ]
        return "\n".join([*imports, code])
    return item.starter + code


def _run_check(sandbox: Sandbox, program: str, tests: CodeTests) -> tuple[bool, str]:
    """Program and check in one process. A word that only the end prints tells that the end was
    reached: `exit(0)` does not pass.
    """
    word = uuid4().hex
    ran = sandbox.run(f"{program}\n\n{tests.check}\nprint({word!r})\n")
    if ran.code == 0 and ran.output.rstrip().endswith(word):
        return True, "the tests pass"
    return False, _reason(ran)


def _run_cases(sandbox: Sandbox, program: str, tests: CodeTests) -> tuple[bool, str]:
    """One process per case, until one fails. Outputs are compared by their lines, white space at
    line ends and at the end left aside.
    """
    for number, (given, wanted) in enumerate(tests.cases):
        ran = sandbox.run(program, given)
        if ran.code != 0:
            return False, f"case {number}: {_reason(ran)}"
        if _lines(ran.output) != _lines(wanted):
            return False, f"case {number}: other output"
    return True, f"{len(tests.cases)} cases pass"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _reason(ran: Ran) -> str:
    if ran.code is None:
        return "time was up"
    if ran.code == BROKEN and "the sandbox could not be built" in ran.errors:
        return ran.last_error
    if ran.code < 0 or ran.code > 128:
        return f"ended by signal {-ran.code if ran.code < 0 else ran.code - 128}"
    return ran.last_error or (
        f"exit code {ran.code}" if ran.code else "it ended before its tests did"
    )
