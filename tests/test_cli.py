"""The command line as a stranger meets it: help, answers on stdout; for what is theirs
to mend one message and exit code 2.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from reasoner_kit import write_checkpoint, write_foreign_checkpoint
from rich.console import Console

from lr.commands import show
from lr.commands.cli import COMMANDS, main
from lr.reasoner import Reasoner


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("cli") / "target", seed=1)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("cli") / "draft", seed=2)


def test_help_explains_every_command_and_loads_no_torch() -> None:
    """Nor does a flag that is refused; torch takes seconds. In a process of its own,
    since others have loaded it.
    """
    program = """
import sys
from lr.commands.cli import COMMANDS, main
for name in COMMANDS:
    for flag, code in (("--help", 0), ("--no_such_flag", 2)):
        try:
            main([*name, flag])
        except SystemExit as end:
            assert end.code == code, (name, flag, end.code)
        else:
            raise AssertionError(f"{name} took {flag}")
        assert "torch" not in sys.modules, f"lr {' '.join(name)} {flag} loads torch"
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    _, *pages = done.stdout.split("usage: lr")
    assert len(pages) == len(COMMANDS) and all("options" in page for page in pages)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(" ".join(("lr", *name)) in shown for name in COMMANDS)
    assert main(["--help"]) == 0
    assert main(["bench", "--help"]) == 0
    assert "lr demo" not in capsys.readouterr().out.split("lr COMMAND")[1]


def test_python_m_lr_is_the_same_door() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lr", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("lr 0.")


@pytest.mark.parametrize("words", [["frob"], ["tiny"], ["tiny", "frob"], ["--frob"]])
def test_unknown_commands_get_the_list(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words)
    captured = capsys.readouterr()
    assert code == 2
    assert "there is no command" in captured.err
    assert "lr " in captured.err
    assert captured.out == ""


def test_generate_writes_the_answer_to_stdout(
    target: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--model",
        str(target),
        "--draft_model",
        str(draft),
        "--max_tokens",
        "30",
        "--seed",
        "4",
    ]
    outputs = []
    for mode in ("lr", "ar", "sd", "lr+sd"):
        assert (
            main(
                [
                    "generate",
                    "How many?",
                    *flags,
                    "--mode",
                    mode,
                    "--verifier",
                    "exact",
                    "--dtype",
                    "float64",
                    "--acceptance",
                    "match",
                ]
            )
            == 0
        )
        captured = capsys.readouterr()
        outputs.append(captured.out)
        assert "target passes" in captured.err
        assert "\x1b[" not in captured.out  # plain text when piped
    assert len(set(outputs)) == 1
    assert outputs[0] != "\n"


def fails(capsys: pytest.CaptureFixture[str], words: list[str], *expected: str) -> None:
    """The command ends with code 2, one message that contains `expected`, no traceback
    and nothing on stdout.
    """
    try:
        code: object = main(words)
    except SystemExit as exit_:  # tyro's own way out
        code = exit_.code
    captured = capsys.readouterr()
    message = " ".join(captured.err.replace("│", " ").split())
    assert code == 2, message
    assert captured.out == ""
    assert "Traceback" not in message
    for part in expected:
        assert part in message


def test_max_depth_is_another_name_of_depth(
    target: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "generate",
        "q",
        "--model",
        str(target),
        "--draft_model",
        str(draft),
        "--max_tokens",
        "12",
    ]
    assert main([*words, "--verifier", "exact", "--max_depth", "2"]) == 0
    capsys.readouterr()
    fails(
        capsys,
        [*words, "--max_depth", "0"],
        "depth is 0, expected a whole number from 1 to",
    )


