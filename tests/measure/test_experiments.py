"""Experiments in a very small size: every one runs, writes its files, and finds again
what it has done."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lr.measure.experiments import EXPERIMENTS, budget_ways, speedup_ways, time_shares
from lr.measure.lab import WayResult
from lr.measure.report import RunResults, summarise
from lr.measure.store import AnswerKey
from lr.options import GenerateOptions
from lr.tiny.language import Split, problem
from lr.trace import Stats


@pytest.fixture
def run(cli, tmp_path):
    """Runs an experiment; the rows of its table."""

    def rows_of(name, flags):
        cli(f"experiment {name} --output {tmp_path}/out --work {tmp_path}/work {flags}")
        files = {path.suffix for path in (tmp_path / "out").glob(f"{name}.*")}
        assert files == {".json", ".md", ".png", ".svg"}
        return json.loads((tmp_path / "out" / f"{name}.json").read_text())["rows"]

    return rows_of


def test_an_experiment_continues(run, tmp_path):
    flags = "--dataset tiny:3 --max_tokens 60 --verifier oracle --threads 1 --problems"
    plain, *lookahead = run("profile", f"{flags} 2")
    assert plain["draft"] == plain["judge"] == 0
    assert all(row["target"] > 0 and row["draft"] > 0 for row in lookahead)
    files = list(tmp_path.rglob("work/**/[0-9].json"))
    times = [path.stat().st_mtime_ns for path in files]
    assert len(files) == 6
    run("profile", f"{flags} 3")
    assert [path.stat().st_mtime_ns for path in files] == times, "nothing is done twice"
    assert len([*tmp_path.rglob("work/**/[0-9].json")]) == 9


def test_repeats_are_other_samples(run, tmp_path):
    flags = "--problems 2 --repeats 2 --max_tokens 40 --values exact random:0.5"
    rows = run("verifiers", flags)
    names = ["plain decoding", "exact", "random:0.5"]
    assert [row["verifier"] for row in rows] == names
    files = {path.name for path in (tmp_path / "work").rglob("exact/[0-9]*.json")}
    assert files == {"0.json", "0.1.json", "1.json", "1.1.json"}


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_table_has_all_its_columns(name):
    """From results made by hand: every row has the same columns."""
    experiment = EXPERIMENTS[name]
    lab = SimpleNamespace(
        values=(),
        variants=(),
        options=GenerateOptions(),
        mode="lr",
        models=SimpleNamespace(verifier=lambda name: None),
    )
    counts = "accepted judged target_passes draft_passes tokens".split()
    stats = dict.fromkeys(counts, 20)
    stats |= dict.fromkeys(("seconds", "target_seconds", "draft_seconds"), 2)
    record = {
        "generation_tokens": [1] * 60,
        "time_taken": 2.0,
        "right": True,
        "stats": stats,
        "cut_steps": 0,
        "steps": [["accepted", 20], ["correction", 40]],
    }
    ways = experiment.ways(lab)
    runs = [
        RunResults(Path(way.name), {AnswerKey(0): record | {"mode": way.mode}})
        for way in ways
    ]
    baseline = next(run for run in runs if run.mode == "ar")
    results = [
        WayResult(way, summarise(run, baseline))
        for way, run in zip(ways, runs, strict=True)
    ]
    rows = experiment.rows(results)
    assert len(rows) >= 3 and all(row.keys() == rows[0].keys() for row in rows)
    assert rows[0].keys() >= set(experiment.drawn)
    assert len({way.name for way in ways}) == len(ways)


def test_work_beyond_the_time_was_done_at_once():
    stats = Stats(seconds=10, target_seconds=8, draft_seconds=5, verifier_seconds=0.5)
    result = SimpleNamespace(summary=SimpleNamespace(stats=stats))
    shares = {"target": 0.8, "draft": 0.5, "judge": 0.05}
    assert time_shares(result) == pytest.approx(shares | {"overlap": 0.35})
    result.summary.stats = replace(stats, seconds=20)
    assert time_shares(result)["overlap"] == 0, "they may have taken turns"


@pytest.mark.usefixtures("whole_targets")
def test_accuracy_falls_with_what_a_verifier_lets_through(run, tmp_path):
    """Eight problems are enough to tell the oracle from no verification."""
    problems = [problem(Split.TEST, number) for number in range(8, 16)]
    rows = [{"question": p.question, "answer": f"#### {p.answer}"} for p in problems]
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    flags = f"--dataset {path} --problems 8 --values oracle always --driver lockstep"
    plain, oracle, always = run("verifiers", flags)
    assert plain["right"] >= 7 / 8 and oracle["right"] >= 7 / 8
    assert always["right"] <= 6 / 8 and always["lost"] >= 1
    assert always["steps kept"] == 1.0


@pytest.mark.parametrize(
    "flags",
    [
        "tables",
        "speedup --problems 1",
        "width --values x",
        "speedup --values fast",
        "speedup --concurrency 2 --problems 2",
        "speedup --model Qwen3-99B --draft_model tiny-draft",
    ],
)
def test_what_is_refused(flags, cli):
    cli(f"experiment {flags}", 2)


def test_variants_follow_the_ways_that_were_asked_for():
    lab = SimpleNamespace(values=("ar", "lr depth=2"), variants=("specreason",))
    plain, lookahead, variant = speedup_ways(lab)
    assert (plain.mode, lookahead.options) == ("ar", {"depth": 2})
    assert variant.variant == "specreason"


def test_the_splits_of_a_budget():
    lab = SimpleNamespace(values=("4",), options=GenerateOptions(), mode="lr")
    ways = {(way.cells["k1"], way.cells["k2"]): way for way in budget_ways(lab)}
    assert set(ways) == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)}
    modes = {split: way.mode for split, way in ways.items()}
    assert modes[1, 1] == "ar" and modes[1, 4] == "sd" and modes[4, 1] == "lr"
    assert modes[2, 2] == "lr+sd"
    limits = {"depth": 1, "max_target_rows": 2, "num_speculative_tokens": 1}
    assert ways[2, 2].options == limits
