"""Every variant that ships goes through `lr generate`, `lr run`, `lr bench step` and
`lr play`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lr.commands.cli import main
from lr.variants.loading import SHIPPED
from lr.watch.trace.file import read_trace

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"


@pytest.mark.parametrize("name", SHIPPED)
def test_generate_run_and_play(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--max_tokens", "40", "--variant", name]
    assert main(["generate", QUESTION, "--trace", "trace.jsonl", *short]) == 0
    assert read_trace(tmp_path / "trace.jsonl").header.variant == name
    assert main(["play", "trace.jsonl", "-o", "player.html"]) == 0
    assert name in (tmp_path / "player.html").read_text("utf-8")
    run = ["run", "--dataset", "tiny:1", "--output", "out", "--max_tokens_len", "40"]
    assert main([*run, "--variant", name]) == 0
    settings = json.loads((tmp_path / "out" / "run.json").read_text("utf-8"))
    assert name in json.dumps(settings)
    assert capsys.readouterr().out


def test_a_mode_that_is_said_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`traversal` asks for mode sd, and lr would have no use for it."""
    run = [
        "run",
        "--dataset",
        "tiny:1",
        "--max_tokens_len",
        "200",
        "--variant",
        "traversal",
    ]
    assert main([*run, "--output", str(tmp_path / "own")]) == 0
    stats = json.loads((tmp_path / "own" / "0.json").read_text("utf-8"))["stats"]
    assert stats["judged"] == 0 and "tokens kept" in capsys.readouterr().err
    assert main([*run, "--mode", "lr", "--output", str(tmp_path / "lr")]) == 2
    assert (
        "mode 'lr' makes no use of the variant's drafter and rule"
        in capsys.readouterr().err
    )


@pytest.mark.usefixtures("short_answers")
@pytest.mark.parametrize("first", range(2))
def test_bench_step_measures_them_all(
    first: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Half of them at a time, since each takes some seconds, with short answers."""
    names = SHIPPED[first::2]
    monkeypatch.chdir(tmp_path)
    how = ["--dataset", "tiny", "--problems", "1", "--repeats", "2", "--depth", "2"]
    assert (
        main(["bench", "step", *how, "--only", "nothing such", "--variant", *names])
        == 0
    )
    said = capsys.readouterr().out
    assert not [name for name in names if name not in said]


def test_the_experiment_has_a_row_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    how = [
        "--problems",
        "2",
        "--max_tokens",
        "24",
        "--threads",
        "1",
        "--verifier",
        "oracle",
    ]
    how += ["--output", "out", "--work", "work", "--draft_model", "tiny-draft"]
    assert (
        main(
            [
                "experiment",
                "speedup",
                *how,
                "--variant",
                "best_of",
                "rsd(threshold=0.7)",
            ]
        )
        == 0
    )
    table = json.loads((tmp_path / "out" / "speedup.json").read_text("utf-8"))
    names = [str(row[0]) for row in table["rows"]]
    assert "best_of" in names and any(name.startswith("rsd") for name in names)
