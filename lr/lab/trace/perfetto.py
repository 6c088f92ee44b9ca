"""A trace in the Chrome trace-event format, for ui.perfetto.dev and chrome://tracing: lanes of work
on one clock.

One process per actor (draft, target, verifier, output), in it one lane for its forwards and one per
piece of work that goes on at the same time, so nothing overlaps; counters show the blocks in use. A
virtual time of 1 becomes one second. Only the complete ("X"), instant ("i"), counter ("C") and
metadata ("M") events of the format are used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lr.lab.trace.file import TraceError, TraceFile
from lr.lab.trace.state import CACHE_EVENTS, State, fold

ACTORS = {"draft": 1, "target": 2, "verifier": 3, "output": 4, "cache": 5}
ACTOR_OF = {"draft": "draft", "target": "target", "judge": "verifier"}
MICROSECONDS = 1e6
FORWARDS = 100
"""The first lane of an actor's forwards (or calls); its work is in those from 1 on."""


def perfetto(trace: TraceFile) -> dict[str, Any]:
    """The trace as a Chrome trace-event object."""
    made: list[dict[str, Any]] = []

    def add(phase: str, name: str, actor: str, time: float, lane: int, **more: Any) -> None:
        place = {"pid": ACTORS[actor], "tid": lane, "ts": max(0.0, time) * MICROSECONDS}
        made.append({"ph": phase, "name": name, **place, **more})

    for actor, number in ACTORS.items():
        add("M", "process_name", actor, 0.0, FORWARDS, args={"name": actor})
        add("M", "process_sort_index", actor, 0.0, FORWARDS, args={"sort_index": number})
        if actor in ACTOR_OF.values():
            word = "calls" if actor == "verifier" else "forwards"
            add("M", "thread_name", actor, 0.0, FORWARDS, args={"name": word})

    state = State.begin(trace.header)
    lanes: dict[tuple[str, str], int] = {}  # of the work that goes on
    ends: dict[str, list[float]] = {}  # by actor: when the last forward in each lane ended
    simulated = any(record.kind == "span" for record in trace.records)
    began: dict[tuple[str, str], float] = {}  # when a simulated worker began on it
    for record in trace.records:
        data, kind, now = record.data, record.kind, record.time
        before = dict(state.work)
        fold(state, record)
        if kind == "span":
            began[data["work"], data["node"]] = data["start"]
        for work in state.work.keys() - before.keys():
            busy = {lane for one, lane in lanes.items() if ACTOR_OF[one[0]] == ACTOR_OF[work[0]]}
            lanes[work] = next(lane for lane in range(1, len(busy) + 2) if lane not in busy)
        for work in before.keys() - state.work.keys():
            start = began.pop(work, None) if simulated else before[work]
            lane = lanes.pop(work)
            if start is not None:  # else it was cancelled before a simulated worker began on it
                cancelled = kind == "cancel"
                name = f"{' '.join(work)}{' (cancelled)' if cancelled else ''}"
                args = _about(state, work) | {"cancelled": cancelled}
                duration = max(0.0, now - start) * MICROSECONDS
                add("X", name, ACTOR_OF[work[0]], start, lane, dur=duration, args=args)
        if kind in ("forward", "verifier"):
            actor = data.get("role", "verifier")
            start = max(0.0, now - data["seconds"])
            last = ends.setdefault(actor, [])
            lane = next((i for i, end in enumerate(last) if end <= start), len(last))
            last[lane : lane + 1] = [now]
            args = {name: data[name] for name in ("branches", "tokens", "pairs") if name in data}
            duration = max(0.0, now - start) * MICROSECONDS
            add("X", kind, actor, start, FORWARDS + lane, dur=duration, args=args)
        elif kind == "emit":
            args = {"text": "".join(data["step"]["pieces"]), "verdict": data["verdict"]}
            name = f"step {data['index']}: {data['origin']}"
            add("i", name, "output", now, FORWARDS, s="p", args=args)
        elif kind in CACHE_EVENTS:
            used = {"used": len(state.caches[data["cache"]].used)}
            add("C", f"blocks of {data['cache']}", "cache", now, FORWARDS, args=used)
    return {"traceEvents": made, "displayTimeUnit": "ms", "otherData": trace.header.to_json()}


def _about(state: State, work: tuple[str, str]) -> dict[str, Any]:
    """What is known of a piece of work that is over."""
    kind, name = work
    node = state.nodes[name]
    step = node.target if kind == "target" else node.draft
    about = {"node": name, "text": "" if step is None else step.text}
    return about | {"verdict": node.verdict} if kind == "judge" else about


def write_perfetto(path: str | Path, trace: TraceFile) -> None:
    """Write the trace for ui.perfetto.dev. Raises `TraceError` if the file cannot be written."""
    try:
        Path(path).write_text(json.dumps(perfetto(trace), ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path} cannot be written: {error}. Choose another place.") from error
