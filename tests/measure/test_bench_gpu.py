"""`lr bench gpu` at tiny shapes on the CPU."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from lr.commands.cli import main
from lr.measure.bench.gpu import (
    GpuPlan,
    ModeRow,
    Peaks,
    figures,
    measure_peaks,
    pass_cost,
    ways,
)
from lr.measure.bench.report import BenchWay
from lr.measure.bench.synthetic import Synthetic
from lr.model.dummy import SHAPES, shape
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.theory.cost import Answers
from lr.types import Role

SMALL = (
    "--tokens 24 --prompt 20 --repeats 2 --batches 1 2 --step_tokens 6 --k 2".split()
)


def test_the_cost_of_a_pass_counts_what_the_model_has() -> None:
    config = shape("tiny-target")
    model = load_model("tiny-target", dtype=torch.float32)
    norms = sum(p.numel() for name, p in model.named_parameters() if "norm" in name)
    matrices = (
        sum(p.numel() for p in model.parameters()) - norms
    )  # tied: the embedding is the head
    cache = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    cost = pass_cost(config, torch.float32, [1, 1], [100, 50], 2)
    assert cost.bytes == 4 * (matrices + cache * 150 + 2 * config.hidden_size)
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * 150
    assert cost.flops == 2 * 2 * matrices + attention
    # a prompt of 3 tokens: they see 1, 2 and 3 positions
    assert pass_cost(config, torch.float32, [3], [3], 0).flops == pytest.approx(
        2 * 3 * (matrices - config.vocab_size * config.hidden_size)
        + 4 * config.num_layers * config.num_heads * config.head_dim * 6
    )


def test_the_example_of_the_docstring() -> None:
    large, peaks = SHAPES["Qwen3-32B"], Peaks(4e12, 7e14)
    one = pass_cost(large, torch.bfloat16, [1], [0], 1)
    seconds, bound = one.limit(peaks)
    assert bound == "bandwidth" and seconds == pytest.approx(16.0e-3, rel=0.03)
    many = pass_cost(large, torch.bfloat16, [1] * 200, [0] * 200, 200)
    assert many.limit(peaks)[1] == "arithmetic"


def test_peaks_are_measured() -> None:
    peaks = measure_peaks(torch.device("cpu"), torch.float32, small=True)
    assert 1e7 < peaks.bytes_per_second < 1e13 and 1e6 < peaks.flops_per_second < 1e15


def test_ways() -> None:
    names = [way.name for way in ways(["ar", "lr"], ["lockstep", "overlapped"])]
    assert names == ["ar", "lr, lockstep", "lr, overlapped"]


@pytest.mark.usefixtures("coarse_predictions", "small_peaks")
def test_the_command_times_all_modes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpu.json"
    flags = ["--device", "cpu", "--alpha1", "1", "--alpha2", "1", "--json", str(file)]
    assert main(["bench", "gpu", *SMALL, *flags]) == 0
    shown = capsys.readouterr().out
    assert (
        "planned for chains of 44 tokens" in shown
        and "given" in shown
        and "random" in shown
    )
    found = json.loads(file.read_text())
    assert [row["way"] for row in found["modes"]] == [
        *(
            "ar",
            "sd",
            "lr, lockstep",
            "lr, overlapped",
            "lr+sd, lockstep",
            "lr+sd, overlapped",
        )
    ]
    rows = {row["way"]: row for row in found["modes"]}
    assert all(
        row["stats"]["tokens"] == 48 and len(row["tokens_per_second"]) == 2
        for row in rows.values()
    )
    stats = rows["lr, lockstep"]["stats"]
    assert (
        stats["judged"] - stats["accepted"] <= 2 < stats["accepted"]
    )  # but for the step that the budget cuts
    assert (
        rows["sd"]["token_acceptance"] == 1.0
        and rows["sd"]["tokens_per_target_pass"] > 2
    )
    assert [row["what"] for row in found["passes"]] == 2 * [
        "decode, batch 1",
        "decode, batch 2",
        "prompt of 20",
    ]
    assert all(
        row["limit_seconds"] > 0 and row["median_seconds"] > 0
        for row in found["passes"]
    )
    assert all(row["predicted_tokens_per_second"] > 0 for row in rows.values())
    assert "| / model |" in " ".join(shown.split()) and "cost model" in shown
    assert (
        found["synthetic"]["alpha1"] == 1.0
        and found["models"]["target"] == "tiny-target"
    )


def lookahead_row(depth: int) -> ModeRow:
    """Steps of ten tokens, all of them accepted; who wrote what, and no passes of its
    own."""
    answers = Answers(
        Counter([0] * 20), Counter([0] * 20), chain_lengths=[20], emitted=[10] * 20
    )
    answers.lengths |= {Role.TARGET: [10] * 20, Role.DRAFT: [10] * 20}
    settings = {"driver": "overlapped", "drafter": "ngram", "depth": depth}
    way = BenchWay(f"lr, {depth}", "lr", settings)
    return ModeRow(way, [1.0, 2.0], [300, 600], answers=answers, of_limit=[0.5, 0.5])


def test_the_prediction_is_the_cost_models_at_the_costs_of_this_run() -> None:
    """Passes of the target take 10 ms, and 1 ms more for each further row; of the draft
    0.1 ms."""
    plain = ModeRow(BenchWay("ar", "ar"), [1.0, 2.0], [100, 200], of_limit=[0.5, 0.5])
    passes = [{Role.TARGET: {(1, 0): (200, 2.0)}, Role.DRAFT: {}}]
    plain.answers = Answers(chain_lengths=[20], emitted=[10] * 20, passes=passes)
    four = {"what": "decode, batch 4", "tokens_per_step": 4, "seconds": [0.013] * 2}
    prompt = {"what": "prompt of 9", "tokens_per_step": 9, "seconds": [9.0] * 2}
    single = {"what": "decode, batch 1", "tokens_per_step": 1, "seconds": [1e-4] * 2}
    measured = [four, prompt], [single, prompt]
    plan = GpuPlan(
        GenerateOptions(mode="lr"),
        (),
        Synthetic(1.0, 0.0),
        (1, 4),
        steps=100,
        repeats=2,
    )
    found = figures([plain, lookahead_row(1), lookahead_row(3)], measured, plan)
    ar, one, three = (row["predicted_tokens_per_second"] for row in found)
    assert ar == pytest.approx(100)
    # the draft takes nearly no time: depth d keeps 1 + d rows in flight, at 10 + d ms a
    # pass
    assert one == pytest.approx(2 * 1000 / 11, rel=0.1)
    assert three == pytest.approx(4 * 1000 / 13, rel=0.1)
    assert [row["tokens_per_second"] for row in found] == [
        [100, 100],
        [300, 300],
        [300, 300],
    ]
    assert found[1]["speedup"]["median"] == pytest.approx(3)


@pytest.mark.usefixtures("coarse_predictions", "small_peaks")
def test_a_target_on_two_devices(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    flags = [
        "--device",
        "cpu,cpu",
        "--modes",
        "lr",
        "--drivers",
        "lockstep",
        "--json",
        str(file),
    ]
    flags += ["--target", "tiny-draft"]  # few layers, each of which is two exchanges
    assert main(["bench", "gpu", *SMALL, *flags]) == 0
    found = json.loads(file.read_text())
    assert [row["way"] for row in found["modes"]] == ["ar", "lr, lockstep"]
    target, draft = found["peaks"]["target"], found["peaks"]["draft"]
    assert target["bytes_per_second"] == 2 * draft["bytes_per_second"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--target", "Qwen3-32B", "--device", "cpu", "--tokens", "30000"],
            "do not fit on cpu",
        ),
        (["--target", "Qwen3-99B"], "there is no shape 'Qwen3-99B'"),
        (["--repeats", "1"], "repeats is 1"),
        (["--drivers", "--modes", "lr"], "drivers is ()"),
        (["--draft_device", "cuda:77"], "device 'cuda:77' cannot be used here"),
        (["--json", "nowhere/gpu.json"], "no folder nowhere"),
    ],
)
def test_what_cannot_be_is_said_at_once(
    flags: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lr.measure.memory.free_bytes", lambda _: 8 << 30)
    assert main(["bench", "gpu", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
