"""The clock of a trace: who works when, in lanes for draft, target and verifier. The
player and the figures share the places computed here.

    timeline = timeline_of(trace)
    timeline.lanes[0].name, timeline.spans[0].begin, timeline.marks[0].origin
    with timeline_figure(trace) as made:
        write(made, Path("timeline.png"))

A *span* is a piece of work from its command to its end. Overlapping spans of a lane get
different rows. Simulated workers say when they really began; before that they waited.
Plain decoding has no commands: there a span is the writing of a step. Times are in the
unit of the trace's header. Read next: `tree.py`, the tree at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lr.watch.figures.style import (
    COLOURS,
    INK,
    ORIGINS,
    PAPER,
    SOFT,
    WASHES,
    figure,
    put,
)
from lr.watch.scripted import ScriptedRun
from lr.watch.trace.file import TraceFile, step_after
from lr.watch.trace.state import State, apply_event
from lr.watch.trace.virtual import scripted_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DONE, CANCELLED, FAILED, OPEN = "done", "cancelled", "failed", "open"
LANE_OF = {"draft": "draft", "target": "target", "judge": "verifier"}
"""The lane of a kind of work."""
ROW, GAP, PASS, WIDTH = 0.26, 0.14, 0.09, 12.0
"""In inches: height of a row, of a gap between lanes, of a model's passes; width of the
figure."""
MARGIN, LETTER, THINNEST, APART = 0.012, 0.0062, 0.002, 0.011
"""Shares of the whole width: the room that words in a bar need around them, and per
letter; the thinnest bar; the least distance between two signs."""


@dataclass
class Span:
    """A piece of work. `outcome`: done, cancelled, failed, or open at the end of the
    trace."""

    work: str
    node: str
    asked: float  # when it was commanded
    begin: float  # when it began
    end: float
    outcome: str = OPEN
    row: int = 0
    lane: str = field(init=False)
    index: int = field(init=False)  # the number of the step that is written or judged
    says: str = field(init=False)  # the work in words

    def __post_init__(self) -> None:
        self.lane = LANE_OF[self.work]
        self.index = step_after(self.node) - (self.work != "target")
        step = "verdict on draft" if self.work == "judge" else self.work
        self.says = f"{step} step {self.index}, node {self.node}"


@dataclass(frozen=True)
class Lane:
    """One actor's work. `passes`: whether the lane also has passes."""

    name: str
    rows: int
    passes: bool


@dataclass(frozen=True)
class Pass:
    """One forward of a model, or one call of the verifier."""

    lane: str
    begin: float
    end: float
    says: str


@dataclass(frozen=True)
class Mark:
    """A decision: a step joins the answer."""

    time: float
    index: int
    origin: str


@dataclass(frozen=True)
class Timeline:
    """The clock of a trace, from its first event to its last."""

    lanes: list[Lane]
    spans: list[Span]
    passes: list[Pass]
    marks: list[Mark]
    begin: float
    end: float


def timeline_of(trace: TraceFile) -> Timeline:
    """The lanes, spans, passes and decisions of a trace."""
    data = [record.data for record in trace.records]
    begin, end = (
        (float(data[0]["time"]), float(data[-1]["time"])) if data else (0.0, 0.0)
    )
    spans = _commanded(trace, end) or _written(data, begin)
    passes = [_pass(one) for one in data if one["event"] in ("forward", "verifier")]
    lanes = []
    for name in ("draft", "target", "verifier"):
        mine = [span for span in spans if span.lane == name]
        for span, row in zip(
            mine, rows_of([(s.asked, s.end) for s in mine]), strict=True
        ):
            span.row = row
        any_pass = any(one.lane == name for one in passes)
        if mine or any_pass:
            lanes.append(
                Lane(name, 1 + max((span.row for span in mine), default=0), any_pass)
            )
    emits = [one for one in data if one["event"] == "emit"]
    marks = [Mark(one["time"], one["index"], one["origin"]) for one in emits]
    return Timeline(lanes, spans, passes, marks, begin, end)


def _commanded(trace: TraceFile, end: float) -> list[Span]:
    """The spans of a run with a scheduler, from the work in progress after each
    event."""
    spans: list[Span] = []
    live: dict[tuple[str, str], Span] = {}
    began: dict[tuple[str, str], float] = {}
    state = State.begin(trace.header)
    for record in trace.records:
        apply_event(state, record)
        for key, since in state.work.items():
            if key not in live:
                live[key] = Span(*key, asked=since, begin=since, end=end)
                spans.append(live[key])
        if record.kind == "span":
            began[record.data["work"], record.data["node"]] = float(
                record.data["start"]
            )
        for key in [key for key in live if key not in state.work]:
            span = live.pop(key)
            span.begin, span.end, span.outcome = (
                began.pop(key, span.begin),
                record.time,
                DONE,
            )
            if record.kind == "cancel":
                span.outcome = CANCELLED
            elif record.kind == "drafted" and record.data["step"] is None:
                span.outcome = FAILED
    return spans


def _written(data: Iterable[dict[str, Any]], begin: float) -> list[Span]:
    """The spans of plain decoding: each step from the end of the previous one to its
    last token."""
    spans: list[Span] = []
    for one in data:
        if one["event"] == "written":
            name = one["node"] or f"{one['index']}:{one['index']}"
            spans.append(
                Span(one["role"], name, begin, begin, float(one["time"]), DONE)
            )
            begin = spans[-1].end
    return spans


def _pass(one: dict[str, Any]) -> Pass:
    """A forward, or a call of the verifier. `seconds` is in the unit of the trace's
    clock."""
    end = float(one["time"])
    begin = max(0.0, end - one["seconds"])
    if one["event"] == "verifier":
        return Pass(
            "verifier", begin, end, f"the verifier answers: pairs {one['pairs']}"
        )
    size = f"rows {one['branches']}, positions {one['tokens']}"
    return Pass(one["role"], begin, end, f"one pass of the {one['role']}: {size}")


