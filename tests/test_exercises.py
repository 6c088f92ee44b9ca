"""The exercises of `notebooks/exercises` and their grader: solutions are praised, empty
exercises say what to write, collected mistakes fail and are named, and so are a
student's wrong answers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests_root import ROOT

FOLDER = ROOT / "notebooks" / "exercises"
NAMES = sorted(path.stem for path in (FOLDER / "solutions").glob("*.py"))


@pytest.fixture(scope="module")
def grader() -> Iterator[ModuleType]:
    """The module `grade`, which looks for its neighbours in its own folder."""
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    import grade

    yield grade
    sys.path[:] = before


def report(grader: ModuleType, name: str, path: Path, *, hint: bool = False) -> str:
    """All that the grader says."""
    return "\n".join(grader.grade(name, path, hint=hint))


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_is_praised_and_leads_on(grader: ModuleType, name: str) -> None:
    lines = report(grader, name, FOLDER / "solutions" / f"{name}.py")
    assert "✗" not in lines and "Well done!" in lines
    names = [*grader.EXERCISES, "07_prototype_a_variant"]
    assert names[names.index(name) + 1] in lines.splitlines()[-1]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_exercise_says_what_to_write(grader: ModuleType, name: str) -> None:
    lines = report(grader, name, FOLDER / f"{name}.py")
    assert f"in notebooks/exercises/{name}.py" in lines and "behaves like" not in lines


@pytest.mark.parametrize("name", NAMES)
def test_known_mistakes_fail_and_are_named(
    grader: ModuleType, tmp_path: Path, name: str
) -> None:
    mistakes = grader.MISTAKES[name]
    assert len(mistakes) == 2
    for mistake in mistakes:
        path = tmp_path / f"{name}.py"
        path.write_text(mistake.source(name), "utf-8")
        lines = report(grader, name, path, hint=True)
        assert lines.count("✗") == 1 and len(lines.splitlines()) <= 14
        assert f"Your answer behaves like: {mistake.name} — " in lines
        assert lines.splitlines()[-1].startswith("Hint: ")


def test_a_students_own_wording_of_a_mistake_is_named(
    grader: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "residual.py"
    path.write_text(
        "def accept_prob(p, q):\n    return p / q if p < q else 1\n"
        "def residual(p, q):\n    return 1 * p\n",
        "utf-8",
    )
    assert "behaves like: redraws from p — " in report(grader, "residual", path)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def accept_prob(p, q):\n    return p / 0\ndef residual(p, q):\n    return p\n",
         "Your code raised ZeroDivisionError in line 2, `return p / 0`: float division by zero"),
        ("def accept_prob(p, q:\n", "Python cannot read line 1 of residual.py"),
        ("def residual(p, q):\n    return p\n", "residual.py has no accept_prob"),
        ("import missing_package\n", "Your code raised ModuleNotFoundError in line 1"),
    ],
)  # fmt: skip
def test_an_error_is_a_sentence(
    grader: ModuleType, tmp_path: Path, source: str, sentence: str
) -> None:
    path = tmp_path / "residual.py"
    path.write_text(source, "utf-8")
    assert sentence in report(grader, "residual", path)


def test_an_endless_loop_is_a_sentence(
    grader: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grader, "SECONDS", 1)
    path = tmp_path / "residual.py"
    path.write_text("def accept_prob(p, q):\n    while True:\n        pass\n", "utf-8")
    assert "It took more than 1 seconds" in report(grader, "residual", path)


def test_the_command_line_has_no_traceback_and_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def accept_prob(p, q):\n    return [][0]\n", "utf-8")
    script = str(FOLDER / "grade.py")
    done = subprocess.run(
        [sys.executable, script, "residual", "--file", str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert "IndexError in line 2" in done.stdout and "--file mine.py" in done.stdout
