"""Ctrl-C at any moment, imports included, is one word and exit code 130; a closed
terminal and `kill` end a run too; no process stays behind.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
print("up", flush=True)
sys.argv = ["lr", *sys.argv[1:]]
from lr.__main__ import entry
entry()
"""
LONG = "run --dataset tiny:99 --mode lr --driver overlapped --max_tokens 20 --output"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


def started(*words):
    """The program, as soon as its interpreter runs. It answers Ctrl-C also where these
    tests run in the background, where a shell has that ignored.
    """
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout.readline() == "up\n"
    return program


def alive(session):
    """What of a session is alive."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[3]) == session and words[0] != "Z":
            found.append(status.parent.name)
    return found


def gone(session):
    deadline = time.monotonic() + 30
    while alive(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(session)


@pytest.mark.parametrize("after", [0.1, 1.5])
def test_ctrl_c_while_modules_are_imported(tmp_path, after):
    program = started(*LONG.split(), str(tmp_path / "run"))
    time.sleep(after)
    os.killpg(program.pid, signal.SIGINT)
    _, said = program.communicate(timeout=60)
    # Interrupted in an `exec`, Python ends itself by the signal; shells show 130 for
    # both.
    assert program.returncode in (130, -signal.SIGINT)
    assert (
        said.splitlines()[-1] == "interrupted"
        and "Traceback" not in said
        and gone(program.pid)
    )


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_closed_terminal_or_a_kill_ends_a_run(tmp_path, number):
    """The signal comes to the run alone, when the first answer is there; it stays."""
    output = tmp_path / "run"
    program = started(*LONG.split(), str(output))
    deadline = time.monotonic() + 120
    while not any(output.glob("[0-9]*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    program.send_signal(number)
    _, said = program.communicate(timeout=60)
    assert program.returncode == -number and "Traceback" not in said
    assert gone(program.pid)
    assert any(output.glob("[0-9]*.json"))


def test_closed_outputs_are_no_error():
    root = Path(__file__).parents[1]
    words = f'exec "{sys.executable}" -m lr --version >&- 2>&-'
    done = subprocess.run(["sh", "-c", words], cwd=root, timeout=60, check=False)
    assert done.returncode == 0
