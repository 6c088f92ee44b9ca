"""The measuring loop of `lr bench step` on random models, and the command once,
small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reasoner_kit import write_checkpoint

from lr.commands.cli import main
from lr.measure.bench.report import BenchWay
from lr.measure.bench.step import fitted_costs, measure, rows, ways
from lr.reasoner import Reasoner
from lr.tiny.language import Split, problem


def test_every_way_has_its_own_name_and_settings() -> None:
    made = ways(3, 20)
    assert made[0] == BenchWay("ar", "ar")
    assert len({way.name for way in made}) == len(made)
    assert len({(way.mode, repr(sorted(way.settings.items()))) for way in made}) == len(
        made
    )
    assert all(way.overlapped == way.name.endswith("overlapped") for way in made)


def test_measuring(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target", seed=1, layers=2)
    draft = write_checkpoint(tmp_path / "draft", seed=2)
    chosen = [
        BenchWay("ar", "ar"),
        BenchWay("lr", "lr", {"schedule": "sync"}),
        BenchWay("both", "lr+sd", {"drafter": "ngram", "driver": "overlapped"}),
    ]
    calls: list[None] = []
    settings = {
        "depth": 2,
        "draft_forwards": 8,
        "temperature": None,
        "max_tokens": 40,
        "segmenter": "fixed",
        "segment_tokens": 5,
    }
    with Reasoner(target, draft, "random:0.5") as reasoner:
        tasks = [problem(Split.TEST, number) for number in range(2)]
        tallies = measure(
            reasoner, chosen, tasks, 2, settings, lambda: calls.append(None)
        )
    assert len(calls) == 3 * (1 + 2 * 2)
    made = rows(tallies, fitted_costs(tallies), 2, 8)
    assert [len(row.tally.answers.chain_lengths) for row in made] == [4, 4, 4]
    assert all(len(row.tally.rates) == 2 for row in made)
    assert made[0].speedup.median == 1.0
    assert made[0].predicted is not None
    assert made[1].predicted is not None
    assert made[1].predicted > 0
    for row in made:
        stats, tally = row.tally.stats, row.tally
        assert stats.tokens == sum(tally.tokens) == 160
        assert tally.shares["target"] <= 1.0
        assert row.figures()["accuracy"] == tally.right / 4
    assert made[2].tally.stats.step_acceptance is not None


@pytest.mark.usefixtures("short_answers")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    words = [
        "bench",
        "step",
        "--problems",
        "1",
        "--dataset",
        "tiny",
        "--repeats",
        "2",
        "--only",
        "sd",  # the name of a row: no other that holds it
        "lr, sync, lock",
        "--json",
        str(out),
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "lr, sync, lockstep" in shown
    assert "a pass of the target takes" in shown
    written = json.loads(out.read_text())
    assert [row["name"] for row in written["rows"]] == [
        "ar",
        "sd",
        "lr, sync, lockstep",
    ]
    assert written["pass_seconds"]["target"]["first"] > 0
    assert main(["bench", "step", "--repeats", "1"]) == 2
    assert "repeats is 1, expected at least 2" in capsys.readouterr().err
    assert main(["bench", "step", "--only", "nonsense"]) == 2
    assert "words of the rows' names" in capsys.readouterr().err
