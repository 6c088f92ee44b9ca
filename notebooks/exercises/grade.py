"""The grader: says in a sentence whether an answer is right, and if not, what it
behaves like.

    make grade EX=residual             # grades your residual.py
    make grade EX=residual HINT=1      # with a hint for the check that failed
    python notebooks/exercises/grade.py residual --file notebooks/exercises/solutions/residual.py

It stops at the first check that fails. The answer is then compared with the collected
`mistakes` on the examples of its grader: where it does the same as one of them, that
one is named.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

import torch  # noqa: E402
from exercise_kit import Wrong  # noqa: E402

EXERCISES = (
    "residual", "block_verification", "copy_on_write", "accept_rule", "at_the_root", "controller",
    "verifier",
)  # fmt: skip
SECONDS = 60
"""What a check may take: an endless loop gets a sentence too."""
ALIKE = 0.9
"""From this share of the examples on an answer is said to behave like a mistake."""


class TooLongError(BaseException):
    """A check took more than SECONDS; no `except Exception` on the way may swallow
    it."""


def load(path: Path) -> ModuleType:
    """A file as a module, loaded anew."""
    spec = importlib.util.spec_from_file_location(f"answer_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raises `TooLongError` inside after so many seconds, where the system can."""

    def over(*_: object) -> None:
        raise TooLongError

    able = (
        hasattr(signal, "SIGALRM")
        and threading.current_thread() is threading.main_thread()
    )
    before = signal.signal(signal.SIGALRM, over) if able else None
    if able:
        signal.alarm(seconds)
    try:
        yield
    finally:
        if able:
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
    frames = [
        one
        for one in traceback.extract_tb(error.__traceback__)
        if one.filename == str(path)
    ]
    where = f" in line {frames[-1].lineno}, `{frames[-1].line}`" if frames else ""
    return f"Your code raised {type(error).__name__}{where}: {error}"


def same(one: object, other: object) -> bool:
    """Whether two results are equal, numbers and tensors up to rounding."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.allclose(
            one, other, atol=1e-9, equal_nan=True
        )
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, abs_tol=1e-9) and isinstance(
            one, bool
        ) == isinstance(other, bool)
    return type(one) is type(other) and bool(one == other)


def behaviour(grader: ModuleType, answer: ModuleType) -> dict[str, object]:
    """What an answer does on the grader's examples; those that it does not survive are
    left out."""
    found: dict[str, object] = {}
    try:
        with at_most(SECONDS):
            found.update(grader.examples(answer))
    except (Exception, TooLongError):
        pass  # what it raised was said already; the examples before it still compare
    return found


@cache
def known_behaviour(grader: ModuleType, path: Path) -> dict[str, object]:
    """What a file of ours does on the grader's examples."""
    return behaviour(grader, load(path))


def known_mistakes(name: str) -> list[Path]:
    """The collected mistakes of an exercise."""
    found = sorted((HERE / "mistakes").glob(f"{name}_*.py"))
    return [path for path in found if path.stem.startswith(f"{name}_")]


def likeness(name: str, grader: ModuleType, answer: ModuleType) -> Path | None:
    """The known mistake that does the same on nearly all of the examples on which one of
    the two is wrong; None if there is none."""
    right = known_behaviour(grader, HERE / "solutions" / f"{name}.py")
    mine = behaviour(grader, answer)
    best: tuple[float, str, Path] | None = None
    for path in known_mistakes(name):
        theirs = known_behaviour(grader, path)
        places = [
            place
            for place in right.keys() & mine.keys()
            if place in theirs
            and not (
                same(mine[place], right[place]) and same(theirs[place], right[place])
            )
        ]
        agree = sum(same(mine[place], theirs[place]) for place in places)
        share = agree / len(places) if places else 0.0
        if best is None or share > best[0]:
            best = (share, path.stem, path)
    return best[2] if best and best[0] >= ALIKE else None


def about(path: Path, name: str) -> str:
    """A mistake's name in words, and the first sentence about it."""
    words = path.stem.removeprefix(f"{name}_").replace("_", " ")
    told = " ".join((load(path).__doc__ or "").split())
    return f"{words} — {told}"


def trouble(
    grader: ModuleType, path: Path
) -> tuple[int, str, float | None, ModuleType | None]:
    """How many checks pass, then what is wrong with the next ("" if nothing), its bias,
    and the answer if it could be loaded.
    """
    try:
        with at_most(SECONDS):
            answer = load(path)
    except (Exception, TooLongError) as error:
        return 0, in_a_sentence(error, path), None, None
    for passed, check in enumerate(grader.CHECKS):
        try:
            with at_most(SECONDS):
                check.run(answer)
        except Wrong as wrong:
            return passed, str(wrong), wrong.bias, answer
        except (NotImplementedError, TooLongError) as error:
            return passed, in_a_sentence(error, path), None, None
        except Exception as error:
            return passed, in_a_sentence(error, path), None, answer
    return len(grader.CHECKS), "", None, answer


def grade(name: str, path: Path, *, hint: bool = False) -> Iterator[str]:
    """What the teacher says about an answer, line by line."""
    grader = importlib.import_module(f"graders.{name}")
    passed, wrong, bias, answer = trouble(grader, path)
    for check in islice(grader.CHECKS, passed):
        yield f"  ✓ {check.tests}"
    if not wrong:
        yield f"\nWell done! {grader.PRAISE}"
        if grader.NEXT:
            yield f"Next: notebooks/exercises/{grader.NEXT}.py, then make grade EX={grader.NEXT}"
        else:
            yield "That was the last one. Now write a variant: notebooks/07_prototype_a_variant"
        return
    failed = grader.CHECKS[passed]
    yield f"  ✗ {failed.tests}"
    yield f"\n{wrong}"
    alike = likeness(name, grader, answer) if answer else None
    if alike or bias:
        far = "" if bias is None else f"{bias:.2f}" if bias >= 0.01 else f"{bias:.1g}"
        off = f" (biased by {far} on this example)" if bias and bias > 1e-9 else ""
        if alike:
            yield f"Your answer behaves like: {about(alike, name)}{off}"
        else:
            yield f"Your answer is none of the known mistakes{off}."
    if hint:
        yield f"Hint: {failed.hint}"
    elif answer and path == HERE / f"{name}.py":
        yield f"For a hint: make grade EX={name} HINT=1"
    elif answer:
        yield f"For a hint: python notebooks/exercises/grade.py {name} --file {path.name} --hint"


def main() -> int:
    """The command line; 0 if the answer is right."""
    parser = argparse.ArgumentParser(description="Grade an exercise.")
    parser.add_argument("exercise", choices=EXERCISES)
    parser.add_argument(
        "--file", type=Path, help="the answer (default: your file of that name)"
    )
    parser.add_argument(
        "--hint", action="store_true", help="with a hint for what failed"
    )
    said = parser.parse_args()
    path = (said.file or HERE / f"{said.exercise}.py").resolve()
    if not path.is_file():
        parser.error(f"there is no file {path}: give the path of your answer")
    lines = list(grade(said.exercise, path, hint=said.hint))
    print(f"{said.exercise}: {path.name}", *lines, sep="\n")
    return int(any(line.startswith("  ✗") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
