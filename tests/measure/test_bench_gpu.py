"""`lr bench gpu` at tiny shapes on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lr.commands.cli import main
from lr.measure.bench.gpu import (
    GpuPlan,
    Rates,
    figures,
    least_seconds,
    measure_rates,
)
from lr.measure.bench.report import BenchWay
from lr.measure.bench.step import BenchTally
from lr.measure.bench.synthetic import Synthetic
from lr.model.dummy import SHAPES, shape
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.theory.cost import Answers
from lr.types import Role

SMALL = (
    "--device cpu --tokens 24 --prompt 20 --repeats 2 --batches 1 2 --step_tokens 6 --k 2"
).split()


def test_a_pass_reads_what_the_model_has() -> None:
    config, model = shape("tiny-target"), load_model("tiny-target", dtype=torch.float32)
    weights = sum(p.numel() for p in model.parameters())
    cache = config.cached_per_token
    slow_memory = Rates(copied=1.0, read=1.0, flops=1e9)
    least = least_seconds(config, torch.float32, slow_memory, 2, 100)
    assert least == 4 * (weights + cache * 2 * 100)
    slow_units = Rates(copied=1e18, read=1e18, flops=1.0)
    assert least_seconds(config, torch.float32, slow_units, 2, 9) == 4 * weights


def test_the_example_of_the_docstring() -> None:
    rates = Rates(copied=3.9e12, read=4e12, flops=7e14)
    large = SHAPES["Qwen3-32B"]
    one = least_seconds(large, torch.bfloat16, rates, 1, 0)
    assert one == pytest.approx(16.0e-3, rel=0.03)
    assert least_seconds(large, torch.bfloat16, rates, 200, 0) > 1.1 * one


def test_rates_are_measured() -> None:
    rates = measure_rates(torch.device("cpu"), torch.float32, small=True)
    assert 1e7 < rates.copied < 1e13
    assert 1e7 < rates.read < 1e13
    assert 1e6 < rates.flops < 1e15


@pytest.mark.usefixtures("coarse_predictions", "small_peaks")
def test_the_command_times_all_modes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpu.json"
    rates = ["--alpha1", "1", "--alpha2", "1", "--json", str(file)]
    assert main(["bench", "gpu", *SMALL, *rates]) == 0
    assert "limit ms" in capsys.readouterr().out
    document = json.loads(file.read_text())
    rows = {row["way"]: row for row in document["modes"]}
    assert list(rows) == [
        *("ar", "sd", "lr driver=lockstep", "lr driver=overlapped"),
        *("lr+sd driver=lockstep", "lr+sd driver=overlapped"),
    ]
    for row in rows.values():
        assert row["stats"]["tokens"] == 48 and len(row["tokens_per_second"]) == 2
        assert row["predicted_tokens_per_second"] > 0
    stats = rows["lr driver=lockstep"]["stats"]  # all but the step that the budget cuts
    assert stats["judged"] - stats["accepted"] <= 2 < stats["accepted"]
    assert rows["sd"]["token_acceptance"] == 1.0
    assert [row["batch"] for row in document["passes"]] == [1, 2, 1, 2]


def test_the_prediction_is_the_cost_models_at_the_costs_of_this_run() -> None:
    """Passes of the target take 10 ms, and 1 ms more for each further row, but 5 ms for
    one row alone; of the draft 0.1 ms."""
    passes = [{Role.TARGET: {(1, 0): (200, 1.0)}, Role.DRAFT: {}}]
    plain = BenchTally(
        BenchWay("ar", "ar"),
        [1.0, 2.0],
        [100, 200],
        answers=Answers(chain_lengths=[20], emitted=[10] * 20, passes=passes),
    )

    def lookahead(depth: int) -> BenchTally:
        """Steps of ten tokens, all of them accepted; no passes of its own."""
        answers = Answers(judged=20, accepted=20, chain_lengths=[20], emitted=[10] * 20)
        answers.lengths |= {Role.TARGET: [10] * 20, Role.DRAFT: [10] * 20}
        settings = {"driver": "overlapped", "drafter": "ngram", "depth": depth}
        way = BenchWay(f"lr, {depth}", "lr", settings)
        return BenchTally(way, [1.0, 2.0], [300, 600], answers=answers)

    measured = {
        Role.TARGET: [
            {"batch": 1, "seconds": [0.005] * 2, "own_kernels": True},
            {"batch": 2, "seconds": [0.011] * 2, "own_kernels": False},
            {"batch": 4, "seconds": [0.013] * 2, "own_kernels": False},
        ],
        Role.DRAFT: [{"batch": 1, "seconds": [1e-4] * 2, "own_kernels": True}],
    }
    options, synthetic = GenerateOptions(mode="lr"), Synthetic(1.0, 0.0)
    plan = GpuPlan(options, (), synthetic, (1, 4), steps=100, repeats=2)
    rows = figures([plain, lookahead(1), lookahead(3)], measured, plan)
    _, depth_1, depth_3 = (row["predicted_tokens_per_second"] for row in rows)
    # The draft takes nearly no time: depth d keeps 1 + d rows in flight, at 10 + d ms a
    # pass.
    assert depth_1 == pytest.approx(2 * 1000 / 11, rel=0.1)
    assert depth_3 == pytest.approx(4 * 1000 / 13, rel=0.1)
    assert rows[1]["speedup"]["median"] == pytest.approx(3)


@pytest.mark.parametrize(
    ("flags", "noun"),
    [
        (["--target", "Qwen3-32B", "--device", "cpu"], "do not fit"),
        (["--target", "Qwen3-99B"], "Qwen3-99B"),
        (["--repeats", "1"], "repeats"),
        (["--ways", "lr width=2"], "width"),
        (["--ways", "fast"], "mode"),
        (["--draft_device", "cuda:77"], "cuda:77"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    flags: list[str],
    noun: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lr.measure.memory.free_bytes", lambda _: 8 << 30)
    assert main(["bench", "gpu", *flags]) == 2
    assert noun in capsys.readouterr().err
