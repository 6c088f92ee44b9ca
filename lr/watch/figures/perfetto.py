"""A trace in the Chrome trace-event format, for ui.perfetto.dev and chrome://tracing:
the timeline of `lab/viz/clock.py` with the texts of the steps, and counters of the
blocks in use.

Each actor (draft, target, verifier, output) is a process. It has enough lanes that
neither its forwards nor its pieces of work overlap. A virtual time of 1 becomes one
second. The events are of the kinds complete ("X"), instant ("i"), counter ("C") and
metadata ("M")."""

from __future__ import annotations

from typing import Any

from lr.watch.figures.clock import DONE, rows_of, timeline_of
from lr.watch.trace.file import TraceFile
from lr.watch.trace.state import CACHE_EVENTS, State, apply_event

ACTORS = {"draft": 1, "target": 2, "verifier": 3, "output": 4, "cache": 5}
MICROSECONDS = 1e6
FORWARDS = 100  # The first lane of an actor's forwards (or calls); its work has the lanes from 1.


def perfetto(trace: TraceFile) -> dict[str, Any]:
    """The trace as a Chrome trace-event object."""
    made: list[dict[str, Any]] = []

    def add(
        phase: str, name: str, actor: str, time: float, lane: int, **more: Any
    ) -> None:
        place = {"pid": ACTORS[actor], "tid": lane, "ts": max(0.0, time) * MICROSECONDS}
        made.append({"ph": phase, "name": name, **place, **more})

    def add_span(
        name: str, actor: str, begin: float, end: float, lane: int, args: Any
    ) -> None:
        duration = (end - max(0.0, begin)) * MICROSECONDS
        add("X", name, actor, begin, lane, dur=max(0.0, duration), args=args)

    for actor, number in ACTORS.items():
        add("M", "process_name", actor, 0.0, FORWARDS, args={"name": actor})
        add(
            "M", "process_sort_index", actor, 0.0, FORWARDS, args={"sort_index": number}
        )
    state, timeline = State.begin(trace.header), timeline_of(trace)
    for record in trace.records:
        apply_event(state, record)
        data, now = record.data, record.time
        if record.kind == "emit":
            args = {"text": "".join(data["step"]["pieces"]), "verdict": data["verdict"]}
            name = f"step {data['index']}: {data['origin']}"
            add("i", name, "output", now, FORWARDS, s="p", args=args)
        elif record.kind in CACHE_EVENTS:
            used = {"used": len(state.caches[data["cache"]].owners_by_block())}
            add("C", f"blocks of {data['cache']}", "cache", now, FORWARDS, args=used)
    for span in timeline.spans:
        node = state.nodes[span.node]
        step = node.target if span.work == "target" else node.draft
        args = {
            "node": node.name,
            "outcome": span.outcome,
            "text": step.text if step else "",
        }
        args |= {"verdict": node.verdict} if span.work == "judge" else {}
        name = f"{span.work} {node.name}{'' if span.outcome == DONE else f' ({span.outcome})'}"
        add_span(name, span.lane, span.begin, span.end, 1 + span.row, args)
    for lane in timeline.lanes:
        what = "calls" if lane.name == "verifier" else "forwards"
        add("M", "thread_name", lane.name, 0.0, FORWARDS, args={"name": what})
        mine = [one for one in timeline.passes if one.lane == lane.name]
        for one, row in zip(
            mine, rows_of([(one.begin, one.end) for one in mine]), strict=True
        ):
            what = "verifier" if lane.name == "verifier" else "forward"
            add_span(
                what, lane.name, one.begin, one.end, FORWARDS + row, {"what": one.says}
            )
    return {
        "traceEvents": made,
        "displayTimeUnit": "ms",
        "otherData": trace.header.to_json(),
    }
