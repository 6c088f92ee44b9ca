"""The player's page as it is built: one file, nothing from outside, no text of a trace
as markup, the statistics of every report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from player_kit import (
    NASTY,
    as_file,
    long,
    nasty,
    scripted,
    simulated,
    synchronous,
    tiny,
)

from lr.commands.cli import main
from lr.watch.figures.clock import CANCELLED, DONE, FAILED, timeline_of
from lr.watch.figures.style import COLOURS, WASHES
from lr.watch.figures.tree import cards_of
from lr.watch.player.page import KINDS as TOLD
from lr.watch.player.page import (
    SCRIPTS,
    as_script_data,
    headline_of,
    page_data,
    player_page,
    setting_of,
    states_of,
    title_of,
)
from lr.watch.trace.file import KINDS, TraceFile
from lr.watch.trace.state import CACHE_EVENTS, StepState, state_at

FOLDER = files("lr.watch.player")
STYLE = (FOLDER / "style.css").read_text(encoding="utf-8")


def themes() -> list[dict[str, str]]:
    """The colours of the light and of the dark theme."""
    blocks = re.findall(
        r":root(?:\[data-theme=\"dark\"\])? \{(.*?)\}", STYLE, re.DOTALL
    )
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks]


def brightness(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_page_is_whole_and_needs_nothing_from_outside() -> None:
    page = player_page(scripted())
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    assert "{{" not in page.split('id="data"')[0]
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}, (
        "a name of a standard, which nothing is fetched from"
    )
    assert not re.search(r"<(?:link|img|iframe)\b|\bsrc=|@import|url\((?!#)", page)


def test_every_file_beside_the_page_is_in_it() -> None:
    there = {path.name for path in FOLDER.iterdir() if path.name.endswith(".js")}
    assert there == {f"{name}.js" for name in SCRIPTS}


def test_texts_of_a_trace_are_never_markup() -> None:
    page = player_page(nasty())
    assert page.count("</script>") == 2, "the two of the template"
    assert "<img" not in page
    title = re.search(r"<title>(.*?)</title>", page)
    assert title is not None
    assert "<" not in title[1]
    assert unescape(title[1]).endswith("…")
    stored = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert stored is not None
    assert json.loads(stored[1])["question"] == NASTY


def test_script_data_is_json_without_an_angle() -> None:
    assert as_script_data({"a": "</script>"}) == '{"a":"\\u003c/script>"}'
    assert json.loads(as_script_data({"a": "<!--é"})) == {"a": "<!--é"}


@pytest.mark.parametrize(
    "trace", [scripted, synchronous, simulated, long], ids=lambda make: make.__name__
)
def test_the_headline_has_the_statistics_of_the_trace(trace) -> None:
    stats = trace().stats
    shown = {label: value for label, value, _ in headline_of(trace())}
    assert shown["steps"] == str(stats.steps)
    if stats.step_acceptance is not None:
        assert shown["α₁"] == f"{stats.step_acceptance:.2f}"
    assert ("target passes" in shown) == bool(stats.target_passes)
    assert page_data(trace())["headline"][0][1] == shown["steps"]


def test_the_setting_says_what_was_run() -> None:
    header = replace(
        long().header,
        models={"target": "big", "draft": "small", "device": "cpu", "dtype": "float32"},
    )
    assert "target big · draft small · cpu float32" in setting_of(header)
    assert title_of(replace(header, mode="sd")) == "Token-level speculation"
    assert "draft small" not in setting_of(replace(header, mode="ar"))
    assert "rule match" in setting_of(
        replace(header, mode="sd", options={"acceptance": "match"})
    )


def value_at(history: list[Any], number: int, otherwise: Any = None) -> Any:
    """As `valueAt` of states.js."""
    return next((value for at, value in reversed(history) if at <= number), otherwise)


def list_at(history: list[Any], number: int) -> list[Any]:
    """As `listAt` of states.js."""
    found: list[Any] = []
    for at, place, items in history:
        if at <= number:
            found[place:] = items
    return found


@pytest.mark.parametrize(
    "make",
    [scripted, synchronous, simulated, lambda: long(120), lambda: tiny("lr+sd")],
    ids=["scripted", "synchronous", "simulated", "long", "tiny"],
)
def test_histories_hold_the_states(make: Callable[[], TraceFile]) -> None:
    trace = make()
    found, count = states_of(trace), len(trace.records)
    for number in [0, 1, count, *((7919 * i) % (count + 1) for i in range(1, 24))]:
        state = state_at(trace, number)
        root = value_at(found["roots"], number)
        assert root in (state.root, None)
        for node in state.live if root else []:
            told = found["nodes"][node.name]
            shown = [[card.by, card.standing.name] for card in cards_of(state, node)]
            assert [
                [by, how] for by, _, how in value_at(told["cards"], number, [])
            ] == shown
            for by, step in (("draft", node.draft), ("target", node.target)):
                tokens = list_at(told[by]["tokens"], number) if by in told else []
                assert [one[:4] for one in tokens] == [
                    [one.token, one.piece, one.source, one.p]
                    for one in (step or StepState()).tokens
                ]
        emitted = [one for one in found["emitted"] if one["at"] <= number]
        assert (
            "".join(token[1] for one in emitted for token in one["tokens"])
            == state.text
        )
        for name, cache in state.caches.items():
            branches = found["caches"].get(name, {"branches": {}})["branches"]
            there = {
                int(one): [
                    value_at(life["facts"], number)[0],
                    list_at(life["blocks"], number),
                ]
                for one, life in branches.items()
                if life["born"] <= number < life.get("gone", count + 1)
            }
            assert there == {
                n: [one.length, one.blocks] for n, one in cache.branches.items()
            }


def test_rejected_draft_tokens_stand_at_the_token_that_came_instead() -> None:
    trace = tiny("sd")
    rounds = [one.data for one in trace.records if one.kind == "round"]
    whole = [
        one["detail"]["draft_tokens"]
        for one in rounds
        if one["accepted"] < one["emitted"]
    ]
    tried = [one["piece"] for round_ in whole for one in round_ if one["kept"] is False]
    lives = [
        one["target"] for one in states_of(trace)["nodes"].values() if "target" in one
    ]
    tokens = [
        one for life in lives for one in list_at(life["tokens"], len(trace.records))
    ]
    shown = [piece for *_, refused in tokens for piece, *_ in refused]
    assert tried and sorted(shown) == sorted(
        f'"{" ".join(one.split())}"' for one in tried
    )
    assert {source for _, _, source, _, refused in tokens if refused} == {"residual"}


def test_every_kind_of_event_has_its_colour_and_sign() -> None:
    assert set(KINDS) <= set(TOLD) | CACHE_EVENTS


def test_spans_are_the_pieces_of_work() -> None:
    trace = scripted()
    timeline = timeline_of(trace)
    kinds = [one.kind for one in trace.records]
    works = [one for one in trace.records if one.kind in ("draft", "target", "judge")]
    assert len(timeline.spans) == sum(
        len(one.data.get("children", [0])) for one in works
    )
    outcomes = [span.outcome for span in timeline.spans]
    assert outcomes.count(CANCELLED) == kinds.count("cancel")
    missing = [
        one.kind == "drafted" and one.data["step"] is None for one in trace.records
    ]
    assert outcomes.count(FAILED) == sum(missing)
    assert [mark.index for mark in timeline.marks] == list(range(5))
    for lane in timeline.lanes:
        for row in range(lane.rows):
            mine = [
                one for one in timeline.spans if (one.lane, one.row) == (lane.name, row)
            ]
            mine.sort(key=lambda span: (span.asked, span.end))
            assert all(a.end <= b.asked for a, b in pairwise(mine)), (
                "spans of a row do not overlap"
            )


def test_waiting_workers_begin_later_than_they_are_asked() -> None:
    spans = timeline_of(simulated()).spans
    assert any(span.begin > span.asked for span in spans)
    assert all(span.asked <= span.begin <= span.end for span in spans)
    assert {DONE, CANCELLED} <= {span.outcome for span in spans}


def test_plain_decoding_has_a_span_per_step() -> None:
    kept = [
        one
        for one in long().records
        if one.kind == "written" and one.data["role"] == "target"
    ]
    spans = timeline_of(replace(long(), records=kept[:3])).spans
    assert [(one.work, one.index, one.outcome) for one in spans] == [
        ("target", i, DONE) for i in range(3)
    ]
    assert spans[1].begin == spans[0].end


def test_figures_and_player_have_the_same_colours() -> None:
    light, _ = themes()
    assert {name: light[name] for name in COLOURS} == COLOURS
    assert {name: light[f"{name}-wash"] for name in WASHES} == WASHES


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_colour_of_words_can_be_read(theme: int) -> None:
    """WCAG AA asks for 4.5 for small text."""
    colours = themes()[theme]
    for name in ("ink", "soft", *COLOURS):
        assert contrast(colours[name], colours["panel"]) >= 4.5, name
    for name in ("draft", "target", "accepted", "rejected", "bonus"):
        assert contrast(colours[name], colours[f"{name}-wash"]) >= 4.0, (
            f"{name} on its own ground"
        )


def test_the_command_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = as_file(scripted(), tmp_path / "run.jsonl")
    assert main(["play", str(trace)]) == 0
    assert "run.html" in capsys.readouterr().out
    assert main(["play", str(trace), "-o", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").read_text("utf-8") == (
        tmp_path / "run.html"
    ).read_text("utf-8")


def test_what_the_command_cannot_do_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = as_file(scripted(), tmp_path / "run.jsonl")
    assert main(["play", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["play", str(trace), "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"format": "other"}\n')
    assert main(["play", str(tmp_path / "bad.jsonl")]) == 2
    assert "this is not a trace" in capsys.readouterr().err
    before = trace.read_bytes()
    assert main(["play", str(trace), "-o", str(trace)]) == 2
    assert "another file than the trace itself" in capsys.readouterr().err
    assert trace.read_bytes() == before
