"""`scripts/gpu_check.py`: it runs to its end on a machine without CUDA, saying so, and
at tiny sizes on the CPU; a check that fails, hangs or is cut costs that check only.
"""

import json
import sys
from pathlib import Path

import gpu_check
import pytest
import torch


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the script; its exit code and the lines that it wrote."""

    def main(*flags):
        arguments = ["gpu_check.py", "--output", str(tmp_path), *flags]
        monkeypatch.setattr(sys, "argv", arguments)
        code = gpu_check.main()
        [file] = tmp_path.glob("*.jsonl")
        return code, [json.loads(line) for line in file.read_text().splitlines()]

    return main


def outcomes(lines):
    return {line["name"]: line["ok"] for line in lines if "ok" in line}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_without_cuda_it_says_so(run, capsys):
    code, lines = run()
    assert code == 0
    assert outcomes(lines) == dict.fromkeys(gpu_check.CHECKS)
    assert "no CUDA" in capsys.readouterr().out


@pytest.mark.ci
def test_tiny_sizes_run_on_the_cpu(run, capsys):
    checks = "machine", "attention", "memory", "rounding", "single row", "rows"
    code, lines = run("--small", "--only", *checks)
    assert code == 0
    assert outcomes(lines) == dict.fromkeys(checks, True)
    assert {"date", "python", "torch"} <= lines[0].keys()
    out = capsys.readouterr().out
    assert "## rows" in out
    assert "| 5 x 5 rows at 20 |" in out
    assert "likelihood" in out and "part" in out
    for name in ("tests", "real"):  # they need a GPU and a checkpoint
        assert gpu_check.run_here(name, True, None)["ok"] is None


@pytest.mark.ci
@pytest.mark.parametrize("name", ["modes 0.6B", "modes, 0.65 kept"])
def test_the_modes_are_timed_at_tiny_sizes(tmp_path, name):
    file = tmp_path / "lines"
    outcome = gpu_check.run_here(name, True, file)
    assert outcome["ok"], outcome
    lines = file.read_text()
    assert "ms per target pass" in lines and "lr" in lines


@pytest.mark.ci
def test_a_checkpoint_is_timed_in_all_modes(tmp_path):
    file = tmp_path / "lines"
    words = ["--model", "tiny-target", "--draft_model", "tiny-draft"]
    sizes = ["--dataset", "tiny:2", "--problems", "2", "--max_tokens", "20"]
    outcome = gpu_check.run_here("real", True, file, [*words, *sizes])
    assert outcome["ok"], outcome
    assert "lr" in file.read_text()


def test_what_fails_hangs_or_has_no_time_costs_only_itself(run, monkeypatch):
    def fails(here):
        raise KeyError("nothing")

    monkeypatch.setitem(gpu_check.CHECKS, "rows", (fails, 60))
    outcome = gpu_check.run_here("rows", True, None)
    assert outcome["ok"] is False and "KeyError" in outcome["what"]
    hanging = gpu_check.run_apart("machine", 0.01, Path("unused"), ["--small"])
    assert hanging["ok"] is False and "not done" in hanging["what"]
    code, lines = run("--small", "--budget", "1")
    assert code == 0
    assert set(outcomes(lines).values()) == {None}
