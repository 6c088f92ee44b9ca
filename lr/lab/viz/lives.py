"""Who works when: the lanes of a trace, as the player's clock and the timeline of `lr draw` show
them.

    lives = lives_of(read_trace("trace.jsonl"))
    lives.lanes[0].name, lives.spans[0].begin, lives.marks[0].origin

A *span* is a piece of work from its command to its end; in a lane, spans that overlap stand in
different rows. Simulated workers say when they really began, and what lies before that is waiting.
Plain decoding has no commands: there a span is a step in the making. Times are in the unit of the
trace's header. Knows no picture. Read next: `timeline.py`, `player/page.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lr.lab.trace.file import TraceFile

DONE, CANCELLED, FAILED, OPEN = "done", "cancelled", "failed", "open"
LANE_OF = {"draft": "draft", "target": "target", "judge": "judge"}
NAMES = {"draft": "draft", "target": "target", "judge": "verifier"}
MEANS = {
    "draft": "The draft writes steps ahead; several at once if the tree is wide.",
    "target": "The target writes its own step at every node at the same time: one row each, in one batch.",
    "judge": "The verifier compares draft steps with target steps.",
}


@dataclass
class Span:
    """A piece of work. `asked`: when it was commanded; `begin`, `end`: when somebody worked on it;
    `outcome`: done, cancelled, failed or open (not over when the trace ends)."""

    work: str
    node: str
    asked: float
    begin: float
    end: float
    outcome: str = OPEN
    row: int = 0

    @property
    def index(self) -> int:
        """Number of the step that is written or judged."""
        behind = int(self.node.split(":")[1].split(".")[0])
        return behind if self.work == "target" else behind - 1

    @property
    def says(self) -> str:
        """What it is, in a line."""
        who = {"draft": "draft step", "target": "target step"}.get(
            self.work, "verdict on draft step"
        )
        return f"{who} {self.index}, node {self.node}"


@dataclass(frozen=True)
class Lane:
    """Whose work, and in how many rows it lies."""

    work: str
    rows: int

    @property
    def name(self) -> str:
        return NAMES[self.work]


@dataclass(frozen=True)
class Pass:
    """One forward of a model, or one call of the verifier."""

    work: str
    begin: float
    end: float
    says: str


@dataclass(frozen=True)
class Mark:
    """A decision: a step joins the output."""

    time: float
    index: int
    origin: str


@dataclass(frozen=True)
class Lives:
    """All that lies on the clock of a trace, from `begin` (the first event; what a program did
    before it is not shown) to `end`.
    """

    lanes: list[Lane]
    spans: list[Span]
    passes: list[Pass]
    marks: list[Mark]
    begin: float
    end: float

    def lane(self, work: str) -> int:
        """The number of the lane in which a kind of work lies."""
        return [lane.work for lane in self.lanes].index(LANE_OF[work])


def lives_of(trace: TraceFile) -> Lives:
    """The lanes, spans, passes and decisions of a trace."""
    data = [record.data for record in trace.records]
    begin, end = (float(data[0]["time"]), float(data[-1]["time"])) if data else (0.0, 0.0)
    spans = _commanded(data, end) or _written(data, begin)
    passes = [made for made in map(_pass, data) if made is not None]
    lanes = []
    for work in ("draft", "target", "judge"):
        mine = [span for span in spans if LANE_OF[span.work] == work]
        if mine or any(one.work == work for one in passes):
            lanes.append(Lane(work, max(1, _stack(mine))))
    marks = [
        Mark(one["time"], one["index"], one["origin"]) for one in data if one["event"] == "emit"
    ]
    return Lives(lanes, spans, passes, marks, begin, end)


def _commanded(data: Iterable[dict[str, Any]], end: float) -> list[Span]:
    """The spans of a run with a scheduler."""
    spans: list[Span] = []
    live: dict[tuple[str, str], Span] = {}
    began: dict[tuple[str, str], float] = {}
    for one in data:
        when = float(one["time"])
        for key in _begun(one):
            live[key] = Span(*key, asked=when, begin=when, end=end)
            spans.append(live[key])
        if one["event"] == "span":
            began[(one["work"], one["node"])] = float(one["start"])
        over = _over(one)
        if over is not None and over[0] in live:
            span = live.pop(over[0])
            span.begin, span.end, span.outcome = began.pop(over[0], span.begin), when, over[1]
    return spans


def _begun(one: dict[str, Any]) -> list[tuple[str, str]]:
    """(work, node) of what an event commands."""
    if one["event"] == "draft":
        return [("draft", child) for child in one["children"]]
    return [(one["event"], one["node"])] if one["event"] in ("target", "judge") else []


def _over(one: dict[str, Any]) -> tuple[tuple[str, str], str] | None:
    """(work, node) of what an event ends, and how it ends."""
    kind = one["event"]
    if kind == "cancel":
        return (one["work"], one["node"]), CANCELLED
    ends = {"drafted": "draft", "targeted": "target", "judged": "judge"}
    if kind not in ends:
        return None
    missing = kind == "drafted" and one["step"] is None
    return (ends[kind], one["node"]), FAILED if missing else DONE


def _written(data: Iterable[dict[str, Any]], begin: float) -> list[Span]:
    """The spans of plain decoding: a step from the end of the one before to its last token."""
    spans: list[Span] = []
    before = begin
    for one in data:
        if one["event"] == "written":
            when = float(one["time"])
            name = f"{one['index']}:{one['index']}"
            spans.append(Span(one["role"], one["node"] or name, before, before, when, DONE))
            before = when
    return spans


def _pass(one: dict[str, Any]) -> Pass | None:
    """A forward or a call of the verifier, if the event is one. Their `seconds` are those of the
    trace's clock.
    """
    when = float(one["time"])
    if one["event"] == "forward":
        says = f"one pass of the {one['role']}: rows {one['branches']}, positions {one['tokens']}"
        return Pass(one["role"], max(0.0, when - one["seconds"]), when, says)
    if one["event"] == "verifier":
        return Pass(
            "judge",
            max(0.0, when - one["seconds"]),
            when,
            f"the verifier answers: pairs {one['pairs']}",
        )
    return None


def _stack(spans: list[Span]) -> int:
    """Give each span the first row that is free when it is commanded; returns how many rows that
    takes.

    Example: spans from 0 to 2, 1 to 3 and 2 to 4 lie in rows 0, 1 and 0.
    """
    free: list[float] = []
    for span in sorted(spans, key=lambda one: one.asked):
        span.row = next((row for row, since in enumerate(free) if since <= span.asked), len(free))
        free[span.row : span.row + 1] = [span.end]
    return len(free)
