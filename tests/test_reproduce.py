"""`lr reproduce table1`: the paper's numbers with ours beside, resumed, and refused
where it cannot be.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lr.commands.bench import BenchGpu
from lr.commands.cli import main
from lr.commands.run import RunTally
from lr.measure.bench.report import conditions, write_json
from lr.measure.report import AnswerRecord
from lr.tiny.language import Split, problem

SMALL = "--model tiny-target --datasets GSM8K --tokens 24 --prompt 20 --repeats 2 --k 2".split()
MEASURED = {"step_acceptance": 0.5, "speedup": {"median": 1.0}}


@pytest.mark.usefixtures("small_peaks")
def test_the_paper_beside_ours_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["reproduce", "table1", "--dummy", *SMALL, "--output", str(tmp_path)]
    assert main([*command, "--device", "cpu"]) == 0
    capsys.readouterr()
    page = (tmp_path / "dummy-qwen3" / "table1.md").read_text("utf-8")
    assert "| GSM8K | paper | 0.50 | 1.32 | 1.32 | 1.68 |" in page
    [ours] = [line for line in page.splitlines() if line.startswith("| GSM8K | ours")]
    assert all(0 <= float(number) < 20 for number in ours.strip("| ").split(" | ")[2:])
    assert "dummy weights" in page
    monkeypatch.setattr(
        BenchGpu, "run", lambda self: pytest.fail("it was measured again")
    )
    assert main([*command, "--device", "cpu"]) == 0
    again = (tmp_path / "dummy-qwen3" / "table1.md").read_text("utf-8")
    assert again.splitlines()[-1] == ours


def elsewhere() -> dict[str, object]:
    """The conditions of another machine."""
    return conditions() | {"card": "another card", "torch": "9.9"}


def test_results_of_another_machine_or_setting_are_refused_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["reproduce", "table1", "--dummy", *SMALL, "--device", "cpu"]
    command += ["--output", str(tmp_path)]
    written = {
        "modes": [{"way": way, **MEASURED} for way in ("lr, overlapped", "sd", "lr+sd")]
    }
    monkeypatch.setattr(BenchGpu, "run", lambda bench: write_json(written, bench.json))
    assert main(command) == 0
    head = json.loads((tmp_path / "dummy-qwen3" / "run.json").read_text("utf-8"))[
        "settings"
    ]
    assert head["torch"] == conditions()["torch"] and head["dtype"] == "torch.float32"
    assert head["model"] == "tiny-target" and head["lr"] and head["cpu"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    capsys.readouterr()
    for more, named in (
        (["--tokens", "25"], "tokens was 24 and is 25"),
        (["--dtype", "bfloat16"], "dtype was 'torch.float32' and is 'torch.bfloat16'"),
        ([], "torch was"),
    ):
        if not more:
            monkeypatch.setattr("lr.commands.eval.conditions", elsewhere)
        assert main([*command, *more]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert named in said and "Choose another --output" in said
    assert "card was None and is 'another card'" in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_real_models_go_on_where_they_were_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    tasks = [problem(Split.TEST, number) for number in range(3)]
    lines = [
        json.dumps({"question": one.question, "answer": str(one.answer)})
        for one in tasks
    ]
    (data / "GSM8K.jsonl").write_text("\n".join(lines), encoding="utf-8")
    command = ["reproduce", "table1", "--model", "tiny-target", "--datasets", "GSM8K"]
    command += [
        "--data",
        str(data),
        "--device",
        "cpu",
        "--output",
        str(tmp_path / "out"),
    ]
    add, count = RunTally.add, [0]

    def interrupt(tally: RunTally, done: AnswerRecord) -> None:
        add(tally, done)
        count[0] += 1
        if count[0] == 5:  # in the second of the four modes
            raise KeyboardInterrupt

    monkeypatch.setattr(RunTally, "add", interrupt)
    assert main(command) == 130
    monkeypatch.undo()
    folder = tmp_path / "out" / "qwen3"
    before = {path: path.read_bytes() for path in folder.glob("GSM8K-*/[0-9]*.json")}
    assert 5 <= len(before) < 7 and not (folder / "table1.md").exists()
    assert main(command) == 0
    assert len(list(folder.glob("GSM8K-*/[0-9]*.json"))) == 12 and not list(
        folder.rglob(".*")
    )
    assert all(path.read_bytes() == content for path, content in before.items())
    [ours] = [line for line in table_of(folder) if line.startswith("| GSM8K | ours")]
    numbers = [float(number) for number in ours.strip("| ").split(" | ")[2:]]
    assert 0 < numbers[0] <= 1 and all(0 < number < 20 for number in numbers[1:])
    judges = json.loads((folder / "GSM8K-lr" / "run.json").read_text("utf-8"))[
        "settings"
    ]
    assert (judges["draft_model"], judges["judge_model"]) == (
        "tiny-draft",
        "tiny-judge",
    )
    more = json.dumps({"question": tasks[0].question, "answer": "1"})
    (data / "GSM8K.jsonl").write_text("\n".join([*lines, more]), encoding="utf-8")
    assert main(command) == 2, "the answers belong to other problems"


def table_of(folder: Path) -> list[str]:
    return (folder / "table1.md").read_text("utf-8").splitlines()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--dummy"], "needs a CUDA device"),
        ([], "there is no data/AIME24.jsonl"),
        (["--datasets", "GSM9K"], "GSM9K"),
        (["--depth", "0", "--dummy"], "depth is 0"),
        (
            ["--attention", "sdpa", "--dummy"],
            "attention with --dummy is 'sdpa', expected auto",
        ),
    ],
)
def test_what_cannot_be_is_said_at_once(
    flags: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["reproduce", "table1", *flags]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
