"""Experiments in a very small size: every one runs, writes its three files, and finds
again what it has done.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lr.commands.cli import main
from lr.measure.datasets import load_items
from lr.measure.experiment import ArmAnswers, Finding, Lab, Outcome, write_finding
from lr.measure.experiments import (
    BUDGETS,
    EXPERIMENTS,
    budget_arm,
    covered,
    splits,
)
from lr.measure.report import RunResults, cell, make_row
from lr.measure.store import AnswerKey
from lr.watch.figures.plots import Bars


def test_an_experiment(tmp_path: Path) -> None:
    name = "profile"
    words = [
        "experiment",
        name,
        "--problems",
        "2",
        "--max_tokens",
        "60",
        "--verifier",
        "oracle",
        "--draft_model",
        "tiny-draft",
    ]
    words += [
        "--output",
        str(tmp_path / "out"),
        "--work",
        str(tmp_path / "work"),
        "--threads",
        "1",
    ]
    assert main(words) == 0
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == [f"{name}.{ending}" for ending in ("json", "md", "png", "svg")]
    content = json.loads(
        (tmp_path / "out" / f"{name}.json").read_text(encoding="utf-8")
    )
    assert len(content["rows"]) >= 2 and all(
        len(row) == len(content["columns"]) for row in content["rows"]
    )
    times = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "work").rglob("[0-9].json")
    }
    assert len(times) >= 4
    assert main(words) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in times.items()), (
        "nothing is done twice"
    )
    lockstep, overlapped = content["rows"]
    assert lockstep[6] == 0.0, (
        "on one thread draft and target are never at work together"
    )
    assert overlapped[1] > 0


@pytest.mark.parametrize("name", ["speedup", "width", "segmentation", "budget"])
def test_every_experiment_shows_what_its_arms_give(name: str) -> None:
    """From results made by hand: every row of the table has the same columns."""
    experiment = EXPERIMENTS[name]
    lab: Any = SimpleNamespace(has_oracle=True, verifier="judge")
    stats = {
        "accepted": 3,
        "judged": 4,
        "target_passes": 20,
        "tokens": 60,
        "target_tokens": 100,
        "wasted_target_tokens": 25,
    }
    runs = {}
    for arm in experiment.arms(lab):
        made = {
            "generation_tokens": [1] * 60,
            "time_taken": 2.0,
            "speed": 30.0,
            "right": True,
            "answer": "1",
        }
        made |= {"stats": stats, "steps": [["accepted", 20], ["correction", 40]]}
        runs[arm.name] = RunResults(
            Path(arm.name),
            {AnswerKey(0): made, AnswerKey(1): made},
            {"mode": arm.mode},
            ("cpu",),
        )
    baseline = next(run for run in runs.values() if run.mode == "ar")
    outcome = Outcome()
    for arm in experiment.arms(lab):
        run = runs[arm.name]
        outcome[arm.name] = ArmAnswers(lab, arm, run, make_row(run, baseline))
    finding = experiment.find(outcome)
    assert len(finding.rows) >= 6 and all(
        row.keys() == finding.rows[0].keys() for row in finding.rows
    )
    assert finding.panels and all(
        cell(next(iter(row.values()))) for row in finding.rows
    )


@pytest.mark.usefixtures("whole_targets")
def test_the_accuracy_of_verifiers_falls_with_what_they_let_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty-four problems are enough to tell the oracle from no verification at all."""
    monkeypatch.setattr("lr.measure.experiments.VERIFIERS", ("oracle", "always"))
    verifiers = EXPERIMENTS["verifiers"]
    lab = Lab(load_items("tiny:24"), tmp_path, judge=None, concurrency=8)
    finding = verifiers.find(lab.run(verifiers.arms(lab)))
    rows: dict[object, Any] = {row["verifier"]: row for row in finding.rows}
    assert (
        rows["plain decoding"]["right"] >= 23 / 24
        and rows["oracle"]["right"] >= 23 / 24
    )
    assert rows["always"]["right"] <= 21 / 24 and rows["always"]["lost"] >= 2
    assert rows["oracle"]["precision"] == rows["oracle"]["recall"] == 1.0
    assert rows["always"]["steps kept"] == 1.0 and rows["always"]["recall"] == 1.0
    assert rows["always"]["precision"] < 0.95


def test_names_and_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "tables"]) == 2
    assert "expected one of " + ", ".join(EXPERIMENTS) in capsys.readouterr().err
    assert main(["experiment", "speedup", "--model", "some/checkpoint"]) == 2
    assert main(["experiment", "speedup", "--problems", "1"]) == 2


def test_the_splits_of_a_budget() -> None:
    assert {k1 * k2 for k1, k2 in splits()} == set(BUDGETS)
    assert [split for split in splits() if split[0] * split[1] == 4] == [
        (1, 4),
        (2, 2),
        (4, 1),
    ]
    both = budget_arm(4, 2)
    assert (
        both.mode == "lr+sd"
        and both.options["depth"] == 3
        and both.options["max_target_rows"] == 4
    )
    assert both.options["num_speculative_tokens"] == 1
    assert [budget_arm(*split).mode for split in ((1, 1), (1, 4), (4, 1))] == [
        "ar",
        "sd",
        "lr",
    ]


def test_a_finding_is_written_whole(tmp_path: Path) -> None:
    finding = Finding(
        "A title",
        [{"a": 1, "b": float("nan")}, {"a": "x", "b": (0.5, 0.25)}],
        [Bars("bars", ["a"], [float("nan")])],
        ["So."],
    )
    write_finding("name", finding, tmp_path, "lr some", {"cpu": "some"})
    text = (tmp_path / "name.md").read_text(encoding="utf-8")
    assert (
        "| 1 |  |" in text
        and "| x | 0.50 to 0.25 |" in text
        and "- So." in text
        and "lr some" in text
    )
    assert json.loads((tmp_path / "name.json").read_text(encoding="utf-8"))["rows"] == [
        [1, None],
        ["x", [0.5, 0.25]],
    ]
    assert cell(None) == "" and cell(3) == "3"


def test_spans() -> None:
    assert covered([(0, 2), (1, 3), (5, 6)]) == 4
    assert covered([]) == 0
