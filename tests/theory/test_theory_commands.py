"""The commands of theory: what they print, what they write, what they refuse. Small
sizes; one calibration of the real tiny models.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lr.commands.cli import main
from lr.theory.calibration import Calibration
from lr.theory.formula_vs_simulation import FORMULAS, Point
from lr.theory.predicted import DRAFT_FORWARDS, drawn_ways, predicted_speedup


def test_theory_prints_formulas_beside_their_simulation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["theory", "--formula", "lr_async", "--steps", "1200"]) == 0
    shown = capsys.readouterr().out
    assert "lr_async_speedup paper" in shown and f"{1.9976:.4f}"[:3] in shown
    assert "lr_sync" not in shown


@pytest.mark.parametrize("one", FORMULAS, ids=lambda f: f.name)
@pytest.mark.parametrize(
    "at",
    [Point(steps=1500), Point(0.35, 0.25, 3, 0.2, 0.05, 3, 2.0, 0.3, 0.2, 2, 1500, 1)],
    ids=["a", "b"],
)
def test_every_formula_agrees_with_the_clock(one, at: Point) -> None:
    """Within 6 standard errors; each is of its own kind, so none is 0 for a formula
    that chance enters.
    """
    value = one.value(at)
    assert value > 0
    if one.simulated is not None:
        seen = one.simulated(at)
        assert abs(seen.value - value) < 6 * seen.error + 1e-9


@pytest.mark.parametrize(
    "name", ["sd_speedup", "width_acceptance", "judged_acceptance"]
)
def test_every_simulation_is_of_the_seed(name: str) -> None:
    [simulated] = [one.simulated for one in FORMULAS if one.name == name]
    assert simulated is not None
    first, again, other = (simulated(Point(steps=400, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["theory", "--formula", "nonesuch"], "nonesuch"),
        (["theory", "--k", "0"], "k is 0"),
        (["theory", "--alpha", "1.5"], "1.5"),
        (["theory", "--c", "1e308"], "c is 1e+308"),
        (["theory", "--b", "inf"], "b is inf"),
        (["theory", "--steps", "9" * 30], "steps is 9"),
        (["calibrate", "--problems", "9" * 30], "problems is 9"),
        (["info", "--model", "tiny-target", "--free_gib", "nan"], "free_gib is nan"),
        (["generate", "--num_blocks", "9" * 12], "num_blocks is 9"),
        (["generate", "--threads", "9" * 12], "threads is 9"),
        (["generate", "--tensor_parallel", "9" * 12], "tensor_parallel is 9"),
        (["theory", "figures", "--folder", "not/here"], "not/here"),
        (["theory", "validation", "--calibration", "none.json"], "none.json"),
        (["theory", "validation", "--draw", "65"], "draw is 65"),
        (
            ["theory", "validation", "--draw", "2", "--temperatures"],
            "temperatures is ()",
        ),
        (
            ["theory", "validation", "--draw", "2", "--depths", "3"],
            "expected 0 with --depths",
        ),
        (
            ["theory", "validation", "--draw", "2", "--inner", "1", "--tokens", "3"],
            "and --inner",
        ),
        (["theory", "validation", "--temperatures", "0.3"], "temperatures is (0.3,)"),
        (["calibrate", "--problems", "2"], "problems is 2"),
        (["calibrate", "--output", "not/here/file.json"], "not/here"),
        (["calibrate", "--questions", "none.txt"], "none.txt"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert (
        complaint in shown.err
        and shown.err.startswith("error: ")
        and shown.err.count("\n") == 1
    )
    assert not shown.out


@pytest.mark.parametrize(
    "words", ["--alpha 0", "--alpha 1", "--alpha 0 --c 0", "--alpha 1 --c 0"]
)
def test_the_ends_of_the_scale_have_figures(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Formulas that mean nothing there say so; the others stand in the table."""
    assert main(["theory", *words.split(), "--steps", "400"]) == 0
    shown = capsys.readouterr().out
    assert all(one.name in shown for one in FORMULAS)


