"""How many hands an answer goes through, and the table of them in the documents."""

from tests_root import ROOT
from way_of_an_answer import table, way


def test_an_answer_changes_hands_as_the_page_says():
    """If lines have moved: python scripts/way_of_an_answer.py --write"""
    stations = way()
    assert len(stations) <= 20
    assert len({(s.caller, s.file) for s in stations}) <= 12
    assert len({s.file for s in stations} | {s.caller for s in stations}) <= 9
    assert table(stations) in (ROOT / "docs" / "algorithm.md").read_text("utf-8")
