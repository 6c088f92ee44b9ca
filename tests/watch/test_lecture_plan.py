"""The lecture plan of notebooks/README.md can be given: the page that its command writes
has every stop that the plan names, in that order."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests_root import ROOT

from lr.commands.cli import main


def test_the_plans_stops_are_in_the_page_that_its_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = (ROOT / "notebooks" / "README.md").read_text("utf-8")
    lectures = plan.split("## A lecture of")[1]
    tables = [line for line in lectures.splitlines() if line.startswith("|")]
    stops = re.findall(r"\*\*([^*]+)\*\*", "\n".join(tables))
    assert "`lr play`" in lectures and len(stops) >= 6
    monkeypatch.chdir(tmp_path)
    assert main(["play"]) == 0
    page = Path("answer.html").read_text("utf-8")
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data
    tour = json.loads(data[1])["tour"]
    titles = [stop["title"] for stop in tour]
    assert set(stops) <= set(titles)
    events = [stop["event"] for stop in tour]
    assert events == sorted(events), "the tour does not go back in time"
