"""The lecture plan of notebooks/README.md can be given: the page that its command writes
has every stop that the plan names."""

import re
from pathlib import Path

from tests_root import ROOT

PLAN = ROOT / "notebooks" / "README.md"
LECTURES = PLAN.read_text("utf-8").split("## A lecture of")[1]


def test_the_plans_stops_are_in_the_page_of_its_command(tmp_path, monkeypatch, cli):
    tables = [line for line in LECTURES.splitlines() if line.startswith("|")]
    stops = re.findall(r"\*\*([^*]+)\*\*", "\n".join(tables))
    assert "`lr play`" in LECTURES and len(stops) >= 6
    monkeypatch.chdir(tmp_path)
    cli("play")
    page = Path("board.html").read_text("utf-8")
    assert all(f'"title":"{stop}"' in page for stop in stops)
    assert "Kept: " in page and "Rejected: " in page
