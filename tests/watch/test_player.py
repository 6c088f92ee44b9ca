"""The player's page as it is built: one file, nothing from outside, no text of a trace
as markup, the states and statistics that Python computes.
"""

import json
import re
from importlib.resources import files
from itertools import pairwise

import pytest
from watch_kit import NASTY, nasty, scripted, tiny

from lr.watch.figures.clock import CANCELLED, timeline_of
from lr.watch.figures.style import COLOURS, WASHES
from lr.watch.figures.tree import cards_of
from lr.watch.player.page import (
    SCRIPTS,
    as_script_data,
    page_data,
    player_page,
    states_of,
)
from lr.watch.player.story import CAPTIONS
from lr.watch.trace.file import write_trace
from lr.watch.trace.state import StepState, state_at

FOLDER = files("lr.watch.player")
STYLE = (FOLDER / "style.css").read_text("utf-8")


def test_a_page_needs_nothing_from_outside():
    page = player_page(scripted())
    assert "{{" not in page.split('id="data"')[0]
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name; nothing is fetched
    assert not re.search(r"<(?:link|img|iframe)\b|\bsrc=|@import|url\((?!#)", page)
    scripts = {path.name for path in FOLDER.iterdir() if path.name.endswith(".js")}
    assert scripts == {f"{name}.js" for name in SCRIPTS}


def test_texts_of_a_trace_are_never_markup():
    page = player_page(nasty())
    assert page.count("</script>") == 2  # the two of the template
    assert "<img" not in page
    stored = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(stored[1])["question"] == NASTY
    assert as_script_data({"a": "</script>"}) == '{"a":"\\u003c/script>"}'


def value_at(history, number, otherwise=None):
    """As `valueAt` of states.js."""
    return next((value for at, value in reversed(history) if at <= number), otherwise)


@pytest.mark.parametrize(
    "make", [scripted, lambda: tiny("lr+sd")], ids=["scripted", "tiny"]
)
def test_histories_hold_the_states(make):
    trace = make()
    histories = states_of(trace)
    count = len(trace.records)
    for number in [0, 1, count, *((7919 * i) % (count + 1) for i in range(1, 24))]:
        state = state_at(trace, number)
        root = value_at(histories["roots"], number)
        assert root in (state.root, None)
        for node in state.live if root else []:
            life = histories["nodes"][node.name]
            cards = [[c.by, c.standing.name] for c in cards_of(state, node)]
            shown = value_at(life["cards"], number, [])
            assert [[by, standing] for by, _, standing in shown] == cards
            for by, step in (("draft", node.draft), ("target", node.target)):
                length, done = value_at(life[by]["written"], number, [0, False])
                tokens = [token[0] for token in life[by]["tokens"][:length]]
                step = step or StepState()
                assert tokens == [token.token for token in step.tokens]
                assert done == (step.finish != "")
        emitted = [step for step in histories["emitted"] if step["at"] <= number]
        tokens = [token for step in emitted for token in step["tokens"]]
        text = "".join(token[1] for token in tokens if token[2] != "refused")
        assert text == state.text
        for name, cache in state.caches.items():
            branches = {
                int(branch): [
                    value_at(life["facts"], number)[0],
                    value_at(life["blocks"], number),
                ]
                for branch, life in histories["caches"][name]["branches"].items()
                if life["born"] <= number < life.get("gone", count + 1)
            }
            assert branches == {
                branch: [row.length, row.blocks]
                for branch, row in cache.branches.items()
            }


@pytest.mark.parametrize("trace", [scripted, lambda: tiny("lr")])
def test_the_tour_goes_forward_in_time(trace):
    tour = page_data(trace())["tour"]
    events = [stop["event"] for stop in tour]
    assert events == sorted(events)
    assert {stop["key"] for stop in tour} <= set(CAPTIONS)
    assert len(tour) >= 6


def test_figures_and_player_have_the_same_colours():
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", STYLE.split("}")[0]))
    assert {name: light[name] for name in COLOURS} == COLOURS
    assert {name: light[f"{name}-wash"] for name in WASHES} == WASHES


def test_the_command_writes_a_page_and_spares_the_trace(tmp_path, cli):
    trace = tmp_path / "run.jsonl"
    write_trace(trace, scripted())
    before = trace.read_bytes()
    cli(f"play {trace}")
    assert (tmp_path / "run.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert "trace itself" in cli(f"play {trace} -o {trace}", 2).err
    assert trace.read_bytes() == before


def test_spans_of_a_lane_do_not_cover_each_other():
    timeline = timeline_of(scripted())
    kinds = [record.kind for record in scripted().records]
    outcomes = [span.outcome for span in timeline.spans]
    assert outcomes.count(CANCELLED) == kinds.count("cancel")
    for lane in timeline.lanes:
        for row in range(lane.rows):
            spans = [s for s in timeline.spans if (s.lane, s.row) == (lane.name, row)]
            spans.sort(key=lambda span: (span.begin, span.end))
            assert all(a.end <= b.begin for a, b in pairwise(spans))
