"""The command line as a stranger meets it: help, answers on stdout; for what is theirs
to mend one message and exit code 2."""

import json
import re
import shlex
import warnings
from contextlib import suppress

import pytest
import torch
from reasoner_kit import write_checkpoint
from tests_root import python

from lr.commands.cli import COMMANDS, main
from lr.commands.options import Placement
from lr.reasoner import Reasoner


def test_help_explains_every_command_and_loads_no_torch():
    """Nor does a flag that is refused; torch takes seconds. In a process of its own,
    since others have loaded it."""
    program = """
import sys
from lr.commands.cli import COMMANDS, main
for name in COMMANDS:
    for flag, code in (("--help", 0), ("--no_such_flag", 2)):
        try:
            main([*name.split(), flag])
        except SystemExit as end:
            assert end.code == code, (name, flag, end.code)
        else:
            raise AssertionError(f"{name} took {flag}")
        assert "torch" not in sys.modules, f"lr {name} {flag} loads torch"
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("usage: lr") == len(COMMANDS)
    words = " ".join(done.stdout.replace("│", " ").split())
    assert not re.findall(r"--\w+ \S+ \(default: \S+\)", words), "a flag without help"


def test_help_lists_at_most_fifteen_commands_in_three_groups(capsys):
    assert len(COMMANDS) <= 15
    for words in ([], ["--help"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"lr {name}" in shown for name in COMMANDS)
        assert re.findall(r"^(\w+):$", shown, re.MULTILINE) == [
            "watch",
            "check",
            "measure",
        ]


@pytest.mark.parametrize(
    "words", ["frob", "tiny frob", "bench", "bench frob", "--frob"]
)
def test_unknown_commands_get_the_list(words, capsys):
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert "lr demo" in captured.err and captured.out == ""


@pytest.mark.parametrize(
    "words, meant",
    [("generat", "generate"), ("paly", "play"), ("play bord", "board"),
     ("step trains", "train"), ("generate --dept 3", "--depth")]
)  # fmt: skip
def test_what_may_be_meant_is_named(words, meant, capsys):
    with suppress(SystemExit):
        assert main(words.split()) == 2
    assert re.search(
        rf"(did|Did|Perhaps) you meant?\W[^?]*{meant}", capsys.readouterr().err
    )


def test_every_exact_mode_writes_the_same_answer(target, draft, capsys):
    flags = f"--model {target} --draft_model {draft} --max_tokens 30 --seed 4"
    flags += " --verifier exact --dtype float64 --acceptance match"
    outputs = []
    for mode in ("lr", "ar", "sd", "lr+sd"):
        assert main(["generate", "How many?", *flags.split(), "--mode", mode]) == 0
        captured = capsys.readouterr()
        outputs.append(captured.out)
        assert "target passes" in captured.err
        assert "\x1b[" not in captured.out  # plain text when piped
    assert len(set(outputs)) == 1 and outputs[0] != "\n"


def fails(capsys, words, *expected):
    """The command ends with code 2, one message that contains `expected`, no traceback
    and nothing on stdout."""
    try:
        code = main(words)
    except SystemExit as end:  # tyro's own way out
        code = end.code
    captured = capsys.readouterr()
    message = " ".join(captured.err.replace("│", " ").split())
    assert code == 2, message
    assert captured.out == "" and "Traceback" not in message
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    "flags, named",
    [
        ("--depth many", "--depth"),
        ("--top_p 7", "top_p"),
        ("--mode fast", "--mode"),
        ("--threads 0", "threads"),
        ("--device abacus", "device"),
        ("--verifier guess", "exact"),
        ("--verifier embedding --judge_model /no/encoder", "/no/encoder"),
        ("--tensor_parallel 0 --device cpu", "tensor_parallel"),
    ],
)
def test_impossible_flags(flags, named, target, draft, capsys):
    models = ["--model", str(target), "--draft_model", str(draft)]
    fails(capsys, ["generate", "q", *models, *flags.split()], named)


def test_a_missing_model_is_named(target, capsys):
    fails(capsys, "generate q --model nosuch".split(), "nosuch")
    words = ["generate", "q", "--mode", "lr", "--model", str(target)]
    fails(capsys, words, "--draft_model")
    fails(capsys, "demo --seconds 0".split(), "seconds")


def test_without_a_question_a_sample_problem_is_taken(tmp_path, capsys):
    assert main("generate --mode ar --max_tokens 5".split()) == 0
    assert "sample: At first " in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert main(["play", "--max_tokens", "12", "--output", str(page)]) == 0
    assert page.stat().st_size > 10_000


@pytest.mark.parametrize(
    "words",
    [
        "run --dataset tiny:1 --mode ar --variant fly",
        "run --dataset tiny:1 --mode ar --variant fly --output new/run",
        "run --dataset tiny:1 --num_blocks 2",
        "run --dataset tiny:1 --save_pairs",
        "experiment speedup --problems 2 --values 'ar variant=fly'",
        "generate --mode ar --variant fly --trace answer.jsonl",
        "play --mode ar --variant fly",
        "calibrate --depth 0 --output costs.json",
    ],
)
def test_what_is_refused_leaves_nothing_behind(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(words)) == 2
    assert not [*tmp_path.iterdir()]
    assert "same command" not in capsys.readouterr().err


def test_a_tiny_model_says_what_it_understands(capsys):
    words = ["generate", "What is 2 + 2?", "--mode", "ar"]
    fails(capsys, words, "What is 2 + 2?", "At first ")


def test_a_setting_without_effect_is_noted_once(tmp_path, capsys):
    """A program gets one warning, at the line that made the reasoner; commands a
    note."""
    folder = write_checkpoint(tmp_path / "model", seed=1)
    asks = {"repetition_penalty": 1.05, "temperature": 0.5}
    (folder / "generation_config.json").write_text(json.dumps(asks))
    with pytest.warns(UserWarning, match="repetition_penalty") as warned:
        Reasoner(folder, None)
    assert [warning.filename for warning in warned] == [__file__]
    flags = f"--mode ar --model {folder}"
    run = f"run --dataset tiny:1 --output {tmp_path / 'run'} --max_tokens_len 90"
    with warnings.catch_warnings(record=True) as warned_again:
        for words in (f"generate How --max_tokens 3 {flags}", f"{run} {flags}"):
            assert main(words.split()) == 0
            assert capsys.readouterr().err.count("repetition_penalty") == 1
    assert not warned_again


def test_one_thread_for_the_tiny_models():
    before = torch.get_num_threads()
    try:
        assert Placement(threads=2).set_threads("tiny-target") == 2
        assert Placement().set_threads("tiny-target", "tiny-draft") == 1
    finally:
        torch.set_num_threads(before)


def test_the_demo_in_a_pipe_is_plain(capsys):
    assert main(["demo", "--max_tokens", "40"]) == 0
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err
    assert "plain decoding" in output.out
    for mode in ("ar", "sd", "lr", "lr+sd"):
        assert re.search(rf"^ {re.escape(mode)} ", output.out, re.MULTILINE)


@pytest.mark.parametrize("command", ["generate Hi --mode lr", "demo Hi"])
def test_a_pair_without_a_named_verifier_hears_what_is_faster(
    command, target, draft, capsys
):
    pair = ["--model", str(target), "--draft_model", str(draft), "--max_tokens", "40"]
    hint = "--draft_confidence 0.7"
    for verifier, heard in ([], True), (["--verifier", "always"], False):
        assert main([*command.split(), *pair, *verifier]) == 0
        output = capsys.readouterr()
        assert (hint in " ".join((output.out + output.err).split())) is heard
