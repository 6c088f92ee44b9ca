"""Runs programs that a model wrote, with limits of time, memory and output, no network, and no
writing outside their folder.

What the kernel offers is found out by trying: a probe in the sandbox must fail to write outside its
folder, to make a socket, to connect and to start a process. Kernels with Landlock or user
namespaces, and seccomp, pass it. Where nothing passes, programs are refused, unless they are
allowed to run without a sandbox (`unsafe`), with the limits alone. What a program can still do:
read what this user can read.

`jail.py` is the inside. Read next: `grading.py`, which makes the programs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lr.errors import SettingError
from lr.types import require

JAIL = Path(__file__).with_name("jail.py")
GRACE = 1.0
"""Seconds to wait for the last process of a program that was killed."""
OUTPUT = 1 << 20
"""Bytes of output that are read; what a program writes beyond them is cut off."""


@dataclass(frozen=True)
class Walls:
    """What a sandbox is made of. Writing is kept in by Landlock or by mounts in a namespace, the
    network out by seccomp or a namespace.
    """

    namespaces: bool
    landlock: bool
    seccomp: bool

    def __str__(self) -> str:
        parts = [name for name in ("namespaces", "landlock", "seccomp") if getattr(self, name)]
        return " + ".join(parts) or "none"


CANDIDATES = (Walls(True, True, True), Walls(False, True, True), Walls(True, False, True))
"""The strongest first."""
NONE = Walls(False, False, False)


@dataclass(frozen=True)
class Limits:
    """`seconds` of wall clock and of CPU, `memory_mb` of address space."""

    seconds: float = 10.0
    memory_mb: int = 1024

    def __post_init__(self) -> None:
        require(self.seconds > 0, "code_seconds", self.seconds, "a number > 0")
        require(self.memory_mb >= 64, "code_memory_mb", self.memory_mb, "at least 64")


@dataclass(frozen=True)
class Ran:
    """How a program ended: its exit code (negative: the signal), None if its time was up; what it
    wrote.
    """

    code: int | None
    output: str
    errors: str

    @property
    def last_error(self) -> str:
        """The last line of what it complained about."""
        return (self.errors.strip().splitlines() or [""])[-1][:200]


class Sandbox:
    """Runs programs behind walls. Made by `open_sandbox`."""

    def __init__(self, walls: Walls, limits: Limits) -> None:
        self.walls, self.limits = walls, limits

    def run(self, program: str, given: str = "") -> Ran:
        """Run Python source in a new process and folder; `given` is its standard input. Nothing of
        it is alive when this returns.
        """
        with tempfile.TemporaryDirectory(prefix="lr-code-", ignore_cleanup_errors=True) as name:
            folder = Path(name).resolve()
            (folder / "program.py").write_text(program, encoding="utf-8", errors="replace")
            (folder / "given").write_text(given, encoding="utf-8", errors="replace")
            with (
                (folder / "given").open("rb") as stdin,
                tempfile.TemporaryFile() as out,
                tempfile.TemporaryFile() as err,
            ):
                process = subprocess.Popen(
                    self._command(folder), stdin=stdin, stdout=out, stderr=err, cwd=folder, env=_surroundings(folder),
                    start_new_session=True,
                )  # fmt: skip
                code = _wait(process, self.limits.seconds)
                texts = [_read(file.fileno()) for file in (out, err)]
        return Ran(code, *texts)

    def _command(self, folder: Path) -> list[str]:
        program = str(folder / "program.py")
        if os.name != "posix":
            return [sys.executable, "-I", "-B", program]
        asked = {
            "folder": str(folder),
            "program": program,
            "seconds": self.limits.seconds,
            "memory_mb": self.limits.memory_mb,
            **vars(self.walls),
        }
        return [sys.executable, "-I", "-B", str(JAIL), json.dumps(asked)]


def open_sandbox(limits: Limits, *, unsafe: bool = False) -> Sandbox:
    """The strongest sandbox that this machine has. Raises `SettingError` where it has none, unless
    `unsafe` allows to do without.
    """
    for walls in CANDIDATES if sys.platform == "linux" else ():
        if holds(walls):
            return Sandbox(walls, limits)
    if unsafe:
        return Sandbox(NONE, limits)
    raise SettingError(
        "programs that a model wrote would have to run here, and this system has neither user namespaces nor Landlock with seccomp to "
        "keep them from the network and from your files. Run on a Linux that has, or take the risk with --allow_unsafe_code."
    )


def holds(walls: Walls) -> bool:
    """Whether a sandbox with these walls can be built here and keeps a probe in."""
    with _listening() as port, tempfile.TemporaryDirectory(prefix="lr-probe-") as name:
        outside = Path(name, "written").resolve()
        ran = Sandbox(walls, Limits(seconds=20)).run(PROBE.format(outside=str(outside), port=port))
        return ran.code == 0 and ran.output.strip() == "kept in" and not outside.exists()


PROBE = """
import os, socket
def refused(call):
    try:
        call()
    except OSError:
        return True
    return False
open("inside", "w").close()
tried = [
    lambda: open({outside!r}, "w"),
    lambda: socket.create_connection(("127.0.0.1", {port}), timeout=2),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    lambda: os.kill(os.getppid(), 0),
    os.fork,
]
print("kept in" if all([refused(call) for call in tried]) else "got out")
"""
"""What must fail in a sandbox, and what must not."""


@contextlib.contextmanager
def _listening() -> Iterator[int]:
    """A port of this machine at which somebody listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def _surroundings(folder: Path) -> dict[str, str]:
    """The environment variables of a program: none of ours."""
    return {
        "PATH": os.defpath,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
    }


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code, or None where the time was up. Whatever is left of its process group is
    ended.
    """
    try:
        code: int | None = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _until_gone(process.pid)
    return code


def _until_gone(group: int) -> None:
    """Only our child can be waited for; what it started dies a moment later, and is gone when its
    group is. At most `GRACE` seconds.
    """
    deadline = time.monotonic() + GRACE
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while sys.platform != "win32" and time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.002)


def _read(descriptor: int) -> str:
    """The beginning of a file."""
    return os.pread(descriptor, OUTPUT, 0).decode("utf-8", errors="replace")
