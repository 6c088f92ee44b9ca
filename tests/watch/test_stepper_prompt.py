"""The prompt of lr step: what it shows for each letter, what it says to nonsense, over
a pipe and at a terminal.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from player_kit import as_file, scripted
from stepper_kit import QUESTION, live_session, script_session, talk
from tests_root import ROOT

from lr.commands.cli import main
from lr.commands.trace import HELP, MOVES
from lr.reasoner import Reasoner
from lr.watch.stepper.live import LiveSource
from lr.watch.stepper.session import STOPS, Session
from lr.watch.stepper.words import say
from lr.watch.trace.file import KINDS, read_trace


def test_a_walk_with_a_forced_verdict() -> None:
    shown = talk(script_session(), ["v", "x", "n", "z", "t"])
    assert "the verifier is asked about 0:1" in shown
    assert "verdict due on 0:1 (f forks, then x rejects, a accepts) > x" in shown
    assert "The verdict on 0:1 will be: not aligned (forced by hand)." in shown
    assert "✗ 0 a. [forced by hand]" in shown
    assert 'draft: "A." (forced by hand; else aligned: the same)' in shown
    assert "the end of the answer" in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hello", "'hello' is no letter here"),
        ("n many", "'many' is no number of moves"),
        ("b 0", "'0' is no number of moves"),
        ("g", "g takes the number of an event"),
        ("g x", "g takes the number of an event"),
        ("c x", "c takes the number of a block"),
        ("i 9:9", "there is no node '9:9' here"),
        ("a", "no verdict is due here"),
        ("a 0:1 0:2", "one word after the letter is enough"),
        ("w", "w takes the name of a file"),
        ("w /no/such/folder/x.jsonl", "cannot be written"),
        ("B", "there is no side 'B'"),
        ("d", "There is no side B."),
    ],
)
def test_nonsense_gets_one_sentence_and_changes_nothing(
    line: str, message: str
) -> None:
    session = script_session()
    session.go("next")
    before = session.active.place
    shown = talk(session, [line])
    assert message in " ".join(shown.split())
    assert session.active.place == before and len(session.sides) == 1


def test_the_ends_are_said() -> None:
    shown = talk(script_session(), ["b", "z", "n"])
    assert (
        "This is the beginning." in shown and "This is the end; b goes back." in shown
    )


def test_a_cache_that_is_full_is_said_and_nothing_is_lost() -> None:
    reasoner = Reasoner(verifier="oracle", num_blocks=8)
    session = Session(
        LiveSource(reasoner, QUESTION, {"mode": "lr", "depth": 3, "seed": 1})
    )
    shown = talk(session, ["z", "b", "z", "c"])
    assert shown.count("! the KV cache is full") == 2
    assert (
        0 < session.active.place == len(session.active.records)
        and not session.active.over
    )
    assert "target cache: " in shown.rsplit("> c", 1)[1]
    session.close()


def test_help_names_every_letter_and_fits_80_columns() -> None:
    assert all(
        f" {letter} " in f" {HELP} ".replace("\n", " ")
        for letter in (*MOVES, "g", "i", "c", "t", "l", "a", "x", "f", "d", "w", "q")
    )
    assert max(map(len, HELP.splitlines())) <= 80
    assert HELP in talk(script_session(), ["?"])


def test_inside_a_node_are_both_texts_the_verdict_and_the_numbers() -> None:
    session = live_session("lr+sd")
    session.go("verdict")
    node = session.due(session.active)[0]
    child = session.active.state.nodes[node]
    shown = talk(session, [f"i {node}"])
    assert child.draft is not None and " ".join(child.draft.text.split()) in shown
    rival = session.active.state.nodes[child.parent or ""].target
    assert rival is not None and " ".join(rival.text.split()) in shown
    assert "verdict none yet" in shown
    assert "accept" in shown and "residual" in shown and "✓ stays" in shown
    session.close()


def test_the_cache_says_who_holds_which_block_of_both_sides() -> None:
    session = live_session()
    session.go("verdict")
    shown = talk(session, ["c", "c 0", "f", "c", "c 0", "c 320"])
    alone, beside = shown.split("> f", 1)
    state = session.active.state
    for name, cache in state.caches.items():
        held = cache.owners_by_block()
        shared = sum(len(one) > 1 for one in held.values())
        assert (
            f"{name} cache: {len(held)} of {cache.total} blocks used, {shared} shared"
            in alone
        )
        assert (
            f"{name} cache: {len(held)} of {cache.total} blocks used, {len(held)} shared"
            in beside
        ), "all are, now"
        nodes = [cache.branches[number].node for number in held[0]]
        assert f"{name} cache, block 0: {', '.join(map(str, nodes))}" in alone
        both = [f"{side} {node}" for side in "AB" for node in nodes]
        assert f"{name} cache, block 0: {', '.join(both)}" in " ".join(beside.split())
    assert "nobody: it is free" in beside
    session.close()


def test_two_sides_stand_beside_each_other_in_80_columns() -> None:
    session = live_session()
    shown = talk(session, ["v", "f", "x", "z", "A", "b 2", "AB", "d"])
    assert max(map(len, shown.splitlines())) <= 80
    assert "▶ A · event" in shown and "▶ B · event" in shown
    assert "  B · event" in shown, "only A moved"
    assert "Side B is dropped" in shown
    session.close()


def test_every_kind_of_event_has_its_sentence() -> None:
    told = {record.kind: say(record) for record in scripted().records}
    assert set(told) > STOPS
    assert all(words != kind for kind, words in told.items())
    session = live_session("lr+sd")
    session.go("end")
    for record in session.sides[0].records:
        words = say(record)
        assert words != record.kind and len(words) > 12
    assert {record.kind for record in session.sides[0].records} <= set(KINDS)


def stepped(arguments: list[str], typed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lr", "step", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        check=False,
    )


Here = Callable[[list[str], str], str]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """As `stepped`, in this process: what the command writes."""

    def run(arguments: list[str], typed: str) -> str:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert main(["step", *arguments]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return run


@pytest.mark.usefixtures("whole_targets")
def test_the_page_shows_what_is_shown(here: Here) -> None:
    page = (ROOT / "docs" / "step.md").read_text(encoding="utf-8")
    samples = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    said = here(
        [QUESTION, "--seed", "1", "--depth", "3", "--verifier", "oracle"],
        "?\nv\nf\nx\ns 2\nc\n",
    )
    shown = "\n".join(line.rstrip() for line in said.splitlines())
    assert len(samples) == 3
    for sample in samples:
        assert sample.rstrip() in shown


def test_the_program_on_the_page_does_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "step.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(program, {})
    assert f"# {capsys.readouterr().out.strip()}" in program


def test_over_a_pipe_live(tmp_path: Path) -> None:
    saved = tmp_path / "side-b.jsonl"
    done = stepped(
        [QUESTION, "--seed", "1", "--depth", "3", "--verifier", "oracle"],
        f"v\ni\nf\nx\nzz\nz\nw {saved}\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout, "no terminal, no colours"
    shown = " ".join(done.stdout.split())
    assert (
        "nothing was computed or copied" in shown
        and "! 'zz' is no letter here" in shown
    )
    assert (
        "will be: not aligned (forced by hand)" in shown
        and "the end of the answer" in shown
    )
    assert read_trace(saved).complete


def test_over_a_pipe_recorded(here: Here, tmp_path: Path) -> None:
    trace = as_file(scripted(), tmp_path / "run.jsonl")
    said = here([str(trace)], "n\nn\nr\nb\nf\nq\nnever read\n")
    assert "says too little to be run again" in " ".join(said.split())
    assert "never read" not in said


def test_bad_files_and_flags_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no.jsonl").write_text("what?\n")
    for words, message in (
        ([str(tmp_path / "no.jsonl")], "line 1: not JSON"),
        ([str(tmp_path / "none.jsonl")], "cannot be read"),
        ([QUESTION, "--mode", "ar"], "no draft steps"),
    ):
        assert main(["step", *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_at_a_terminal_the_screen_is_drawn_in_place_and_ctrl_c_ends(
    tmp_path: Path,
) -> None:
    import pty

    trace = as_file(scripted(), tmp_path / "run.jsonl")
    screen, terminal = pty.openpty()
    environment = {
        name: value for name, value in os.environ.items() if name != "NO_COLOR"
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "lr", "step", str(trace)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=ROOT,
        env=environment
        | {
            "TERM": "xterm-256color",
            "COLUMNS": "80",
            "LINES": "24",
            "PYTHONIOENCODING": "utf-8",
        },
        start_new_session=True,
    )
    os.close(terminal)
    shown = _until(screen, b"> ")
    os.write(screen, b"n\n")
    shown += _until(screen, b"> ")
    assert b"\x1b[2J" in shown and b"\x1b[1m" in shown
    for _ in range(10):  # readline may miss a signal just before it waits
        process.send_signal(2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
            break
    assert process.wait(1) == 0
    os.close(screen)


def _until(screen: int, end: bytes) -> bytes:
    shown = b""
    while not shown.endswith(end):
        shown += os.read(screen, 4096)
    return shown
