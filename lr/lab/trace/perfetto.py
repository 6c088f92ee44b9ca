"""A trace in the Chrome trace-event format, for ui.perfetto.dev and chrome://tracing: lanes of work
on one clock.

One process per actor (draft, target, verifier, output), in it one lane for its forwards and one per
piece of work that goes on at the same time, so nothing overlaps; counters show the blocks in use. A
virtual time of 1 becomes one second. Only the complete ("X"), instant ("i"), counter ("C") and
metadata ("M") events of the format are used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lr.lab.trace.caches import CACHE_EVENTS
from lr.lab.trace.file import Record, TraceError, TraceFile
from lr.lab.trace.film import fold
from lr.lab.trace.state import State

ACTORS = {"draft": 1, "target": 2, "verifier": 3, "output": 4, "cache": 5}
_ACTOR_OF_WORK = {"draft": "draft", "target": "target", "judge": "verifier", "score": "verifier"}
MICROSECONDS = 1e6
FORWARDS = 100
"""The first lane of an actor's forwards (and of calls of the verifier); its work stands in the
lanes from 1 on.
"""


@dataclass
class _Lanes:
    """Which lane everything stands in: the first that is free. `ends`: when the last forward in
    each of an actor's lanes ended.
    """

    taken: dict[tuple[str, str], int] = field(default_factory=dict)
    ends: dict[str, list[float]] = field(default_factory=dict)

    def take(self, work: tuple[str, str]) -> None:
        actor = _ACTOR_OF_WORK[work[0]]
        busy = {lane for (kind, _), lane in self.taken.items() if _ACTOR_OF_WORK[kind] == actor}
        self.taken[work] = next(lane for lane in range(1, len(busy) + 2) if lane not in busy)

    def forward(self, actor: str, start: float, end: float) -> int:
        """The lane of a forward; they come in the order of their ends."""
        ends = self.ends.setdefault(actor, [])
        lane = next((i for i, last in enumerate(ends) if last <= start), len(ends))
        ends[lane : lane + 1] = [end]
        return FORWARDS + lane


def perfetto(trace: TraceFile) -> dict[str, Any]:
    """The trace as a Chrome trace-event object."""
    state, lanes, events = State.begin(trace.header), _Lanes(), _names()
    simulated = any(record.kind == "span" for record in trace.records)
    began: dict[tuple[str, str], float] = {}
    for record in trace.records:
        before = dict(state.work)
        fold(state, record)
        for work in state.work.keys() - before.keys():
            lanes.take(work)
        if record.kind == "span":
            began[(record.data["work"], record.data["node"])] = record.data["start"]
        for work, since in before.items():
            if work not in state.work:
                start = began.pop(work, None) if simulated else since
                if (
                    start is not None
                ):  # None: it was cancelled before a simulated worker began on it
                    events.append(
                        _work(
                            state, work, start, lanes.taken[work], cancelled=record.kind == "cancel"
                        )
                    )
                del lanes.taken[work]
        events += _moment(record, state, lanes)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": trace.header.to_json()}


def write_perfetto(path: str | Path, trace: TraceFile) -> None:
    """Write the trace for ui.perfetto.dev. Raises `TraceError` if the file cannot be written."""
    try:
        Path(path).write_text(json.dumps(perfetto(trace), ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path} cannot be written: {error}. Choose another place.") from error


def _names() -> list[dict[str, Any]]:
    named = []
    for actor, number in ACTORS.items():
        named.append(_event("M", "process_name", number, FORWARDS, 0.0, args={"name": actor}))
        named.append(
            _event("M", "process_sort_index", number, FORWARDS, 0.0, args={"sort_index": number})
        )
    for actor in ("draft", "target", "verifier"):
        word = "calls" if actor == "verifier" else "forwards"
        named.append(_event("M", "thread_name", ACTORS[actor], FORWARDS, 0.0, args={"name": word}))
    return named


def _work(
    state: State, work: tuple[str, str], start: float, lane: int, *, cancelled: bool
) -> dict[str, Any]:
    """A piece of work that is over."""
    kind, name = work
    node = state.nodes.get(name)
    step = None if node is None else node.target if kind == "target" else node.draft
    args: dict[str, Any] = {
        "node": name,
        "text": "" if step is None else step.text,
        "cancelled": cancelled,
    }
    if node is not None and kind in ("judge", "score"):
        args["verdict"] = node.verdict
    shown = f"{kind} {name}" + (" (cancelled)" if cancelled else "")
    return _event(
        "X", shown, ACTORS[_ACTOR_OF_WORK[kind]], lane, start, dur=state.time - start, args=args
    )


def _moment(record: Record, state: State, lanes: _Lanes) -> list[dict[str, Any]]:
    """What an event shows by itself."""
    data = record.data
    if record.kind in ("forward", "verifier"):
        actor = data.get("role", "verifier")
        counts = {name: data[name] for name in ("branches", "tokens", "pairs") if name in data}
        start = max(0.0, record.time - data["seconds"])
        lane = lanes.forward(actor, start, record.time)
        return [
            _event(
                "X", record.kind, ACTORS[actor], lane, start, dur=record.time - start, args=counts
            )
        ]
    if record.kind == "emit":
        args = {"text": "".join(data["step"]["pieces"]), "verdict": data["verdict"]}
        shown = f"step {data['index']}: {data['origin']}"
        return [_event("i", shown, ACTORS["output"], FORWARDS, record.time, s="p", args=args)]
    if record.kind in CACHE_EVENTS:
        cache = state.caches[data["cache"]]
        used = {"used": len(cache.used)}
        return [
            _event(
                "C", f"blocks of {cache.name}", ACTORS["cache"], FORWARDS, record.time, args=used
            )
        ]
    return []


def _event(
    phase: str, name: str, process: int, lane: int, time: float, **more: Any
) -> dict[str, Any]:
    if "dur" in more:
        more["dur"] = max(0.0, more["dur"]) * MICROSECONDS
    return {
        "ph": phase,
        "name": name,
        "pid": process,
        "tid": lane,
        "ts": max(0.0, time) * MICROSECONDS,
        **more,
    }
