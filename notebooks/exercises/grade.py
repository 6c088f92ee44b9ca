"""The grader: says in a sentence whether an answer is right, and if not, what it
behaves like.

    make grade EX=residual             # grades your residual.py
    make grade EX=residual HINT=1      # with a hint for the check that failed
    python notebooks/exercises/grade.py residual --file notebooks/exercises/solutions/residual.py

It stops at the first check that fails. The answer is then compared with the collected
`mistakes.py` on the examples of its grader: where it does the same as one of them,
that one is named.
"""

from __future__ import annotations

import argparse
import importlib
import math
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from shlex import quote
from types import ModuleType

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

import torch  # noqa: E402
from exercise_kit import Check, Wrong  # noqa: E402
from mistakes import MISTAKES, Mistake  # noqa: E402

EXERCISES = tuple(MISTAKES)
SECONDS = 60
"""What a check may take: an endless loop gets a sentence too."""
READABLE = Check(
    "a file that Python can read", "Run it by itself: python FILE.", lambda _: None
)
"""The first check: what goes wrong while the file is loaded."""
ALIKE = 0.9
"""From this share of the examples on an answer is said to behave like a mistake."""


class TooLongError(BaseException):
    """A check took more than SECONDS; no `except Exception` on the way may swallow
    it."""


def load(path: Path, source: str | None = None) -> ModuleType:
    """A file as a module, loaded anew; `source`: instead of what the file holds."""
    module = ModuleType(f"answer_{path.stem}")
    text = path.read_text(encoding="utf-8") if source is None else source
    exec(compile(text, str(path), "exec"), vars(module))
    return module


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raises `TooLongError` inside after so many seconds, where the system can."""
    main_thread = threading.current_thread() is threading.main_thread()
    if not hasattr(signal, "SIGALRM") or not main_thread:
        yield
        return

    def over(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def in_a_sentence(error: BaseException, path: Path) -> str:
    """What went wrong in the student's file: the error and the line, no traceback."""
    if isinstance(error, TooLongError):
        return f"It took more than {SECONDS} seconds: is there a loop without an end?"
    if isinstance(error, NotImplementedError):
        return f"Nothing is written yet: {error}."
    if isinstance(error, SyntaxError):
        return f"Python cannot read line {error.lineno} of {path.name}: {error.msg}."
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return (
            f"{path.name} has no {error.name}: keep the names that the exercise gives."
        )
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if frame.filename == str(path)]
    line = f" in line {lines[-1].lineno}, `{lines[-1].line}`" if lines else ""
    return f"Your code raised {type(error).__name__}{line}: {error}"


def same(left: object, right: object) -> bool:
    """Whether two results are equal, numbers and tensors up to rounding."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        close = partial(torch.allclose, atol=1e-9, equal_nan=True)
        return left.shape == right.shape and close(left, right)
    if isinstance(left, float) or isinstance(right, float):
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        return numbers and math.isclose(left, right, abs_tol=1e-9)
    return type(left) is type(right) and bool(left == right)


def behaviour(grader: ModuleType, answer: ModuleType) -> dict[str, object]:
    """What an answer does on the grader's examples; those that it does not survive are
    left out."""
    results: dict[str, object] = {}
    # what it raises was said already; the examples before it still compare
    with suppress(Exception, TooLongError), at_most(SECONDS):
        for name, result in grader.examples(answer):
            results[name] = result
    return results


@cache
def known_behaviour(
    grader: ModuleType, name: str, mistake: Mistake | None = None
) -> dict[str, object]:
    """What the solution does on the grader's examples, or a mistake."""
    path = HERE / "solutions" / f"{name}.py"
    return behaviour(grader, load(path, mistake and mistake.source(name)))


def likeness(name: str, grader: ModuleType, answer: ModuleType) -> Mistake | None:
    """The known mistake that does the same on nearly all of the examples on which one of
    the two is wrong; None if there is none."""
    right = known_behaviour(grader, name)
    results = behaviour(grader, answer)
    shares: dict[Mistake, float] = {}
    for mistake in MISTAKES[name]:
        wrong = known_behaviour(grader, name, mistake)
        agree = [
            same(results[example], wrong[example])
            for example in right.keys() & results.keys() & wrong.keys()
            if not same(results[example], right[example])
            or not same(wrong[example], right[example])
        ]
        shares[mistake] = sum(agree) / len(agree) if agree else 0.0
    likest = max(MISTAKES[name], key=lambda mistake: shares[mistake])
    return likest if shares[likest] >= ALIKE else None


def first_failure(
    checks: Sequence[Check], path: Path
) -> tuple[int, str, float | None, ModuleType | None]:
    """How many checks pass, then what is wrong with the next ("" if nothing), its bias,
    and the answer if it can be compared with mistakes.
    """
    answer = None
    passed = 0
    try:
        with at_most(SECONDS):
            answer = load(path)
        for check in checks:
            with at_most(SECONDS):
                check.run(answer)
            passed += 1
    except Wrong as wrong:
        return passed, str(wrong), wrong.bias, answer
    except (NotImplementedError, TooLongError) as error:
        return passed, in_a_sentence(error, path), None, None
    except Exception as error:
        return passed, in_a_sentence(error, path), None, answer
    return passed, "", None, answer


def grade(name: str, path: Path, *, hint: bool = False) -> Iterator[str]:
    """What the teacher says about an answer, line by line."""
    grader = importlib.import_module(f"graders.{name}")
    checks = [value for value in vars(grader).values() if isinstance(value, Check)]
    checks.insert(0, READABLE)
    passed, wrong, bias, answer = first_failure(checks, path)
    for check in checks[:passed]:
        yield f"  ✓ {check.tests}"
    if not wrong:
        yield f"\nWell done! {grader.PRAISE}"
        if grader.NEXT:
            yield f"Next: notebooks/exercises/{grader.NEXT}.py, then make grade EX={grader.NEXT}"
        else:
            yield "That was the last one. Now write a variant: notebooks/07_prototype_a_variant"
        return
    failed = checks[passed]
    yield f"  ✗ {failed.tests}"
    yield f"\n{wrong}"
    mistake = likeness(name, grader, answer) if answer else None
    off = ""
    if bias and bias > 1e-9:
        digits = f"{bias:.2f}" if bias >= 0.01 else f"{bias:.1g}"
        off = f" (biased by {digits} on this example)"
    if mistake:
        yield f"Your answer behaves like: {mistake.name} — {mistake.why}{off}"
    elif bias:
        yield f"Your answer is none of the known mistakes{off}."
    if hint:
        yield f"Hint: {failed.hint}"
    elif answer and path == HERE / f"{name}.py":
        yield f"For a hint: make grade EX={name} HINT=1"
    elif answer:
        yield f"For a hint: python notebooks/exercises/grade.py {name} --file {quote(str(path))} --hint"


def main() -> int:
    """The command line; 0 if the answer is right."""
    parser = argparse.ArgumentParser(description="Grade an exercise.")
    parser.add_argument("exercise", choices=EXERCISES)
    file_help = "the answer (default: your file of that name)"
    parser.add_argument("--file", type=Path, help=file_help)
    hint_help = "with a hint for what failed"
    parser.add_argument("--hint", action="store_true", help=hint_help)
    flags = parser.parse_args()
    path = (flags.file or HERE / f"{flags.exercise}.py").resolve()
    if not path.is_file():
        parser.error(f"there is no file {path}: give the path of your answer")
    lines = list(grade(flags.exercise, path, hint=flags.hint))
    print(f"{flags.exercise}: {path.name}", *lines, sep="\n")
    return int(any(line.startswith("  ✗") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
