"""The commands of theory: what they print, write and refuse; and the example of
`docs/theory.md`."""

import json
import re

import pytest
from tests_root import blocks

from lr.theory.calibration import Calibration
from lr.theory.formula_vs_simulation import FORMULAS


@pytest.mark.parametrize(
    "words", ["--formula lr_async", "--alpha 0 --c 0", "--alpha 1 --c 0"]
)
def test_theory_prints_formulas_beside_their_simulation(words, cli):
    """Formulas that mean nothing at the ends of the scale say so; the others stand in
    the table."""
    shown = cli(f"theory {words} --steps 400").out
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
def test_a_wrong_value_is_one_message(words, cli):
    out, err = cli(words, 2)
    flag = words.split()[1].removeprefix("--")
    assert flag in err and err.count("\n") == 1 and not out


@pytest.mark.usefixtures("whole_targets", "coarse_predictions", "short_answers")
def test_the_tiny_models_are_calibrated_and_compared(tmp_path, cli, monkeypatch):
    """Four problems: large errors, but every figure is there."""
    from lr.commands import theory

    monkeypatch.setattr(
        theory, "COMPARED_WAYS", dict(list(theory.COMPARED_WAYS.items())[:3])
    )
    output, comparison = tmp_path / "tiny.json", tmp_path / "comparison.json"
    words = "calibrate --verifier oracle --problems 4 --compare 2"
    cli(f"{words} --output {output} --json {comparison}")
    calibration = Calibration.load(output)
    assert 0.3 < calibration.alpha1 <= 1 and 0.3 < calibration.alpha2 < 1
    assert 0 < calibration.c1 < 0.6 and 0 < calibration.c2 < 0.6 and calibration.v < 0.1
    assert calibration.conditions["verifier"] == "oracle"
    assert calibration.conditions["clock"] == "process_time"
    rows = json.loads(comparison.read_text("utf-8"))["rows"]
    assert [row["way"] for row in rows] == ["sd 2", "sd 4", "sync 1"]
    columns = ("formula", "expected", "measured")
    assert all(0.3 < row[column] < 4 for row in rows for column in columns)


def test_the_example_of_the_page_prints_what_its_comments_say(capsys):
    [example] = blocks("docs/theory.md")
    exec(compile(example, "theory.md", "exec"), {})
    printed = [float(word) for word in capsys.readouterr().out.split()]
    comments = " ".join(re.findall(r"# ([\d. ]+)", example))
    assert printed == pytest.approx(list(map(float, comments.split())), abs=1e-5)