def test_figures_are_drawn_twice_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lr.watch.figures.theory_figures import (
        draw_draft_length,
        draw_schedules,
        draw_validation,
    )

    first, second = tmp_path / "one", tmp_path / "two"
    first.mkdir()
    second.mkdir()
    for folder in (first, second):
        files = [*draw_draft_length(folder), *draw_schedules(folder)]
        row = {
            "way": "sync 2",
            "formula": 1.5,
            "expected": 1.2,
            "measured": 1.1,
            "error": 0.05,
        }
        document = {"calibration": "invented", "rows": [row]}
        files += draw_validation(document, folder / "validation.png")
        assert len(files) == 6
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


@pytest.mark.usefixtures("whole_targets")
@pytest.mark.usefixtures("coarse_predictions", "short_answers")
def test_the_tiny_models_are_calibrated_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four problems: figures with wide intervals, but all there; then a comparison with
    what the models do.
    """
    path, table = tmp_path / "tiny.json", tmp_path / "validation.json"
    flags = ["--verifier", "oracle", "--problems"]
    assert main(["calibrate", *flags, "4", "--output", str(path)]) == 0
    found = Calibration.load(path)
    assert 0.3 < found.alpha1.value <= 1 and 0.3 < found.alpha2.value < 1
    assert 0 < found.c1 < 0.6 and 0 < found.c2 < 0.6 and found.v < 0.1
    assert found.alpha1.low <= found.alpha1.value <= found.alpha1.high
    assert (
        found.conditions["verifier"] == "oracle"
        and found.conditions["clock"] == "process_time"
    )
    ways = ["--depths", "2", "--tokens", "2", "--inner", "0", "--schedules", "sync"]
    words = [
        "theory",
        "validation",
        "--calibration",
        str(path),
        *flags,
        "2",
        *ways,
        "--json",
        str(table),
    ]
    assert main(words) == 0
    rows = json.loads(table.read_text(encoding="utf-8"))["rows"]
    assert [row["way"] for row in rows] == ["sd 2", "sync 2"]
    names = ("formula", "expected", "replayed", "measured")
    assert all(0.3 < row[name] < 4 for row in rows for name in names)


@pytest.mark.usefixtures("coarse_predictions", "short_answers")
def test_ways_are_drawn_after_the_calibration_and_reported_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the seed and the calibration files alone everybody draws the same ways and
    computes the same expectations; none is left out, and the trivial prediction stands
    beside them. The answers are short: how good the predictions are is not asked here.
    """
    saved, table = tmp_path / "blind.json", tmp_path / "validation.json"
    words = ["theory", "validation", "--draw", "2", "--seed", "5", "--problems", "4"]
    words += [
        "--driver",
        "lockstep",
        "--temperatures",
        "0",
        "0.6",
        "--verifier",
        "oracle",
    ]
    assert main([*words, "--save_calibration", str(saved), "--json", str(table)]) == 0
    found = {t: Calibration.load(tmp_path / f"blind_{t:g}.json") for t in (0.0, 0.6)}
    assert [one.conditions["temperature"] for one in found.values()] == [0.0, 0.6]
    document = json.loads(table.read_text(encoding="utf-8"))
    assert (document["draw"], document["seed"]) == (2, 5)
    ways = drawn_ways(2, 5, list(found.values()), "lockstep")
    assert [row["way"] for row in document["rows"]] == [way.name for way in ways]
    for way, row in zip(ways, document["rows"], strict=True):
        assert row["expected"] == predicted_speedup(
            way, found[way.temperature], DRAFT_FORWARDS
        )
    gaps = [abs(row["expected"] / row["measured"] - 1) for row in document["rows"]]
    trivial = [abs(1 / row["measured"] - 1) for row in document["rows"]]
    assert document["off"]["expected"] == pytest.approx(sum(gaps) / 2)
    assert document["off"]["1.00"] == pytest.approx(sum(trivial) / 2)
    shown = capsys.readouterr().out
    assert "seed 5" in shown and all(way.name.split(",")[0] in shown for way in ways)
    words = [
        "theory",
        "validation",
        "--calibration",
        str(tmp_path / "blind_0.json"),
        "--draw",
        "1",
    ]
    assert (
        main(words) == 2
    )  # one by processor time, and both drivers need the clock on the wall
    assert "the clock of the calibration is 'process_time'" in capsys.readouterr().err
