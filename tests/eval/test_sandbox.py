"""Programs behind walls: whatever they try, they are contained, graded wrong, and the next one
runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lr.errors import SettingError
from lr.lab.eval import sandbox as rooms
from lr.lab.eval.grading import Grader, whole_program
from lr.lab.eval.items import CodeTests, Item, Task
from lr.lab.eval.sandbox import CANDIDATES, NONE, Limits, Sandbox, Walls, holds, open_sandbox

HELD = [walls for walls in CANDIDATES if sys.platform == "linux" and holds(walls)]
LIMITS = Limits(seconds=3, memory_mb=400)
needs_walls = pytest.mark.skipif(
    not HELD, reason="this kernel has neither user namespaces nor Landlock with seccomp"
)

ATTACKS = {
    "endless loop": "while True: pass",
    "memory hog": "x = []\nwhile True: x.append(bytearray(10_000_000))",
    "many children": "import os\nfor _ in range(20): os.fork() == 0 and os._exit(0)",
    "a child": "import subprocess; subprocess.run([__import__('sys').executable, '-c', '1'], check=True)",
    "many threads": "import threading, time\nfor _ in range(500): threading.Thread(target=time.sleep, args=(60,)).start()",
    "write outside": "open({outside!r}, 'w').write('x')",
    "delete outside": "import os; os.remove({precious!r})",
    "chmod outside": "import os; os.chmod({precious!r}, 0o777)",
    "a link to outside": "import os; os.symlink({outside!r}, 'link'); open('link', 'w')",
    "a socket": "import socket; socket.socket()",
    "connect": "import socket; socket.create_connection(('127.0.0.1', 9), timeout=2)",
    "a signal": "import os, signal; os.kill({pid}, 0)",
    "much output": "import sys\nwhile True: sys.stdout.write('x' * 1_000_000)",
    "a large file": "f = open('large', 'wb')\nwhile True: f.write(bytes(1_000_000)); f.flush()",
    "leave early": "import sys; sys.exit(0)",
    "leave at once": "import os; os._exit(0)",
}


@needs_walls
@pytest.mark.parametrize("walls", HELD, ids=str)
def test_every_attack_is_contained_and_the_run_goes_on(walls: Walls, tmp_path: Path) -> None:
    precious, outside = tmp_path / "precious", tmp_path / "outside"
    precious.write_text("kept", encoding="utf-8")
    grader = Grader(Sandbox(walls, Limits(seconds=0.7, memory_mb=300)))
    item = Item(0, "?", Task.CODE, tests=CodeTests("assert f() == 1"))
    for name, attack in ATTACKS.items():
        program = attack.format(outside=str(outside), precious=str(precious), pid=os.getpid())
        started = time.perf_counter()
        grade = grader.grade(item, f"```python\n{program}\ndef f(): return 1\n```")
        assert grade.right is False, f"{name}: {grade.why}"
        assert grade.why and "could not be built" not in grade.why, f"{name}: {grade.why}"
        assert time.perf_counter() - started < 10, name
    assert precious.read_text(encoding="utf-8") == "kept" and precious.stat().st_mode & 0o002 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious"]
    assert grader.grade(item, "```python\ndef f(): return 1\n```").right is True


@needs_walls
def test_nothing_of_a_program_is_alive_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a place of its own: other tests run programs at the same time."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nwhile True: pass"
    assert Sandbox(HELD[0], Limits(seconds=1)).run(program).code is None
    folders = [
        path
        for path in Path("/proc").glob("[0-9]*/cwd")
        if _target(path).startswith(str(Path(tempfile.gettempdir(), "lr-code-")))
    ]
    assert not folders


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


@needs_walls
def test_programs_that_behave_work_as_usual() -> None:
    box = open_sandbox(LIMITS)
    ran = box.run(
        "import sys, json, threading\nopen('own', 'w').write('x')\nprint(sum(map(int, sys.stdin)))",
        "1\n2\n",
    )
    assert (ran.code, ran.output) == (0, "3\n"), ran.errors
    assert "ZeroDivisionError" in box.run("1 / 0").last_error
    assert box.run("import os; print(sorted(os.environ))").output.count("'") <= 14, (
        "none of our environment"
    )


@needs_walls
def test_code_is_graded_by_its_tests() -> None:
    grader = Grader(open_sandbox(LIMITS))
    starter = "from math import floor\n\ndef half(x):\n    '''Half of x.'''\n"
    item = Item(
        0,
        starter,
        Task.CODE,
        tests=CodeTests("def check(f):\n    assert f(5) == 2\ncheck(half)\n"),
        starter=starter,
    )
    assert (
        grader.grade(item, "```python\ndef half(x):\n    return floor(x / 2)\n```").right is True
    ), "the imports that were given"
    assert grader.grade(item, "```python\n    return floor(x / 2)\n```").right is True, (
        "a continuation"
    )
    wrong = grader.grade(item, "```python\ndef half(x):\n    return x\n```")
    assert wrong.right is False and "AssertionError" in wrong.why
    assert grader.grade(item, "I cannot.").right is False
    cases = Item(0, "Add.", Task.CODE, tests=CodeTests(cases=(("1 2", "3\n"), ("2 2", "4"))))
    assert (
        grader.grade(cases, "```python\nprint(sum(map(int, input().split())))\n```").right is True
    )
    bad = grader.grade(cases, "```python\nprint(3)\n```")
    assert bad.right is False and bad.why == "case 1: other output"


def test_whole_programs() -> None:
    item = Item(0, "", Task.CODE, starter="def f(x):\n")
    assert whole_program(item, "    return x\n") == "def f(x):\n    return x\n"
    assert whole_program(item, "def f(x): return 1") == "def f(x): return 1"


def test_without_walls_code_is_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "CANDIDATES", ())
    with pytest.raises(SettingError, match="--allow_unsafe_code"):
        open_sandbox(LIMITS)
    box = open_sandbox(LIMITS, unsafe=True)
    assert box.walls == NONE
    assert box.run("print(1)").output == "1\n"
    assert box.run("x = []\nwhile True: x.append(bytearray(10_000_000))").code != 0, (
        "the limits hold all the same"
    )


def test_a_wall_that_is_missing_is_noticed() -> None:
    """The probe runs in a sandbox without walls, and gets out."""
    assert not holds(NONE)
    assert str(Walls(True, False, True)) == "namespaces + seccomp"


@pytest.mark.parametrize(("seconds", "memory"), [(0, 400), (-1, 400), (1, 10)])
def test_impossible_limits(seconds: float, memory: int) -> None:
    with pytest.raises(SettingError):
        Limits(seconds, memory)
