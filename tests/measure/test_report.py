"""Reports: exact numbers from hand-made runs, refusals, the official tool's folders,
and the statistics against scipy.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lr.commands.cli import main
from lr.errors import SettingError
from lr.measure.grading import Grader
from lr.measure.report import (
    RunResults,
    accuracy,
    choose_baseline,
    document,
    make_row,
    markdown,
    notes,
    read_run,
    speedup_of,
)
from lr.measure.store import AnswerKey

SETTINGS = {"data": "d", "seed": 0, "temperature": 0.6, "model": "m", "mode": "ar"}


def record(
    tokens: int, seconds: float, right: bool | None = True, **more: Any
) -> dict[str, Any]:
    given = {
        "generation_tokens": [1] * tokens,
        "time_taken": seconds,
        "speed": tokens / seconds,
        "right": right,
        "answer": "1",
    }
    return given | more


def made(mode: str, records: list[dict[str, Any]], **settings: Any) -> RunResults:
    keys = {AnswerKey(number): one for number, one in enumerate(records)}
    return RunResults(Path(mode), keys, SETTINGS | {"mode": mode} | settings, ("cpu",))


def test_numbers_by_hand() -> None:
    base = made("ar", [record(100, 10.0), record(300, 10.0, False)])
    stats = {
        "accepted": 3,
        "judged": 4,
        "target_passes": 20,
        "tokens": 180,
        "target_tokens": 100,
        "wasted_target_tokens": 25,
    }
    ours = made(
        "lr",
        [
            record(60, 2.0, stats=stats),
            record(120, 4.0, stats=stats | {"rounds": {"accepted": 1, "drafted": 4}}),
        ],
    )
    row = make_row(ours, base)
    assert row.tokens == 180 and row.seconds == 6.0 and row.speed == 30.0
    assert row.speedup == pytest.approx(1.5), "30 tokens/s against 20"
    assert row.time_ratio == pytest.approx(
        20 / 6
    ) and row.length_ratio == pytest.approx(180 / 400)
    assert (
        row.step_acceptance == 0.75
        and row.token_acceptance == 0.25
        and row.wasted_share == 0.25
    )
    assert row.tokens_per_pass == 360 / 40 and row.target_passes == 40
    assert row.flips == (1, 0)
    assert any("shorter" in note for note in notes([row])), (
        "shorter answers look faster"
    )


def test_only_common_answers_are_paired() -> None:
    base = made("ar", [record(100, 10.0), record(100, 10.0), record(1, 1000.0)])
    assert (
        make_row(made("lr", [record(100, 5.0), record(100, 5.0)]), base).speedup == 2.0
    )


@pytest.mark.parametrize(
    "change", [{"data": "e"}, {"temperature": 0.0}, {"seed": 1}, {"model": "other"}]
)
def test_runs_with_other_data_or_sampling_are_refused(change: dict[str, Any]) -> None:
    base = made("ar", [record(10, 1.0)])
    with pytest.raises(SettingError, match=f"differ in {next(iter(change))}"):
        make_row(made("lr", [record(10, 1.0)], **change), base)
    assert (
        make_row(made("draft", [record(10, 1.0)], model="other"), base).speedup == 1.0
    )


def test_unequal_hardware_is_said() -> None:
    base = made("ar", [record(10, 1.0)])
    more = RunResults(
        Path("lr"), base.records, SETTINGS | {"mode": "lr"}, ("cuda:0", "cuda:1")
    )
    assert "Not on equal hardware" in notes([make_row(base), make_row(more, base)])[0]


def test_the_official_tools_folder(tmp_path: Path) -> None:
    for number, (gold, text) in enumerate(
        [("204", "so $\\boxed{\\frac{408}{2}}$"), ("73", "\\boxed{74}"), ("5", "none")]
    ):
        prompt = "What? Put it within \\boxed{{}}.\n"
        content = {
            "question_id": number,
            "question": "What?",
            "target_prompt": prompt,
            "full_text": prompt + text,
            "generation_tokens": [1] * 50,
            "gold": gold,
            "time_taken": 2.0,
            "speed": 25.0,
        }
        (tmp_path / f"{number}.json").write_text(json.dumps(content), encoding="utf-8")
    with Grader() as grader:
        run = read_run(tmp_path, grader)
    row = make_row(run)
    assert (
        row.accuracy == pytest.approx(1 / 3)
        and row.speed == 25.0
        and row.mean_speed == 25.0
    )
    assert row.unread == 1, "the prompt's own box does not count"
    assert make_row(run, run).speedup is None
    for folder in (tmp_path / "nowhere", tmp_path.parent):
        with Grader() as grader, pytest.raises(SettingError):
            read_run(folder, grader)


def test_the_command_writes_all_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for mode, seconds in (("ar", 2.0), ("lr", 1.0)):
        folder = tmp_path / mode
        folder.mkdir()
        (folder / "run.json").write_text(
            json.dumps({"settings": SETTINGS | {"mode": mode}, "devices": ["cpu"]}),
            encoding="utf-8",
        )
        for number in range(8):
            (folder / f"{number}.json").write_text(
                json.dumps(record(10 + number, seconds)), encoding="utf-8"
            )
    outputs = [str(tmp_path / name) for name in ("r.json", "r.md", "r.png")]
    words = ["report", str(tmp_path / "lr"), str(tmp_path / "ar")]
    assert (
        main(
            [
                *words,
                "--json",
                outputs[0],
                "--markdown",
                outputs[1],
                "--figure",
                outputs[2],
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "2.00" in shown and "All on the same devices: cpu." in shown
    rows = json.loads(Path(outputs[0]).read_text(encoding="utf-8"))["rows"]
    assert rows[0]["speedup"] == pytest.approx(2.0) and rows[0]["speedup_interval"][
        0
    ] == pytest.approx(2.0)
    assert "| lr | lr | 8 | 100.0%" in Path(outputs[1]).read_text(encoding="utf-8")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("r.png", "r.svg"))
    assert main([*words, "--baseline", "sd"]) == 2
    assert "there is no run 'sd'" in capsys.readouterr().err
    assert main(["report"]) == 2


def test_baselines() -> None:
    runs = [made(mode, [record(10, 1.0)]) for mode in ("lr", "ar")]
    assert choose_baseline(runs) is runs[1] and choose_baseline(runs, "lr") is runs[0]
    assert choose_baseline(runs[:1]) is None
    assert any("No speedups" in note for note in notes([make_row(runs[0])]))


def test_what_is_no_number_is_null() -> None:
    row = make_row(made("lr", [record(10, 1.0)]), made("ar", [record(10, 1.0)]))
    assert row.speedup_interval is not None and math.isnan(row.speedup_interval[0])
    assert document([row])["rows"][0]["speedup_interval"] == [None, None]
    assert "nan" not in markdown([row])


def test_one_sample_per_problem_has_wilsons_interval() -> None:
    mean, interval = accuracy([[True]] * 9 + [[False]])
    assert mean == 0.9 and interval == pytest.approx((0.5958, 0.9821), abs=1e-4)


def test_bootstrap_intervals() -> None:
    """The interval of a mean of 100 fair coins has about the width that theory gives,
    and problems are what is drawn.
    """
    grades = [[bool(i % 2)] * 4 for i in range(100)]
    mean, (low, high) = accuracy(grades)
    assert mean == 0.5 and 0.17 < high - low < 0.23, (
        "2 * 1.96 * 0.05 = 0.196; samples of one problem are no new problems"
    )
    assert accuracy(grades) == accuracy(grades)
    value, (low, high) = speedup_of([(10, 1.0, 10, 2.0)] * 5)
    assert value == low == high == 2.0


def test_what_the_verifier_cost_and_what_it_could_not_judge_are_in_the_report() -> None:
    judged = {"judged": 4, "verifier_seconds": 1.5, "verifier_passes": 7}
    failed = record(
        60, 2.0, stats=judged, unjudged={"the server is gone": 2, "too long": 1}
    )
    shown = markdown([make_row(made("lr", [failed, record(120, 4.0, stats=judged)]))])
    assert "3.00 / 14" in shown, "seconds and passes"
    assert "3 draft steps could not be judged" in shown
    assert "2 times: the server is gone" in shown
