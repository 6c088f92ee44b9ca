"""`scripts/gpu_check.py` and its checks: tiny sizes on the CPU, full ones on CUDA if
there is any.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gpu_check
import gpu_checks
import pytest
import torch
from gpu_checks import Sizes, model_equal, modes_equal
from gpu_times import CHECKS

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The script in this process: its exit code and what it says. The checks have their
    own."""

    def run(*flags: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["gpu_check.py", *flags])
        monkeypatch.setattr(sys, "path", list(sys.path))
        return gpu_check.main(), capsys.readouterr().out

    return run


Check = Callable[..., tuple[int, str]]


def test_results_are_written_line_by_line_and_as_a_table(
    check: Check, tmp_path: Path
) -> None:
    names = ["machine", "graphs"]
    code, said = check("--small", "--output", str(tmp_path), "--only", *names)
    assert code == 0, said
    [text], [lines] = tmp_path.glob("*.md"), tmp_path.glob("*.jsonl")
    facts, *rest = map(json.loads, lines.read_text().splitlines())
    found = [one for one in rest if "ok" in one]
    assert {"date", "python", "torch"} <= facts.keys() and "card" not in facts
    assert [(one["name"], one["ok"]) for one in found] == [
        ("machine", True),
        ("graphs", None),  # nothing is recorded on a CPU
    ]
    assert "| attention" in text.read_text() and "skipped" in text.read_text()


def test_a_check_out_of_time_fails_and_the_others_are_skipped(
    check: Check, tmp_path: Path
) -> None:
    one = gpu_check.in_own_process(
        "modes", True, 0.01, tmp_path / "lines"
    )  # less than Python needs to start
    assert one["ok"] is False and one["what"] == "not done after 0.01 s"
    code, said = check(
        "--small",
        "--output",
        str(tmp_path),
        "--budget",
        "4",
        "--only",
        "modes",
        "ranks",
    )
    assert code == 0
    assert "skipped  modes: no time left" in said
    assert "skipped  ranks: no time left" in said


def test_without_cuda_it_ends_and_says_so(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, said = check()
    assert code == 0 and "no CUDA device" in said
    code, _ = check("--output", str(tmp_path), "--budget", "540")
    [text] = tmp_path.glob("no-cuda-*.md")
    assert code == 0 and text.read_text().count("no CUDA device here") == len(CHECKS)


@pytest.mark.parametrize(
    "name", ["machine", "calls", "decoding", "ladder", "races", "rows"]
)
def test_what_is_measured_on_a_gpu_runs_at_small_sizes(name: str) -> None:
    told: list[str] = []
    ok, what = CHECKS[name][0](CPU, Sizes.small(), told.append)
    assert ok, what
    assert told
    if name == "decoding":
        assert sum("waits per" in one for one in told) == 3


def test_torch_and_transformers_are_enough() -> None:
    """`lr bench gpu` and all that the script imports, without what `lr` wants
    besides."""
    program = """
import sys
for name in ("tyro", "math_verify", "scipy", "rich", "httpx", "matplotlib", "msgspec", "triton"):
    sys.modules[name] = None
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import gpu_times, torch
from functools import partial
from lr.measure.bench import gpu
from lr.theory import cost
gpu.measure_peaks = partial(gpu.measure_peaks, small=True)
cost.SIMULATED_STEPS = 200
print(*gpu_times.timings(torch.device("cpu"), gpu_times.Sizes.small()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT), str(ROOT / "scripts")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert any("/ model" in line for line in told) and "of the model's" in told[-1]


def test_a_check_that_raises_has_failed(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHECKS, "graphs", (lambda *_: {}["nothing"], 1))
    code, said = check("--one", "graphs")
    found = json.loads(said.splitlines()[-1])
    assert code == 0 and found["ok"] is False
    assert "KeyError: 'nothing' (test_gpu_check.py:" in found["what"]


def test_a_wrong_model_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes.small()
    assert model_equal(CPU, sizes)[0]
    honest = gpu_checks.ragged
    monkeypatch.setattr(
        gpu_checks,
        "ragged",
        lambda m: [
            one.roll(int(m.dtype is not torch.float64), -1) for one in honest(m)
        ],
    )
    assert model_equal(CPU, sizes)[0] is False


def test_all_modes_emit_what_plain_decoding_emits() -> None:
    assert modes_equal(CPU, Sizes.small())[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [name for name in CHECKS if name != "tests"])
def test_on_cuda(name: str) -> None:
    ok, what = CHECKS[name][0](torch.device("cuda"), Sizes())
    assert ok is not False, what
