"""Builds the player's page: the template, the style, the program and the trace in one file that
needs no network.

    page = player_page(read_trace("trace.jsonl"))
    write_page(page, "page.html")

The program is plain JavaScript in the files beside this one, each with one idea: `words.js` says
what events mean, `film.js` looks up the state after any number of events, `tree.js`, `answer.js`,
`timeline.js` and `cache.js` show it, `player.js` and `controls.js` move through it. Whatever comes
out of a trace reaches the page as JSON and is shown as text, never as markup. Read next: `film.js`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from lr.lab.player.headline import headline_of, setting_of, title_of
from lr.lab.trace.file import TraceError, TraceFile
from lr.lab.viz.clock import Timeline, timeline_of

SCRIPTS = (
    "page.js",
    "cachelife.js",
    "film.js",
    "words.js",
    "tree.js",
    "answer.js",
    "timeline.js",
    "cache.js",
    "player.js",
    "controls.js",
)


def player_page(trace: TraceFile) -> str:
    """The page, as HTML."""
    subject = trace.header.question or ""
    title = title_of(trace.header) + (f": {subject}" if subject else "")
    script = "\n".join(_part(name) for name in SCRIPTS)
    parts = {
        "title": escape(title if len(title) <= 100 else title[:99] + "…"),
        "style": _part("style.css"),
        "data": as_script_data(page_data(trace)),
        "script": f'"use strict";\n{script}',
    }
    page = _part("page.html")
    for (
        name,
        text,
    ) in parts.items():  # each mark once, so that nothing that is put in is searched again
        before, mark, after = page.partition("{{" + name + "}}")
        assert mark, f"the template lacks {name}"
        parts[name] = before + text
        page = after
    return "".join(parts.values()) + page


def page_data(trace: TraceFile) -> dict[str, Any]:
    """What the program reads: the trace, what lies on its clock, and the head of the page."""
    return {
        "header": trace.header.to_json(),
        "records": [record.data for record in trace.records],
        "lives": _lives(timeline_of(trace)),
        "title": title_of(trace.header),
        "setting": setting_of(trace.header),
        "headline": [asdict(figure) for figure in headline_of(trace)],
        "notes": trace.notes,
    }


def as_script_data(data: Any) -> str:
    """JSON that can stand in a <script> element whatever its texts are: no "<" is left, so nothing
    can end or begin an element.

    Example: {"a": "</script>"} becomes {"a":"\\u003c/script>"}.
    """
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def write_page(page: str, path: str | Path) -> None:
    """Write a page to a file. Raises `TraceError` if that cannot be done."""
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise TraceError(
            f"the page {path} cannot be written: {error}. Choose another place."
        ) from error


def _part(name: str) -> str:
    return (files("lr.lab.player") / name).read_text(encoding="utf-8")


MEANS = {
    "draft": "The draft writes steps ahead; several at once if the tree is wide.",
    "target": "The target writes its own step at every node at the same time, in one batch.",
    "verifier": "The verifier compares draft steps with target steps.",
}


def _lives(timeline: Timeline) -> dict[str, Any]:
    numbers = {lane.name: number for number, lane in enumerate(timeline.lanes)}
    lanes = [
        asdict(lane) | {"colour": lane.name, "means": MEANS[lane.name]} for lane in timeline.lanes
    ]
    spans = [
        asdict(span)
        | {"lane": numbers[span.lane], "says": span.says, "label": f"step {span.index}"}
        for span in timeline.spans
    ]
    passes = [asdict(one) | {"lane": numbers[one.lane]} for one in timeline.passes]
    return {
        "lanes": lanes,
        "spans": spans,
        "passes": passes,
        "marks": [asdict(mark) for mark in timeline.marks],
        "begin": timeline.begin,
    }
