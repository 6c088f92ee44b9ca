"""Programs in the sandbox: whatever they try, they are contained, graded wrong, and the
next one runs. Without bubblewrap they are refused.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lr.errors import SettingError
from lr.measure.datasets import CodeTests, Item, Task
from lr.measure.grading import Grader, grader_for, whole_program
from lr.measure.sandbox import Sandbox, SandboxLimits, contains, open_sandbox

BWRAP = shutil.which("bwrap") if sys.platform == "linux" else None
CONTAINED = BWRAP is not None and contains(Sandbox(BWRAP, SandboxLimits(seconds=20)))
LIMITS = SandboxLimits(seconds=3, memory_mb=400)
needs_bwrap = pytest.mark.skipif(
    not CONTAINED, reason="bubblewrap is missing or does not work here"
)
needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="limits are tried on Linux only"
)

LIMITED = {
    "endless loop": "while True: pass",
    "memory hog": "x = []\nwhile True: x.append(bytearray(10_000_000))",
    "many children": "import os\nfor _ in range(20): os.fork() == 0 and os._exit(0)",
    "a child": (
        "import subprocess; subprocess.run([__import__('sys').executable, '-c', '1'], check=True)"
    ),
    "many threads": (
        "import threading, time\nfor _ in range(500): "
        "threading.Thread(target=time.sleep, args=(60,)).start()"
    ),
    "a socket": "import socket; socket.socket()",
    "connect": "import socket; socket.create_connection(('127.0.0.1', 9), timeout=2)",
    "much output": "import sys\nwhile True: sys.stdout.write('x' * 1_000_000)",
    "a large file": "f = open('large', 'wb')\nwhile True: f.write(bytes(1_000_000)); f.flush()",
    "shared memory": "import ctypes; assert ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0",
    "a queue": "import ctypes; assert ctypes.CDLL(None).msgget(0, 0o1600) >= 0",
    "deep folders": "import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')\nos._exit(1)",
    "a locked folder": "import os\nos.makedirs('a/b'); os.chmod('a', 0); os._exit(1)",
    "leave early": "import sys; sys.exit(0)",
    "leave at once": "import os; os._exit(0)",
}
"""What the limits alone stop, with or without bubblewrap."""
ATTACKS = {
    **LIMITED,
    "read a file": "open({precious!r}).read()",
    "look into its folder": "import os; os.listdir(os.path.dirname({precious!r}))",
    "write outside": "open({outside!r}, 'w').write('x')",
    "delete outside": "import os; os.remove({precious!r})",
    "chmod outside": "import os; os.chmod({precious!r}, 0o777)",
    "change the system": "import os; os.chmod(os.path.dirname(os.__file__), 0o777)",
    "change its own program": "open(__file__, 'a').write('#')",
    "a link to outside": "import os; os.symlink({outside!r}, 'link'); open('link', 'w')",
    "a signal": "import os, signal; os.kill({pid}, 0)",
    "environment of another": "open('/proc/{pid}/environ', 'rb').read()",
    "a namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "much in many files": "for i in range(99): open(str(i), 'wb').write(bytes(9_000_000))",
}  # fmt: skip
if CONTAINED and "--size" not in str(
    subprocess.run([BWRAP, "--help"], capture_output=True)
):
    del ATTACKS[
        "much in many files"
    ]  # before version 0.7 the folder has no limit of its own


def attack(sandbox: Sandbox, attacks: dict[str, str], folder: Path) -> None:
    """Every attack ends, in time, with a wrong answer; afterwards a right program is
    right."""
    precious, outside = folder / "precious", folder / "outside"
    precious.write_text("kept", encoding="utf-8")
    item = Item(0, "?", Task.CODE, tests=CodeTests("assert f() == 1"))
    grader = Grader(sandbox)
    for name, source in attacks.items():
        values = {
            "outside": str(outside),
            "precious": str(precious),
            "pid": os.getpid(),
        }
        program = source.format(**values)
        started = time.perf_counter()
        grade = grader.grade(item, f"```python\n{program}\ndef f(): return 1\n```")
        assert grade.right is False, f"{name}: {grade.why}"
        assert grade.why and "could not be built" not in grade.why, (
            f"{name}: {grade.why}"
        )
        assert time.perf_counter() - started < 30, name
    assert (
        precious.read_text(encoding="utf-8") == "kept"
        and precious.stat().st_mode & 0o002 == 0
    )
    assert sorted(path.name for path in folder.iterdir()) == ["precious"]
    assert grader.grade(item, "```python\ndef f(): return 1\n```").right is True


@needs_bwrap
def test_every_attack_is_contained_and_the_run_goes_on(tmp_path: Path) -> None:
    attack(Sandbox(BWRAP, SandboxLimits(seconds=1.5, memory_mb=300)), ATTACKS, tmp_path)


@needs_linux
def test_the_limits_hold_without_bubblewrap(tmp_path: Path) -> None:
    attack(Sandbox(None, SandboxLimits(seconds=1.5, memory_mb=300)), LIMITED, tmp_path)


@needs_linux
@pytest.mark.parametrize("bwrap", [pytest.param(BWRAP, marks=needs_bwrap), None])
def test_nothing_of_a_program_is_left_afterwards(
    bwrap: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither a process nor its folder, even one that is deeper than Python can
    call."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sleeps = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    assert (
        Sandbox(bwrap, SandboxLimits(seconds=1)).run(sleeps + "while True: pass").code
        is None
    )
    deadline = time.monotonic() + 30
    while (alive := _alive(str(tmp_path / "lr-code-"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive
    deep = "import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')"
    assert Sandbox(bwrap, SandboxLimits(seconds=20)).run(deep).code == 0
    assert not list(tmp_path.iterdir())


def _alive(words: str) -> list[str]:
    """The command lines of processes that contain these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_text(errors="replace")
        except OSError:
            continue
        if words in line:
            found.append(line)
    return found


