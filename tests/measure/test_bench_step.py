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
from lr.measure.datasets import load_items
from lr.reasoner import Reasoner


def test_every_way_has_its_own_name_and_settings() -> None:
    chosen = ways(3)
    assert chosen[0] == BenchWay("ar", "ar")
    settings = {(way.mode, repr(sorted(way.settings.items()))) for way in chosen}
    assert len({way.name for way in chosen}) == len(settings) == len(chosen)


def test_measuring(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target", seed=1, layers=2)
    draft = write_checkpoint(tmp_path / "draft", seed=2)
    chosen = [
        BenchWay("ar", "ar"),
        BenchWay("lr", "lr", {"schedule": "sync"}),
        BenchWay("both", "lr+sd", {"drafter": "ngram", "driver": "overlapped"}),
    ]
    settings = {"depth": 2, "max_tokens": 40, "segmenter": "fixed", "segment_tokens": 5}
    with Reasoner(target, draft, "random:0.5") as reasoner:
        tallies = measure(reasoner, chosen, load_items("tiny:2"), 2, settings)
    plain, sync, hybrid = rows(tallies, fitted_costs(tallies), 2, 8)
    assert plain["speedup"]["median"] == 1.0
    assert sync["predicted_tokens_per_second"] > 0
    for row, tally in zip((plain, sync, hybrid), tallies, strict=True):
        assert row["stats"]["tokens"] == sum(tally.tokens) == 160
        assert len(row["tokens_per_second"]) == 2 and row["target_share"] <= 1.0
    assert hybrid["step_acceptance"] is not None


@pytest.mark.usefixtures("short_answers")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench step --problems 1 --dataset tiny:1 --repeats 2 --json".split()
    # "sd" is the name of a row: no other that holds it
    only = ["--only", "sd", "lr, sync, lock"]
    assert main([*words, str(tmp_path / "step.json"), *only]) == 0
    assert "a pass of the target takes" in capsys.readouterr().out
    content = json.loads((tmp_path / "step.json").read_text())
    names = [row["way"] for row in content["rows"]]
    assert names == ["ar", "sd", "lr, sync, lockstep"]
    assert content["pass_seconds"]["target"]["first"] > 0
    for flags in ("--repeats 1", "--only nonsense"):
        assert main(["bench", "step", *flags.split()]) == 2
