"""Runs programs that a model wrote, in bubblewrap (`bwrap`) with the limits of
`sandbox_child.py`.

docs/evaluation.md says what a program can do there, and what without bubblewrap, where
it runs only if the user accepts that (`unsafe`). First a probe tries to get out, and
must fail."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
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
from lr.measure.sandbox_child import BROKEN
from lr.types import require

CHILD = Path(__file__).with_name("sandbox_child.py")
OUTPUT = 1 << 20  # Bytes of output to read; the rest is cut off.
FOLDER_BYTES = 64 << 20  # Size of the in-memory folder that a program may write to.
SYSTEM = (
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/alternatives",
)
"""System paths that a program may read, if they exist."""


@dataclass(frozen=True)
class SandboxLimits:
    """`seconds` of wall-clock and of CPU time, `memory_mb` of address space."""

    seconds: float = 10.0
    memory_mb: int = 1024

    def __post_init__(self) -> None:
        require(
            0 < self.seconds <= 86400,
            "code_seconds",
            self.seconds,
            "above 0, at most a day",
        )
        fits = 64 <= self.memory_mb <= 1 << 20
        require(fits, "code_memory_mb", self.memory_mb, "64 to 1048576 (a TiB)")


@dataclass(frozen=True)
class Ran:
    """The end of a program: its exit code (negative: the signal; None: time was up),
    its output."""

    code: int | None
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """Why it failed, in a few words."""
        if self.code is None:
            return "time was up"
        last = (self.errors.strip().splitlines() or [""])[-1][:200]
        if self.code != BROKEN and (self.code < 0 or self.code > 128):
            return f"ended by signal {-self.code if self.code < 0 else self.code - 128}"
        return last or (
            f"exit code {self.code}" if self.code else "it ended before its tests did"
        )


class Sandbox:
    """Runs programs. `bwrap`: the bubblewrap command; None: limits only. See
    `open_sandbox`."""

    def __init__(self, bwrap: str | None, limits: SandboxLimits) -> None:
        self.bwrap, self.limits = bwrap, limits

    def run(self, program: str, given: str = "") -> Ran:
        """Run Python source in a new process and folder; `given` is its standard input.
        When this returns, all its processes have ended."""
        with (
            _folder() as folder,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            (folder / "program.py").write_text(
                program, encoding="utf-8", errors="replace"
            )
            (folder / "given").write_text(given, encoding="utf-8", errors="replace")
            shutil.copyfile(CHILD, folder / "child.py")
            home = str(folder) if self.bwrap is None else "/box"
            names = {
                "PATH": os.defpath,
                "HOME": home,
                "TMPDIR": home,
                "LANG": "C.UTF-8",
            }
            with (folder / "given").open("rb") as stdin:
                process = subprocess.Popen(
                    self._command(folder), stdin=stdin, stdout=out, stderr=err, cwd=folder,
                    env={**names, "OMP_NUM_THREADS": "1"}, start_new_session=True,
                )  # fmt: skip
                code = _wait(process, self.limits.seconds)
            texts = [
                os.pread(f.fileno(), OUTPUT, 0).decode(errors="replace")
                for f in (out, err)
            ]
        return Ran(code, *texts)

    def _command(self, folder: Path) -> list[str]:
        program = str(folder / "program.py")
        if os.name != "posix":
            return [sys.executable, "-I", "-B", program]
        asked = {
            "program": program,
            **vars(self.limits),
            "strictly": self.bwrap is not None,
        }
        child = [
            sys.executable,
            "-I",
            "-B",
            str(folder / "child.py"),
            json.dumps(asked),
        ]
        if self.bwrap is None:
            return child
        command = [self.bwrap, "--unshare-all", "--die-with-parent", "--new-session"]
        command += [
            "--cap-drop",
            "ALL",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
        ]
        for place in (*SYSTEM, sys.base_prefix, sys.prefix, folder):
            command += ["--ro-bind-try", str(place), str(place)]
        known = subprocess.run(
            [self.bwrap, "--help"], capture_output=True, text=True, check=False
        )
        if "--size" in known.stdout:  # from version 0.7 on
            command += ["--size", str(FOLDER_BYTES)]
        return [*command, "--tmpfs", "/box", "--chdir", "/box", *child]


def open_sandbox(limits: SandboxLimits, *, unsafe: bool = False) -> Sandbox:
    """A working bubblewrap, or limits only if `unsafe` accepts that; else raises
    `SettingError`."""
    bwrap = shutil.which("bwrap") if sys.platform == "linux" else None
    if bwrap is not None and contains(Sandbox(bwrap, SandboxLimits(seconds=20))):
        return Sandbox(bwrap, limits)
    if unsafe:
        return Sandbox(None, limits)
    lacks = (
        "is not installed"
        if bwrap is None
        else "does not work (it needs user namespaces)"
    )
    raise SettingError(
        "a model's programs must run here, and bubblewrap (bwrap), which keeps them from network "
        f"and files, {lacks}. Install it, or let them do all that you can: --allow_unsafe_code."
    )


def contains(sandbox: Sandbox) -> bool:
    """Whether a probe can write in its folder in this sandbox, and can do nothing
    forbidden."""
    with (
        socket.socket() as server,
        tempfile.TemporaryDirectory(prefix="lr-probe-") as name,
    ):
        server.bind(("127.0.0.1", 0))
        server.listen()
        outside, secret = (
            Path(name, "outside").resolve(),
            Path(name, "secret").resolve(),
        )
        secret.write_text("secret", encoding="utf-8")
        places = {"outside": str(outside), "secret": str(secret)}
        ran = sandbox.run(PROBE.format(**places, port=server.getsockname()[1]))
        return (
            ran.code == 0 and ran.output.strip() == "contained" and not outside.exists()
        )


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
    lambda: open({secret!r}),
    lambda: socket.create_connection(("127.0.0.1", {port}), timeout=2),
    os.fork,
]
print("contained" if all([refused(call) for call in tried]) else "got out")
"""
"""A program that tries what must work in a sandbox, and what must fail."""


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A temporary folder, removed even if nested too deep for Python or locked by the
    program."""
    name = tempfile.mkdtemp(prefix="lr-code-")
    try:
        yield Path(name).resolve()
    finally:
        for command in (
            ("rm -rf", "chmod -R u+rwX", "rm -rf") if os.name == "posix" else ()
        ):
            if os.path.lexists(name):
                words = [*command.split(), "--", name]
                subprocess.run(words, check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(name, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code, or None if the time was up. Kills the rest of the process group,
    and waits up to a second until it is gone (by polling: a process can wait only for
    its own children)."""
    try:
        code: int | None = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    if sys.platform == "win32":
        process.kill()
        process.wait()
        return code
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 1
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.002)
    return code
