"""`lr reproduce table1`: the paper's numbers with ours beside, resumed, and refused where it cannot
be.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lr.commands.cli import main
from lr.commands.gpu import BenchGpu, Table1
from lr.commands.run import RunModels

SMALL = "--model tiny-target --datasets GSM8K --tokens 24 --prompt 20 --repeats 2 --k 2".split()


def test_the_paper_beside_ours_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["reproduce", "table1", "--dummy", *SMALL, "--output", str(tmp_path)]
    assert main([*command, "--device", "cpu"]) == 0
    capsys.readouterr()
    page = (tmp_path / "table1.md").read_text("utf-8")
    assert "| GSM8K | paper | 0.50 | 1.32 | 1.32 | 1.68 |" in page
    [ours] = [line for line in page.splitlines() if line.startswith("| GSM8K | ours")]
    assert all(0 <= float(number) < 20 for number in ours.strip("| ").split(" | ")[2:])
    assert "dummy weights" in page
    monkeypatch.setattr(BenchGpu, "run", lambda self: pytest.fail("it was measured again"))
    assert main([*command, "--device", "cpu"]) == 0
    assert (tmp_path / "table1.md").read_text("utf-8").splitlines()[-1] == ours


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--dummy"], "needs a CUDA device"),
        ([], "there is no data/AIME24.jsonl"),
        (["--datasets", "GSM9K"], "GSM9K"),
        (["--depth", "0", "--dummy"], "depth is 0"),
    ],
)
def test_what_cannot_be_is_said_at_once(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["reproduce", "table1", *flags]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_judge_behind_a_port_is_asked_there(tmp_path: Path) -> None:
    models = RunModels(model="tiny-target", judge_port=8000)
    table = Table1(output=tmp_path, models=models)
    chosen, _ = table._models().chosen("GSM8K")
    assert chosen.judge_model == "openai:http://localhost:8000/tiny-judge"
