"""The commands of theory: what they print, what they write, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lr.commands.cli import main
from lr.theory.cost import Calibration
from lr.theory.formula_vs_simulation import FORMULAS, Point

CORNER = Point(0.35, 0.25, 3, 0.2, 0.05, 3, 2.0, 0.3, 0.2, 1500, 1)


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.name)
@pytest.mark.parametrize("at", [Point(steps=1500), CORNER], ids=["usual", "corner"])
def test_every_formula_agrees_with_the_clock(formula, at: Point) -> None:
    """Within 6 standard errors."""
    value = formula.value(at)
    assert value > 0
    simulated = formula.simulated(at)
    assert abs(simulated.value - value) < 6 * simulated.error + 1e-9


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
    found = Calibration.load(output)
    assert 0.3 < found.alpha1 <= 1 and 0.3 < found.alpha2 < 1
    assert 0 < found.c1 < 0.6 and 0 < found.c2 < 0.6 and found.v < 0.1
    assert found.conditions["verifier"] == "oracle"
    assert found.conditions["clock"] == "process_time"
    rows = json.loads(comparison.read_text(encoding="utf-8"))["rows"]
    assert [row["way"] for row in rows] == ["sd 2", "sd 4", "sync 1"]
    columns = ("formula", "expected", "measured")
    assert all(0.3 < row[column] < 4 for row in rows for column in columns)
