"""The command line as a stranger meets it: help, answers on stdout; for what is theirs
to mend one message and exit code 2."""

import re
import warnings

import pytest
import torch
from model_kit import write_checkpoint
from tests_root import python

from lr.commands.cli import COMMANDS
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


def test_help_lists_at_most_fifteen_commands_in_three_groups(cli):
    assert len(COMMANDS) <= 15
    for words in ("", "--help"):
        shown = cli(words).out
        assert all(f"lr {name}" in shown for name in COMMANDS)
        assert re.findall(r"^(\w+):$", shown, re.MULTILINE) == [
            "watch",
            "check",
            "measure",
        ]


@pytest.mark.parametrize(
    "words", ["frob", "tiny frob", "bench", "bench frob", "--frob"]
)
def test_unknown_commands_get_the_list(words, cli):
    out, err = cli(words, 2)
    assert "lr demo" in err and out == ""


@pytest.mark.parametrize(
    "words, meant",
    [("generat", "generate"), ("paly", "play"), ("play bord", "board"),
     ("step trains", "train"), ("generate --dept 3", "--depth")]
)  # fmt: skip
def test_what_may_be_meant_is_named(words, meant, cli):
    assert re.search(rf"(did|Did|Perhaps) you meant?\W[^?]*{meant}", cli(words, 2).err)


def test_every_exact_mode_writes_the_same_answer(target, draft, cli):
    words = f"generate 'How many?' --model {target} --draft_model {draft} --seed 4"
    words += " --max_tokens 30 --verifier exact --dtype float64 --acceptance match"
    outputs = set()
    for mode in ("lr", "ar", "sd", "lr+sd"):
        out, err = cli(f"{words} --mode {mode}")
        outputs.add(out)
        assert "target passes" in err
        assert "\x1b[" not in out  # plain text when piped
    assert len(outputs) == 1 and outputs != {"\n"}


def fails(cli, words, *expected):
    """The command ends with code 2, one message that contains `expected`, and nothing
    on stdout."""
    out, err = cli(words, 2)
    message = " ".join(err.replace("│", " ").split())
    assert out == ""
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
def test_impossible_flags(flags, named, target, draft, cli):
    fails(cli, f"generate q --model {target} --draft_model {draft} {flags}", named)


def test_a_missing_model_is_named(target, cli):
    fails(cli, "generate q --model nosuch", "nosuch")
    fails(cli, f"generate q --mode lr --model {target}", "--draft_model")
    fails(cli, "demo --seconds 0", "seconds")


def test_without_a_question_a_sample_problem_is_taken(tmp_path, cli):
    assert "sample: At first " in cli("generate --mode ar --max_tokens 5").err
    page = tmp_path / "page.html"
    cli(f"play --max_tokens 12 --output {page}")
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
def test_what_is_refused_leaves_nothing_behind(words, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    assert "same command" not in cli(words, 2).err
    assert not [*tmp_path.iterdir()]


def test_a_tiny_model_says_what_it_understands(cli):
    question = "What is 2 + 2?"
    fails(cli, f"generate '{question}' --mode ar", question, "At first ")


def test_a_setting_without_effect_is_noted_once(tmp_path, cli):
    """A program gets one warning, at the line that made the reasoner; commands a
    note."""
    folder = write_checkpoint(tmp_path / "model", seed=1)
    asks = '{"repetition_penalty": 1.05, "temperature": 0.5}'
    (folder / "generation_config.json").write_text(asks)
    with pytest.warns(UserWarning, match="repetition_penalty") as warned:
        Reasoner(folder, None)
    assert [warning.filename for warning in warned] == [__file__]
    flags = f"--mode ar --model {folder}"
    run = f"run --dataset tiny:1 --output {tmp_path / 'run'} --max_tokens_len 90"
    with warnings.catch_warnings(record=True) as warned_again:
        for words in (f"generate How --max_tokens 3 {flags}", f"{run} {flags}"):
            assert cli(words).err.count("repetition_penalty") == 1
    assert not warned_again


def test_one_thread_for_the_tiny_models():
    before = torch.get_num_threads()
    try:
        assert Placement(threads=2).set_threads("tiny-target") == 2
        assert Placement().set_threads("tiny-target", "tiny-draft") == 1
    finally:
        torch.set_num_threads(before)


def test_the_demo_in_a_pipe_is_plain(cli):
    out, err = cli("demo --max_tokens 40")
    assert "\x1b" not in out + err
    assert "plain decoding" in out
    for mode in ("ar", "sd", "lr", "lr+sd"):
        assert f"\n {mode} " in out


@pytest.mark.parametrize("command", ["generate Hi --mode lr", "demo Hi"])
def test_a_pair_without_a_named_verifier_hears_what_is_faster(
    command, target, draft, cli
):
    words = f"{command} --model {target} --draft_model {draft} --max_tokens 40"
    for verifier, heard in ("", True), (" --verifier always", False):
        printed = " ".join("".join(cli(words + verifier)).split())
        assert ("--draft_confidence 0.7" in printed) is heard
