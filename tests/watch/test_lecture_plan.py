"""The lecture plan of notebooks/README.md can be given: the page that its command writes
has every stop that the plan names, in that order, and a notebook fits its minutes."""

import json
import re
from pathlib import Path

import nbformat
from run_notebooks import words_in
from tests_root import ROOT

from lr.commands.cli import main

NOTEBOOKS = ROOT / "notebooks"
PLAN = NOTEBOOKS / "README.md"
LECTURES = PLAN.read_text("utf-8").split("## A lecture of")[1]
TABLES = [line for line in LECTURES.splitlines() if line.startswith("|")]


def test_the_plans_stops_are_in_the_page_that_its_command_writes(tmp_path, monkeypatch):
    stops = re.findall(r"\*\*([^*]+)\*\*", "\n".join(TABLES))
    assert "`lr play`" in LECTURES and len(stops) >= 6
    monkeypatch.chdir(tmp_path)
    assert main(["play"]) == 0
    page = Path("board.html").read_text("utf-8")
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data
    tour = json.loads(data[1])["tour"]
    titles = [stop["title"] for stop in tour]
    assert set(stops) <= set(titles)
    assert "Kept: " in tour[0]["words"] and "Rejected: " in tour[0]["words"]


def test_a_notebook_takes_the_time_that_it_states_and_fits_the_plan():
    stated = {}
    for path in NOTEBOOKS.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        [minutes] = re.findall(r"Time: (\d+) minutes", notebook.cells[0].source)
        stated[path.name[:2]] = int(minutes)
        assert 0 < int(minutes) - words_in(notebook) / 200 < 4, path.name
    plan = PLAN.read_text("utf-8")
    assert dict(re.findall(r"^\| \[(\d\d) .* (\d+) \|$", plan, re.MULTILINE)) == {
        number: str(minutes) for number, minutes in stated.items()
    }
    rows = re.findall(r"\| (\d+)-(\d+) \|.*notebook (\d\d)(, sections)?", LECTURES)
    assert len(rows) >= 5
    for begin, end, number, sections in rows:
        assert sections or stated[number] <= int(end) - int(begin), number