def rows_of(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """The row of each interval (begin, end): the first row that is free when it begins.

    Example: (0, 2), (1, 3) and (2, 4) get rows 0, 1 and 0."""
    free: list[float] = []
    rows = [0] * len(intervals)
    for i in sorted(range(len(intervals)), key=lambda i: intervals[i][0]):
        begin, end = intervals[i]
        rows[i] = next(
            (row for row, since in enumerate(free) if since <= begin), len(free)
        )
        free[rows[i] : rows[i] + 1] = [end]
    return rows


def draw_order(run: ScriptedRun) -> Figure:
    """The clock of a scripted run, for notebooks: shows the order of turns, but no
    durations."""
    with timeline_figure(scripted_trace(run), width=8.5) as made:
        return made


@contextmanager
def timeline_figure(trace: TraceFile, *, width: float = WIDTH) -> Iterator[Any]:
    """The clock from the first event to the last, in the unit of the trace. Cancelled
    work is hatched; the signs of decisions are at the top."""
    timeline = timeline_of(trace)
    begin, last = timeline.begin, max(timeline.end, timeline.begin + 1e-12)
    scale = 1000.0 if trace.header.unit == "second" and last - begin < 2 else 1.0
    unit = f"{trace.header.unit}s" if scale == 1 else "milliseconds"
    tops, bottom = {}, 0.0
    for lane in timeline.lanes:
        tops[lane.name] = bottom
        bottom += lane.rows * ROW + GAP + PASS * lane.passes
    with figure(width, bottom + 1.05, size=11, salt="lr draw") as made:
        axes = made.subplots()
        for span in timeline.spans:
            y = tops[span.lane] + span.row * ROW
            _draw_span(axes, span, y, scale, last - begin, WIDTH / width)
        for lane in timeline.lanes:
            mine = [one for one in timeline.passes if one.lane == lane.name]
            bars = [(one.begin * scale, (one.end - one.begin) * scale) for one in mine]
            place = (tops[lane.name] + lane.rows * ROW + 0.02, PASS - 0.02)
            axes.broken_barh(bars, place, facecolors=COLOURS[lane.name], alpha=0.75)
        sign = begin  # decisions at the same moment get signs next to each other
        for mark in timeline.marks:
            sign = max(mark.time, sign + APART * (last - begin) * WIDTH / width)
            colour = COLOURS[ORIGINS[mark.origin].role]
            at = mark.time * scale
            axes.plot([at, at], [-0.06, bottom], color=colour, lw=0.9, ls=":")
            style = {"ha": "center", "va": "bottom", "fontsize": 11, "weight": "bold"}
            axes.text(
                sign * scale, -0.14, ORIGINS[mark.origin].mark, color=colour, **style
            )
        axes.set(
            xlim=(begin * scale, last * scale),
            ylim=(bottom, -0.12),
            xlabel=f"time in {unit}",
        )
        middles = [tops[lane.name] + lane.rows * ROW / 2 for lane in timeline.lanes]
        axes.set_yticks(middles, [lane.name for lane in timeline.lanes], weight="bold")
        for label, lane in zip(axes.get_yticklabels(), timeline.lanes, strict=True):
            label.set_color(COLOURS[lane.name])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_title(_caption(timeline), fontsize=9, color=SOFT, loc="right", pad=16)
        yield made


def _draw_span(
    axes: Any, span: Span, y: float, scale: float, shown: float, narrow: float
) -> None:
    """A bar, its words where they fit, and a thin line for the time before it began.
    `shown`: the time of the whole figure; `narrow`: `WIDTH` / the width of the
    figure."""
    dropped = span.outcome in (CANCELLED, FAILED)
    left, width = (
        span.begin * scale,
        max(span.end - span.begin, THINNEST * shown) * scale,
    )
    if span.begin > span.asked:
        middle = [y + ROW / 2] * 2
        axes.plot([span.asked * scale, left], middle, color=COLOURS[span.lane], lw=0.8)
    style: dict[str, Any] = {"color": COLOURS[span.lane], "edgecolor": PAPER}
    if dropped:
        style = {
            "color": WASHES["rejected"],
            "edgecolor": COLOURS["rejected"],
            "hatch": "////",
        }
    place = {"left": left, "height": ROW - 0.04, "align": "edge"}
    axes.barh(y + 0.02, width, linewidth=0.6, **place, **style)
    if dropped:
        axes.plot(left + width, y + ROW / 2, "x", color=INK, ms=5, mew=1.4, zorder=5)
    room = (span.end - span.begin) / shown / narrow
    texts = (f"step {span.index}", str(span.index))
    words = next((one for one in texts if room > MARGIN + LETTER * len(one)), None)
    if words is not None:
        ground = {"facecolor": WASHES["rejected"], "edgecolor": "none", "pad": 0.8}
        at = (span.begin + 0.004 * narrow * shown) * scale
        more = {"bbox": ground if dropped else None, "clip_on": True}
        put(axes, at, y + ROW / 2, words, 8, SOFT if dropped else PAPER, **more)


def _caption(timeline: Timeline) -> str:
    """The meaning of the signs in the picture."""
    there = {mark.origin for mark in timeline.marks}
    parts = [
        f"{one.mark} {origin}" for origin, one in ORIGINS.items() if origin in there
    ]
    if any(span.outcome in (CANCELLED, FAILED) for span in timeline.spans):
        parts.append("hatched: cancelled")
    if timeline.passes:
        parts.append("thin bars: passes of the model")
    return "    ".join(parts)
