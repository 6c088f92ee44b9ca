"""The commands of theory: what they print, write and refuse; and the example of
`docs/theory.md`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests_root import ROOT

from lr.commands.cli import main
from lr.commands.theory import Calibrate
from lr.errors import SettingError
from lr.options import GenerateOptions
from lr.spec.protocol import Emit, NodeId
from lr.theory.calibration import Calibration, predicted_speedup
from lr.theory.cost import Timed
from lr.theory.formula_vs_simulation import FORMULAS
from lr.tiny.language import Split
from lr.types import EmittedStep, Finish, Origin, Step, Verdict


@pytest.mark.parametrize(
    "words", ["--formula lr_async", "--alpha 0 --c 0", "--alpha 1 --c 0"]
)
def test_theory_prints_formulas_beside_their_simulation(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Formulas that mean nothing at the ends of the scale say so; the others stand in
    the table."""
    assert main(["theory", *words.split(), "--steps", "400"]) == 0
    shown = capsys.readouterr().out
    chosen = [
        f.name
        for f in FORMULAS
        if f.name.startswith("lr_async") or "--formula" not in words
    ]
    assert all(name in shown for name in chosen)
    assert ("lr_sync" in shown) == ("--formula" not in words)


@pytest.mark.parametrize(
    "words",
    [
        "theory --formula nonesuch",
        "theory --k 0",
        "theory --alpha 1.5",
        "theory --c 1e308",
        "theory --b inf",
        f"theory --steps {'9' * 30}",
        "calibrate --problems 2",
        "calibrate --compare 1",
        "calibrate --output not/here/file.json",
    ],
)
def test_a_wrong_value_is_one_message(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, flag, value = words.split()
    assert main([command, flag, value]) == 2
    shown = capsys.readouterr()
    assert flag.removeprefix("--") in shown.err and shown.err.count("\n") == 1
    assert not shown.out


@pytest.mark.usefixtures("whole_targets", "coarse_predictions", "short_answers")
def test_the_tiny_models_are_calibrated_and_compared(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four problems: large errors, but every figure is there."""
    from lr.commands import theory

    monkeypatch.setattr(theory, "WAYS", theory.WAYS[:3])
    output, comparison = tmp_path / "tiny.json", tmp_path / "comparison.json"
    words = "calibrate --verifier oracle --problems 4 --compare 2".split()
    assert main([*words, "--output", str(output), "--json", str(comparison)]) == 0
    calibration = Calibration.load(output)
    assert 0.3 < calibration.alpha1 <= 1 and 0.3 < calibration.alpha2 < 1
    assert 0 < calibration.c1 < 0.6 and 0 < calibration.c2 < 0.6 and calibration.v < 0.1
    assert calibration.conditions["verifier"] == "oracle"
    assert calibration.conditions["clock"] == "process_time"
    rows = json.loads(comparison.read_text(encoding="utf-8"))["rows"]
    assert [row["way"] for row in rows] == ["sd 2", "sd 4", "sync 1"]
    columns = ("formula", "expected", "measured")
    assert all(0.3 < row[column] < 4 for row in rows for column in columns)


def answered(seconds: float, *aligned: bool) -> list[Timed]:
    """The events of an answer: a step for each verdict, at least one, the last one after
    so many seconds."""
    step = EmittedStep(0, Step((1,), Finish.BOUNDARY), Origin.TARGET)
    verdicts = [(Verdict(each, why=""),) for each in aligned] or [()]
    return [(seconds, Emit(step, each, NodeId(0, 0), None)) for each in verdicts]


def test_a_prediction_for_what_the_compared_answers_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same costs, another acceptance."""
    deep = GenerateOptions(mode="lr", depth=4)

    def events(_: Calibrate, reasoner: object, question: str, options: object):
        if options == deep:
            return answered(2.0, True, False, False, False)
        return answered(2.0)

    monkeypatch.setattr(Calibrate, "_events", events)
    calibration = Calibration.load(ROOT / "docs" / "results" / "tiny_calibration.json")
    rows = Calibrate(problems=4, compare=2).comparison(None, calibration)
    others = {row["way"]: row for row in rows}
    row = others.pop("depth 4")
    assert row["kept"] == 0.25 < calibration.alpha1
    assert row["for_kept"] < row["expected"]
    worse = replace(calibration, alpha1=0.25)
    assert row["for_kept"] == predicted_speedup(deep, worse)
    assert all(row["for_kept"] == row["expected"] for row in others.values())
    assert others["sd 4"]["kept"] is None


def test_ctrl_c_keeps_the_problems_that_were_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Calibrate(problems=4, compare=4)
    numbers = {
        question: number
        for split in (Split.TRAIN, Split.TEST)
        for number, question in enumerate(command._questions(split))
    }

    def events(_: Calibrate, reasoner: object, question: str, options: Any):
        if numbers[question] == stopped:
            raise KeyboardInterrupt
        plain = options.mode == "ar"
        return answered(3.0 + numbers[question] if plain else 2.0)

    monkeypatch.setattr(Calibrate, "_events", events)
    path = ROOT / "docs" / "results" / "tiny_calibration.json"
    stopped = 2
    rows = command.comparison(None, Calibration.load(path))
    assert {row["measured"] for row in rows} == {(3.0 + 4.0) / (2.0 + 2.0)}
    assert "2 problems" in capsys.readouterr().out

    monkeypatch.setattr("lr.commands.theory.calibrate", lambda *found: found)
    engine = SimpleNamespace(target=SimpleNamespace(device=torch.device("cpu")))
    reasoner = SimpleNamespace(
        generate=lambda *_, **__: None, verifier="oracle", engine=engine
    )
    problems, _, conditions = command.measure(reasoner)
    assert len(problems) == conditions["problems"] == 2
    stopped = 1
    for interrupted in (
        lambda: command.comparison(None, Calibration.load(path)),
        lambda: command.measure(reasoner),
    ):
        with pytest.raises(KeyboardInterrupt):
            interrupted()


def test_a_file_has_other_problems_for_the_comparison(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(6)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    command = Calibrate(dataset=str(file), problems=4, compare=2)
    numbers = [
        [question.split()[0] for question in command._questions(split)]
        for split in (Split.TRAIN, Split.TEST)
    ]
    assert numbers == [["0", "1", "2", "3"], ["4", "5"]]
    with pytest.raises(SettingError, match="7"):
        replace(command, compare=3)._questions(Split.TEST)


def test_the_example_of_the_page_prints_what_its_comments_say(capsys) -> None:
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "theory.md", "exec"), {})
    printed = [float(word) for word in capsys.readouterr().out.split()]
    comments = " ".join(re.findall(r"# ([\d. ]+)", example))
    assert printed == pytest.approx(list(map(float, comments.split())), abs=1e-5)