@needs_bwrap
def test_programs_that_behave_work_as_usual() -> None:
    box = open_sandbox(LIMITS)
    program = (
        "import sys, json, threading\nopen('own', 'w').write('x')\n"
        "thread = threading.Thread(target=print, args=(sum(map(int, sys.stdin)),))\n"
        "thread.start()\nthread.join()"
    )
    ran = box.run(program, "1\n2\n")
    assert (ran.code, ran.output) == (0, "3\n"), ran.errors
    assert "ZeroDivisionError" in box.run("1 / 0").reason
    shown = box.run("import os; print(*os.environ)").output.split()
    assert set(shown) <= {
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "OMP_NUM_THREADS",
        "PWD",
        "LC_CTYPE",
    }


@needs_linux
def test_code_is_graded_by_its_tests() -> None:
    grader = Grader(Sandbox(BWRAP if CONTAINED else None, LIMITS))
    starter = "from math import floor\n\ndef half(x):\n    '''Half of x.'''\n"
    tests = CodeTests("def check(f):\n    assert f(5) == 2\ncheck(half)\n")
    item = Item(0, starter, Task.CODE, tests=tests, starter=starter)
    full = "```python\ndef half(x):\n    return floor(x / 2)\n```"
    assert grader.grade(item, full).right is True, "the imports that were given"
    continued = "```python\n    return floor(x / 2)\n```"
    assert grader.grade(item, continued).right is True, "a continuation"
    wrong = grader.grade(item, "```python\ndef half(x):\n    return x\n```")
    assert wrong.right is False and "AssertionError" in wrong.why
    assert grader.grade(item, "I cannot.").right is False
    cases = Item(
        0, "Add.", Task.CODE, tests=CodeTests(cases=(("1 2", "3\n"), ("2 2", "4")))
    )
    adds = "```python\nprint(sum(map(int, input().split())))\n```"
    assert grader.grade(cases, adds).right is True
    bad = grader.grade(cases, "```python\nprint(3)\n```")
    assert bad.right is False and bad.why == "case 1: other output"


def test_whole_programs() -> None:
    item = Item(0, "", Task.CODE, starter="def f(x):\n")
    assert whole_program(item, "    return x\n") == "def f(x):\n    return x\n"
    assert whole_program(item, "def f(x): return 1") == "def f(x): return 1"


def test_running_code_is_off_until_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two choices: to run code at all, and to do it without bubblewrap."""
    items = [Item(0, "?", Task.CODE, tests=CodeTests("assert True"))]
    with pytest.raises(SettingError, match="--run_code"):
        grader_for(items, LIMITS)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        SettingError, match=r"bubblewrap.*is not installed.*--allow_unsafe_code"
    ):
        grader_for(items, LIMITS, run_code=True)
    sandbox = grader_for(items, LIMITS, run_code=True, unsafe=True).sandbox
    assert sandbox is not None and sandbox.bwrap is None
    assert sandbox.run("print(1)").output == "1\n"


def test_a_sandbox_that_does_not_contain_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not contains(Sandbox(None, LIMITS))
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    with pytest.raises(
        SettingError, match="does not work" if sys.platform == "linux" else "bwrap"
    ):
        open_sandbox(LIMITS)


@pytest.mark.parametrize(("seconds", "memory"), [(0, 400), (-1, 400), (1, 10)])
def test_impossible_limits(seconds: float, memory: int) -> None:
    with pytest.raises(SettingError):
        SandboxLimits(seconds, memory)
