"""`scripts/gpu_check.sh` at tiny sizes on the CPU: that it runs, that it keeps what it found, that
it notices what is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lr.lab.bench import gpu_check
from lr.lab.bench.gpu_check import Sizes, guarded, model_equal

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def check(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "gpu_check.sh"), *flags],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_twin_passes_and_keeps_its_table(tmp_path: Path) -> None:
    done = check("--twin", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    [text], [data] = tmp_path.glob("cpu-twin_*.md"), tmp_path.glob("cpu-twin_*.json")
    found = json.loads(data.read_text())
    assert [one["ok"] for one in found["checks"]] == [True] * 6
    assert {"date", "python", "torch"} <= found["conditions"].keys() and "card" not in found[
        "conditions"
    ]
    assert len(found["bench"]["modes"]) == 6
    assert text.read_text().count("| ok |") == 6 and "the modes" in text.read_text()


def test_without_cuda_nothing_is_run_and_nothing_kept() -> None:
    done = check(CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr and not done.stdout


def test_a_folder_that_cannot_be_written_is_refused_before_the_checks() -> None:
    done = check("--twin", "--output", os.devnull + "/x")
    assert done.returncode == 2 and not done.stdout
    assert "nothing can be kept in" in done.stderr and "Traceback" not in done.stderr


def test_a_check_that_raises_has_failed() -> None:
    def broken() -> tuple[bool | None, str]:
        raise ValueError("kernel gone")

    found = guarded("it", broken)
    assert (
        found.ok is False
        and found.word == "FAILED"
        and "ValueError: kernel gone (test_gpu_check.py:" in found.what
    )


def test_a_wrong_model_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes.twin()
    assert model_equal(CPU, sizes)[0]
    honest = gpu_check.ragged
    monkeypatch.setattr(
        gpu_check,
        "ragged",
        lambda m: [law.roll(int(m.dtype is not torch.float64), -1) for law in honest(m)],
    )
    assert model_equal(CPU, sizes)[0] is False
