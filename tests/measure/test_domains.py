"""The experiment on two languages, through the command; and what the run's fingerprint
of its data covers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lr.commands.cli import main
from lr.measure.datasets import Item, load_items
from lr.measure.experiment import Arm, Lab
from lr.tiny.languages import LANGUAGES

WORDS = [
    "experiment",
    "domains",
    "--problems",
    "2",
    "--max_tokens",
    "60",
    "--threads",
    "1",
]


def test_both_languages_side_by_side_and_nothing_done_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *WORDS,
        "--output",
        str(tmp_path / "out"),
        "--work",
        str(tmp_path / "work"),
    ]
    assert main(words) == 0
    content = json.loads(
        (tmp_path / "out" / "domains.json").read_text(encoding="utf-8")
    )
    rows = [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
    assert all(len(row) == len(content["columns"]) for row in content["rows"])
    modes = ["ar", "sd", "lr", "lr+sd", "draft"]
    assert [(row["language"], row["mode"]) for row in rows] == [
        (one, mode) for one in LANGUAGES for mode in modes
    ]
    assert all(
        0 < row["steps kept"] <= 1 for row in rows if row["mode"].startswith("lr")
    )
    assert all(row["of orders"] is not None for row in rows if row["mode"] == "lr")
    made = sorted((tmp_path / "work").rglob("[0-9].json"))
    assert {path.relative_to(tmp_path / "work").parts[:2] for path in made} == {
        ("domains", one) for one in LANGUAGES
    }
    times = {path: path.stat().st_mtime_ns for path in made}
    lost = tmp_path / "work" / "domains" / "plans" / "lr" / "1.json"
    lost.unlink()
    assert main(words) == 0
    changed = {path for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert changed == {lost, lost.parent / "pairs" / lost.name}, (
        "only the answer that was missing is made again"
    )
    assert "robot" in json.loads(lost.read_text(encoding="utf-8"))["question"]
    capsys.readouterr()
    assert main([*words, "--seed", "1"]) == 2
    assert "another --work" in capsys.readouterr().err


def test_domains_are_the_tiny_languages(capsys: pytest.CaptureFixture[str]) -> None:
    for extra in (
        ["--dataset", "tiny:4"],
        ["--draft_model", "tiny-draft"],
        ["--model", "m", "--draft_model", "d"],
    ):
        assert main([*WORDS, *extra]) == 2
        assert "leave out --" in capsys.readouterr().err


def test_the_fingerprint_of_an_arm_covers_all_its_data(tmp_path: Path) -> None:
    """Any item may change in any way that matters, order included: it is other data."""

    def data(items: Sequence[Item]) -> str:
        lab = Lab(items, tmp_path)
        return str(lab._head(Arm("ar", "ar"))["settings"]["data"])

    items = load_items("tiny:4")
    last = items[-1]
    others = [
        [items[0], items[2], items[1], last],
        items[:-1],
        [*items[:-1], replace(last, question=last.question + " ")],
        [*items[:-1], replace(last, gold="0")],
        [*items[:-1], replace(last, name="other")],
        [*items[:-1], replace(last, number=9)],
    ]
    found = [data(items), *map(data, others)]
    assert data(load_items("tiny:4")) == found[0]
    assert len(set(found)) == len(found)
