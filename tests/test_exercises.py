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
MISTAKES = sorted(path.stem for path in (FOLDER / "mistakes").glob("*.py"))
NAMES = sorted(path.stem for path in (FOLDER / "solutions").glob("*.py"))

WRONG: list[tuple[str, str, str, str]] = [
    # exercise, the mistake to be named, and a change of the solution that makes it
    ("residual", "redraws from p", "due / total if total > 0 else p", "p.clone()"),
    ("block_verification", "plain residual",
     "        found.append((left * cut, due / surplus if surplus > 0 else p_rows[i]))",
     "        law = (p_rows[i] - q_rows[i]).relu()\n"
     "        found.append((left * cut, law / law.sum() if law.any() else p_rows[i]))"),
    ("copy_on_write", "never copies", "must_copy = count > 0 and", "must_copy = count < 0 and"),
    ("accept_rule", "first in time", "            return Decide.WAIT\n        if aligned",
     "            if True in verdicts:\n                return verdicts.index(True)\n"
     "            return Decide.WAIT\n        if aligned"),
    ("accept_rule", "gives up early", " and not drafts_to_come", ""),
    ("at_the_root", "compares when the target is late", "[number] if self.target else []", "[]"),
    ("at_the_root", "decides twice", "        if self.over:\n", "        if False:\n"),
    ("controller", "gives up", "max(1, sync_best_k(rate, COST) - 1)",
     "sync_best_k(rate, COST) - 1"),
    ("controller", "never forgets", "MEMORY**judged", "1.0"),
    ("verifier", "numbers alone", "return names, numbers, thing, len(numbers) > 1 and _adds(step)",
     "return tuple(numbers)"),
    ("verifier", "roles forgotten", "    if GETS & set(words):\n        names.reverse()\n",
     "    names.sort()\n"),
]  # fmt: skip


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


def test_every_exercise_has_all_that_belongs_to_it(grader: ModuleType) -> None:
    assert sorted(grader.EXERCISES) == NAMES
    for name in NAMES:
        assert (FOLDER / f"{name}.py").is_file()
        assert (FOLDER / "graders" / f"{name}.py").is_file()
        assert len(grader.known_mistakes(name)) == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_is_praised_and_leads_on(grader: ModuleType, name: str) -> None:
    lines = report(grader, name, FOLDER / "solutions" / f"{name}.py")
    assert "✗" not in lines and "Well done!" in lines
    place = grader.EXERCISES.index(name) + 1
    following = [*grader.EXERCISES, "07_prototype_a_variant"][place]
    assert following in lines.splitlines()[-1]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_exercise_says_what_to_write(grader: ModuleType, name: str) -> None:
    lines = report(grader, name, FOLDER / f"{name}.py")
    assert f"in notebooks/exercises/{name}.py" in lines and "behaves like" not in lines


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_fails_and_is_named(grader: ModuleType, mistake: str) -> None:
    name = max((one for one in NAMES if mistake.startswith(f"{one}_")), key=len)
    lines = report(grader, name, FOLDER / "mistakes" / f"{mistake}.py")
    assert lines.count("✗") == 1 and len(lines.splitlines()) <= 12
    words = mistake.removeprefix(f"{name}_").replace("_", " ")
    assert f"Your answer behaves like: {words} — " in lines


@pytest.mark.parametrize(("name", "mistake", "old", "new"), WRONG)
def test_a_students_wrong_answer_is_named(
    grader: ModuleType, tmp_path: Path, name: str, mistake: str, old: str, new: str
) -> None:
    solution = (FOLDER / "solutions" / f"{name}.py").read_text("utf-8")
    assert solution.count(old) == 1, f"the solution of {name} has no {old!r}"
    path = tmp_path / f"{name}.py"
    path.write_text(solution.replace(old, new), "utf-8")
    lines = report(grader, name, path, hint=True)
    assert lines.count("✗") == 1
    [named] = [line for line in lines.splitlines() if "behaves like" in line]
    assert f": {mistake} — " in named
    assert lines.splitlines()[-1].startswith("Hint: ")


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
