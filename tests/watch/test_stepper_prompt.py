"""The prompt of lr step: what it shows for each letter, what it says to nonsense, over
a pipe and at a terminal.
"""

import contextlib
import io
import os
import subprocess
import sys

import pytest
from rich.console import Console
from tests_root import ROOT, blocks
from watch_kit import QUESTION, script_session, scripted

from lr.commands.trace import StepperPrompt
from lr.reasoner import Reasoner
from lr.watch.stepper.live import LiveSource
from lr.watch.stepper.session import Session
from lr.watch.trace.file import read_trace, write_trace


def talk(session, lines, width=80):
    """What the prompt shows when these lines are typed."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, color_system=None)
    typed = iter(lines)

    def read(prompt):
        line = next(typed, None)
        if line is None:
            raise EOFError
        out.write(f"{prompt}{line}\n")
        return line

    StepperPrompt(session, read, console).run()
    return out.getvalue()


def test_a_walk_with_a_forced_verdict(tmp_path):
    saved = tmp_path / "forced.jsonl"
    lines = ["b", "v", "x", "n", "z", "n", "t", f"w {saved}"]
    shown = talk(script_session(), lines)
    assert "beginning" in shown and "The end" in shown
    assert read_trace(saved).complete
    assert "the verifier is asked about step 0, to node 0:1" in shown
    assert "verdict due on 0:1" in shown
    assert "✗ 0 a. [forced by hand]" in shown
    assert 'draft: "A." (forced by hand; else aligned: the same)' in shown
    assert "the end of the answer" in shown


@pytest.mark.parametrize(
    "line, word",
    [
        ("hello", "no letter"),
        ("n many", "number"),
        ("i 9:9", "9:9"),
        ("a", "no verdict"),
        ("w /no/such/folder/x.jsonl", "written"),
        ("B", "no side"),
    ],
)
def test_nonsense_gets_one_sentence_and_changes_nothing(line, word):
    session = script_session()
    session.go("next")
    before = session.active.place
    shown = talk(session, [line]).rsplit(f"> {line}", 1)[1]
    assert word in shown
    assert session.active.place == before
    assert len(session.sides) == 1


def test_a_cache_that_is_full_is_said_and_nothing_is_lost():
    reasoner = Reasoner(verifier="oracle", num_blocks=8)
    session = Session(LiveSource(reasoner, QUESTION, {"depth": 3, "seed": 1}))
    shown = talk(session, "z b z c".split())
    assert shown.count("! the KV cache is full") == 2
    assert 0 < session.active.place == len(session.active.records)
    assert not session.active.over
    assert "target cache: " in shown.rsplit("> c", 1)[1]
    session.close()


@pytest.mark.usefixtures("whole_targets")
def test_the_page_shows_what_is_shown(monkeypatch, cli):
    samples = blocks("docs/step.md", "text")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdin", io.StringIO("?\nv\nf\nx\ns 2\nc\n"))
    lines = cli("step --verifier oracle").out.splitlines()
    shown = "\n".join(map(str.rstrip, lines))
    assert len(samples) == 2
    for sample in samples:
        assert sample.rstrip() in shown


def test_the_program_on_the_page_does_what_it_says(capsys):
    [program] = blocks("docs/step.md")
    exec(program, {})
    assert f"# {capsys.readouterr().out.strip()}" in program


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_at_a_terminal_the_screen_is_redrawn_and_ctrl_c_ends(tmp_path):
    import pty

    trace = tmp_path / "run.jsonl"
    write_trace(trace, scripted())
    screen, terminal = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-m", "lr", "step", str(trace)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=ROOT,
        env=environment | {"PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
    )
    os.close(terminal)
    shown = _until(screen, b"> ")
    os.write(screen, b"n\n")
    shown += _until(screen, b"> ")
    assert b"\x1b[2J" in shown
    for _ in range(10):  # readline may miss a signal just before it waits
        process.send_signal(2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
            break
    assert process.wait(1) == 0
    os.close(screen)


def _until(screen, end):
    shown = b""
    while not shown.endswith(end):
        shown += os.read(screen, 4096)
    return shown
