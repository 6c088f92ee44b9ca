"""Ctrl-C ends a command that waits for a server which never answers, or for its next
try, within two seconds.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from endpoint_kit import IDS, serving
from misbehaviour import status
from test_signals import gone, started

SECONDS = 2.0
"""For which a process may sleep after Ctrl-C. Without an end of the wait it would be 10
s (between two tries) or 120 s (for a server's silence)."""
SCHEDULED = "/proc/{}/schedstat"

pytestmark = pytest.mark.skipif(
    not Path(SCHEDULED.format("self")).exists(), reason="needs Linux"
)


@contextmanager
def waiting(kind: str, command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that waits for a server."""
    asked = threading.Event()
    with serving(IDS) as server, socket.create_server(("127.0.0.1", 0)) as mute:

        def silent(handler: object) -> None:
            asked.set()
            handler._until_hung_up()  # type: ignore[attr-defined]

        def busy(handler: object) -> None:
            asked.set()
            status(503, "Retry-After: 99999")(handler)

        def hold(prompt: str) -> bool:
            if "How many" in prompt:
                asked.set()
            return asked.is_set()

        mode = ["--mode", "lr", "--temperature", "1.5"]  # the two write different steps
        judge = [
            *mode,
            "--verifier",
            "judge",
            "--judge_model",
            server.address("tiny-judge"),
        ]
        nobody = f"openai:http://127.0.0.1:{mute.getsockname()[1]}/tiny-target"
        words = {
            "a silent judge": judge,
            "a judge that is busy": judge,
            "a silent model": ["--mode", "ar", "--model", server.address()],
            "a silent server": ["--mode", "ar", "--model", nobody],
        }[kind]
        server.behave(likeliest=lambda prompt: {"al": -0.1})
        server.misbehave = busy if "busy" in kind else silent
        server.hold = hold
        data = (
            ["--dataset", "tiny:1", "--output", str(folder)] if command == "run" else []
        )
        program = started(command, *data, *words)
        if kind == "a silent server":
            mute.settimeout(120)
            with mute.accept()[0]:
                yield program
        else:
            while not asked.wait(0.1):
                assert program.poll() is None, program.communicate()
            yield program


def awake(pid: int) -> float:
    """Seconds for which a process has worked, or was ready to and the machine was busy.
    What it slept is the rest: so a loaded machine makes no difference."""
    on_processor, ready, _ = Path(SCHEDULED.format(pid)).read_text().split()
    return (int(on_processor) + int(ready)) / 1e9


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("a silent judge", "generate"),
        ("a judge that is busy", "run"),
        ("a silent model", "run"),
        ("a silent server", "generate"),
    ],
)
def test_ctrl_c_ends_a_wait_for_a_server(
    kind: str, command: str, tmp_path: Path
) -> None:
    with waiting(kind, command, tmp_path / "run") as program:
        time.sleep(0.3)  # what was sent to it is read
        began, worked = time.monotonic(), awake(program.pid)
        os.killpg(program.pid, signal.SIGINT)
        os.waitid(
            os.P_PID, program.pid, os.WEXITED | os.WNOWAIT
        )  # its numbers can be read still
        slept = time.monotonic() - began - (awake(program.pid) - worked)
        _, said = program.communicate(timeout=60)
        assert program.returncode == 130 and said.splitlines()[-1] == "interrupted", (
            said
        )
        assert "Traceback" not in said and gone(program.pid)
    assert slept < SECONDS