def test_impossible_settings(
    target: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["generate", "q", "--model", str(target), "--draft_model", str(draft)]
    fails(
        capsys, [*base, "--depth", "0"], "depth is 0, expected a whole number from 1 to"
    )
    fails(capsys, [*base, "--depth", "many"], "--depth", "many")
    fails(capsys, [*base, "--top_p", "7"], "top_p is 7.0, expected a number in (0, 1]")
    fails(capsys, [*base, "--mode", "fast"], "--mode", "ar", "lr")
    fails(
        capsys,
        [*base, "--schedule", "sync", "--late_drafts", "reject"],
        "late_drafts is 'reject'",
        "only 'depth'",
    )
    fails(capsys, [*base, "--threads", "0"], "threads is 0")
    fails(
        capsys,
        [*base, "--device", "abacus"],
        "device is 'abacus', expected auto, cpu, cuda",
    )
    fails(
        capsys,
        [*base, "--verifier", "guess"],
        "there is no verifier 'guess'; choose one of: exact, oracle",
    )
    fails(
        capsys,
        [*base, "--num_blocks", "2"],
        "the KV cache is full",
        "of 2 are free",
        "num_blocks",
    )
    fails(
        capsys,
        ["generate", "q", "--model", "nosuch"],
        "there is no checkpoint 'nosuch'",
    )
    fails(
        capsys,
        [*base, "--verifier", "embedding", "--judge_model", "/no/such/encoder"],
        "/no/such/encoder cannot be loaded as a sentence encoder",
    )
    fails(
        capsys,
        ["generate", "q", "--model", str(target)],
        "needs a draft",
        "--draft_model",
        "--mode ar",
    )
    fails(
        capsys,
        ["generate", "q", "--model", "dummy:tiny-target", "--mode", "sd"],
        "needs a draft",
        "--draft_model",
    )
    fails(capsys, ["demo", "--problems", "0"], "problems is 0")


def test_prompts_longer_than_the_context(
    target: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--model", str(target), "--draft_model", str(draft), "--verifier", "exact"]
    fails(
        capsys,
        ["generate", "coins " * 600, *base],
        "the context is 512",
        "Shorten the question",
    )


def test_checkpoints_that_are_none(
    target: Path,
    draft: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def fails_with(model: object, *expected: str) -> None:
        fails(
            capsys,
            ["generate", "q", "--model", str(model), "--draft_model", str(draft)],
            *expected,
        )

    fails_with(tmp_path / "nowhere", "nowhere", "no such directory")
    fails_with(tmp_path, "has no tokenizer: it has nothing")
    broken = write_checkpoint(tmp_path / "broken", seed=1)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    fails_with(broken, "model.safetensors")
    foreign = write_checkpoint(tmp_path / "llama", seed=1)
    config = foreign / "config.json"
    config.write_text(
        config.read_text().replace("Qwen3ForCausalLM", "LlamaForCausalLM")
    )
    fails_with(foreign, "LlamaForCausalLM")
    fails_with(
        write_foreign_checkpoint(tmp_path / "foreign"),
        "different vocabularies",
        "same family",
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "broken",
        "foreign",
        "llama",
    ]  # nothing left behind


def test_a_verifier_for_another_language_is_refused_with_the_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = str(write_foreign_checkpoint(tmp_path / "foreign"))
    words = [
        "generate",
        "q",
        "--model",
        foreign,
        "--draft_model",
        foreign,
        "--verifier",
        "oracle",
    ]
    fails(capsys, words, "knows only the tiny language", "choose one of: exact")


def test_without_a_question_a_sample_problem_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--mode", "ar", "--max_tokens", "5"]) == 0
    assert "this is a sample: At first " in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert main(["play", "--max_tokens", "12", "--output", str(page)]) == 0
    assert page.stat().st_size > 10_000


def test_a_tiny_model_says_what_it_understands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["generate", "What is 2 + 2?", "--mode", "ar"]
    fails(
        capsys,
        words,
        "sums of what people have",
        "What is 2 + 2?",
        "for example: At first ",
    )


def test_a_progress_bar_keeps_off_the_text_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a terminal a line of text begins where the bar was wiped away."""
    monkeypatch.setenv("TERM", "xterm")
    screen = io.StringIO()
    out = Console(file=screen, force_terminal=True, width=80)
    with show.progress("solving", 2, beside=out) as advance:
        for step in ("first step", "second step"):
            out.print(step)
            advance()
            time.sleep(0.15)  # the bar is drawn ten times a second
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    lines = [part for line in text.split("\n") for part in line.split("\r")]
    assert {"first step", "second step"} <= set(lines) and any(
        "solving" in line for line in lines
    )


def test_what_a_checkpoint_asks_for_in_vain_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program gets one warning, at the line that made the reasoner; commands a note
    and none."""
    folder = write_checkpoint(tmp_path / "model", seed=1)
    asks = {"repetition_penalty": 1.05, "of_tomorrow": True, "temperature": 0.5}
    (folder / "generation_config.json").write_text(json.dumps(asks))
    words = "asks for repetition_penalty = 1.05, of_tomorrow = true"
    with pytest.warns(UserWarning, match=words) as said:
        Reasoner(folder, None)
    assert [one.filename for one in said] == [__file__]
    how = ["--mode", "ar", "--model", str(folder)]
    with warnings.catch_warnings(record=True) as more:
        assert main(["generate", "How many?", *how, "--max_tokens", "3"]) == 0
        assert capsys.readouterr().err.count(words) == 1
        there = [
            "--dataset",
            "tiny:1",
            "--output",
            str(tmp_path / "run"),
            "--max_tokens_len",
            "90",
        ]
        assert main(["run", *how, *there]) == 0
        assert capsys.readouterr().err.count(words) == 1
        Reasoner(write_checkpoint(tmp_path / "other", seed=1), None)
    assert not more


def test_one_thread_for_the_tiny_models() -> None:
    from lr.commands.options import Placement

    before = torch.get_num_threads()
    try:
        assert Placement(threads=2).set_threads("tiny-target") == 2
        assert Placement().set_threads("tiny-target", "tiny-draft") == 1
    finally:
        torch.set_num_threads(before)
