"""`lr info --model` says what models would take, and `lr run` refuses what does not fit
before it loads; `--load_format dummy`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lr.commands.cli import main

PAPER = [
    "--model",
    "Qwen/Qwen3-32B",
    "--draft_model",
    "Qwen/Qwen3-1.7B",
    "--judge_model",
    "Qwen/Qwen2.5-7B-Instruct",
]


def test_the_papers_layout_is_planned_without_its_gpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    devices = [
        "--target_device",
        "cuda:0,cuda:1",
        "--draft_device",
        "cuda:2",
        "--judge_device",
        "cuda:3",
    ]
    assert main(["info", *PAPER, *devices, "--free_gib", "79"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("30.5 GiB") == 2  # half of the target on each
    assert "cuda:3" in shown and "37000 tokens" in shown


@pytest.mark.parametrize("role", ["draft", "judge"])
def test_a_layout_that_is_refused_is_not_planned(
    role: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: None)
    monkeypatch.setattr("lr.measure.memory.free_bytes", lambda _: 80 << 30)
    devices = ["--target_device", "cuda:0, cuda:1", f"--{role}_device", "cuda:1"]
    assert main(["info", *PAPER, *devices]) == 2
    out, error = capsys.readouterr()
    assert (
        f"the {role} is to be on cuda:1, where another process runs a rank" in error
        and not out
    )
    assert (
        main(["info", *PAPER, *devices, "--free_gib", "80"]) == 2
    )  # GPUs that are not here
    assert "where another process runs a rank" in capsys.readouterr().err
    assert main(["info", *PAPER, *devices[:-1], "cuda:2"]) == 0
    assert "together" in capsys.readouterr().out


def test_one_gpu_of_80_gib_is_too_small_and_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["info", *PAPER, "--target_device", "cuda:0", "--free_gib", "79"]) == 2
    out, error = capsys.readouterr()
    assert "together" in out  # the table comes first
    assert (
        "do not fit on cuda:0" in error
        and "--judge_gpu_id" in error
        and "Traceback" not in error
    )


def test_lr_run_plans_before_it_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_loading(*arguments: object, **settings: object) -> None:
        raise AssertionError("the plan comes first")

    monkeypatch.setattr("lr.measure.memory.free_bytes", lambda _: 8 << 30)
    monkeypatch.setattr("lr.reasoner.load_model", no_loading)
    flags = [
        "--dataset",
        "tiny:2",
        *PAPER,
        "--load_format",
        "dummy",
        "--device",
        "cpu",
        "--output",
        str(tmp_path / "run"),
    ]
    assert main(["run", *flags, "--mode", "lr"]) == 2
    assert "do not fit on cpu" in capsys.readouterr().err


def test_lr_run_with_random_weights_in_the_shapes_of_the_tiny_family(
    tmp_path: Path,
) -> None:
    flags = [
        "--model",
        "tiny-target",
        "--draft_model",
        "tiny-draft",
        "--verifier",
        "exact",
        "--load_format",
        "dummy",
    ]
    sizes = [
        "--max_tokens_len",
        "620",
        "--max_step_tokens",
        "10",
        "--output",
        str(tmp_path),
    ]
    assert (
        main(
            [
                "run",
                "--dataset",
                "tiny:1",
                "--device",
                "cpu",
                "--mode",
                "lr",
                *flags,
                *sizes,
            ]
        )
        == 0
    )
    result = json.loads((tmp_path / "0.json").read_text())
    assert (
        300 < len(result["full_tokens"]) <= 620 and result["right"] is False
    )  # it may say eos
