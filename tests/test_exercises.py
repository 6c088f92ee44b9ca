"""The exercises of `notebooks/exercises`: the solutions pass their graders, the empty exercises and
the collected mistakes do not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

from tests_root import ROOT

FOLDER = ROOT / "notebooks" / "exercises"
NAMES = sorted(path.stem for path in (FOLDER / "solutions").glob("*.py"))
MISTAKES = sorted(path.stem for path in (FOLDER / "mistakes").glob("*.py"))


def graded(whose: str, report: Path) -> dict[str, list[str | None]]:
    """Run all graders as a student would; by answer, what went wrong in each of its tests (None:
    nothing).
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--tb=short",
        "--assert=plain",
    ]
    inherited = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *inherited]),
        "PYTEST_ADDOPTS": "",
    }
    done = subprocess.run(
        [*command, str(FOLDER), f"--grade={whose}", f"--junitxml={report}"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = defaultdict[str, list[str | None]](list)
    for case in ElementTree.parse(report).iter("testcase"):
        answer = case.attrib["name"].partition("[")[2].rstrip("]")
        known = [
            name for name in (*NAMES, *MISTAKES) if answer == name or name in answer.split("-")
        ]
        trouble = [*case.iter("failure"), *case.iter("error")]
        found[known[0]].append(trouble[0].attrib.get("message", "") if trouble else None)
    return found


def test_every_exercise_has_all_that_belongs_to_it() -> None:
    assert sorted(path.stem.removeprefix("test_") for path in FOLDER.glob("test_*.py")) == NAMES
    assert all((FOLDER / f"{name}.py").is_file() for name in NAMES)
    for name in NAMES:
        assert sum(mistake.startswith(f"{name}_") for mistake in MISTAKES) >= 4, (
            f"few mistakes to make in {name}"
        )


def test_the_solutions_pass(tmp_path: Path) -> None:
    found = graded("solutions", tmp_path / "report.xml")
    assert sorted(found) == NAMES
    assert all(trouble is None for troubles in found.values() for trouble in troubles), found


def test_the_empty_exercises_fail_every_test_and_say_what_to_write(tmp_path: Path) -> None:
    found = graded("yours", tmp_path / "report.xml")
    assert sorted(found) == NAMES
    for name, troubles in found.items():
        assert troubles and all(
            trouble and f"in notebooks/exercises/{name}.py" in trouble for trouble in troubles
        ), name


def test_a_mistake_fails_some_test_and_passes_some(tmp_path: Path) -> None:
    """Plausible: it passes some; wrong: not all."""
    found = graded("mistakes", tmp_path / "report.xml")
    assert sorted(found) == MISTAKES
    unnoticed = [
        name
        for name, troubles in found.items()
        if not any(trouble is not None for trouble in troubles)
    ]
    absurd = [name for name, troubles in found.items() if None not in troubles]
    assert not unnoticed and not absurd
