"""`lr info --model` says what models would take, and `lr run` refuses what does not fit
before it loads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lr.commands.cli import main
from lr.commands.run import RunModels
from lr.options import GenerateOptions

PAPER = "--model {0}Qwen3-32B --draft_model {0}Qwen3-1.7B --judge_model {0}Qwen2.5-7B"
NAMED = PAPER.format("")
DUMMY = PAPER.format("dummy:")


def test_the_papers_layout_is_planned_without_its_gpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    devices = (
        "--target_device cuda:0,cuda:1 --draft_device cuda:2 --judge_device cuda:3"
    )
    assert main(f"info {NAMED} {devices} --free_gib 79".split()) == 0
    shown = capsys.readouterr().out
    assert shown.count("30.5 GiB") == 2  # half of the target on each
    assert "cuda:3" in shown


def test_one_gpu_of_80_gib_is_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"info {NAMED} --target_device cuda:0 --free_gib 79".split()) == 2
    out, error = capsys.readouterr()
    assert "together" in out  # the table comes first
    assert "cuda:0" in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("judge", "judge_device", "shares"),
    [
        ("Qwen3-32B", "cpu", True),
        ("Qwen3-1.7B", "cpu", True),
        ("Qwen3-32B", "cuda:0", False),
        ("Qwen2.5-7B", "cpu", False),
    ],
)
def test_a_judge_that_is_target_or_draft_has_their_weights(
    judge: str, judge_device: str, shares: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    models = f"--model Qwen3-32B --draft_model Qwen3-1.7B --judge_model {judge}"
    devices = f"--target_device cpu --judge_device {judge_device}"
    assert main(f"info {models} {devices} --free_gib 900".split()) == 0
    [line] = [x for x in capsys.readouterr().out.splitlines() if " judge " in x]
    assert ("shared" in line and " 0.0 GiB" in line) == shares


def test_a_judge_does_not_share_quantised_weights() -> None:
    """The draft in 4 bits is another model than the judge."""
    models = RunModels(
        model="dummy:Qwen3-32B",
        draft_model="dummy:Qwen3-1.7B",
        judge_model="dummy:Qwen3-1.7B",
        verifier="judge",
    )
    options = GenerateOptions(mode="lr")
    for weights, shares in ((None, True), ("int4", False)):
        plan = replace(models, draft_weights=weights).memory(options, 1000, 1)
        [judge] = [model for model in plan.models if model[1].startswith("judge")]
        assert (judge[2] == 0) == shares


def test_lr_run_plans_before_it_loads(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lr.measure.memory.free_bytes", lambda _: 8 << 30)
    monkeypatch.setattr(
        "lr.engine.loading.load_model",
        lambda *_, **__: pytest.fail("models were loaded"),
    )
    words = f"run --dataset tiny:2 {DUMMY} --device cpu --mode lr --output {tmp_path}/r"
    assert main(words.split()) == 2
    assert "do not fit on cpu" in capsys.readouterr().err


def test_lr_run_with_random_weights(tmp_path: Path) -> None:
    models = "--model dummy:tiny-target --draft_model dummy:tiny-draft --verifier exact"
    sizes = "--max_tokens_len 400 --max_step_tokens 10 --device cpu --mode lr"
    words = f"run --dataset tiny:1 {models} {sizes} --output {tmp_path}"
    assert main(words.split()) == 0
    result = json.loads((tmp_path / "0.json").read_text())
    assert 0 < len(result["full_tokens"]) <= 400  # it may say eos
    assert result["right"] is False
