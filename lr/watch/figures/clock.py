"""The clock of a trace: who works when, in lanes for draft, target and verifier. The
player and the figures share the places computed here.

    timeline = timeline_of(trace)
    timeline.lanes[0].name, timeline.spans[0].begin
    write(timeline_figure(trace), Path("timeline.png"))

A *span* is a piece of work from its command to its end. Overlapping spans of a lane get
different rows. Plain decoding has no commands: there a span is the writing of a step.
Times are in the unit of the trace's header. Read next: `tree.py`, the tree at one
moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lr.spec.protocol import Cancel, Drafted, Emit
from lr.trace import ForwardPass, SourceCall, StepWritten, VerifierCall
from lr.types import Role
from lr.watch.figures.style import (
    COLOURS,
    INK,
    PAPER,
    SOFT,
    WASHES,
    figure,
    put,
)
from lr.watch.scripted import ScriptedRun, scripted_trace
from lr.watch.trace.file import TraceFile, step_after
from lr.watch.trace.state import State, apply_event
from lr.watch.words import ORIGINS, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DONE, CANCELLED, FAILED, OPEN = "done", "cancelled", "failed", "open"
LANE_OF = {"draft": "draft", "target": "target", "judge": "verifier"}
"""The lane of a kind of work."""
LANE, GAP, PASS, WIDTH = 0.26, 0.14, 0.09, 12.0
"""In inches: height of a row, of a gap between lanes, of a model's passes; width of the
figure."""


@dataclass
class Span:
    """A piece of work. `outcome`: done, cancelled, failed, or open at the end of the
    trace."""

    work: str
    node: str
    begin: float
    end: float
    outcome: str = OPEN
    row: int = 0
    lane: str = field(init=False)
    index: int = field(init=False)  # the number of the step that is written or judged
    says: str = field(init=False)  # the work in words

    def __post_init__(self) -> None:
        self.lane = LANE_OF[self.work]
        # a draft step leads to the node after
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
class Timeline:
    """The clock of a trace, from its first event to its last."""

    lanes: list[Lane]
    spans: list[Span]
    passes: list[Pass]
    begin: float
    end: float


def timeline_of(trace: TraceFile) -> Timeline:
    """The lanes, spans and passes of a trace."""
    times = [record.time for record in trace.records] or [0.0]
    # plain decoding has no commands
    spans = _commanded(trace, times[-1]) or _written(trace, times[0])
    passes = []
    for record in trace.records:
        event = record.event
        if isinstance(event, ForwardPass | VerifierCall | SourceCall):
            lane = "verifier" if isinstance(event, VerifierCall) else Role.DRAFT.value
            if isinstance(event, ForwardPass):
                lane = event.role.value
            since = max(0.0, record.time - event.seconds)  # in the unit of the clock
            passes.append(Pass(lane, since, record.time, say(record)))
    lanes = []
    for name in LANE_OF.values():
        in_lane = [span for span in spans if span.lane == name]
        # Each span gets the first row that is free when it begins: (0, 2), (1, 3) and
        # (2, 4) get rows 0, 1 and 0.
        ends: list[float] = []  # by row
        for span in in_lane:
            rows = (row for row, since in enumerate(ends) if since <= span.begin)
            span.row = next(rows, len(ends))
            ends[span.row : span.row + 1] = [span.end]  # replaces it, or adds a row
        has_passes = any(single.lane == name for single in passes)
        if in_lane or has_passes:
            lanes.append(Lane(name, max(1, len(ends)), has_passes))
    return Timeline(lanes, spans, passes, times[0], times[-1])


def _commanded(trace: TraceFile, end: float) -> list[Span]:
    """The spans of a run with a scheduler, from the work in progress after each
    event."""
    spans: list[Span] = []
    unfinished: dict[tuple[str, str], Span] = {}
    state = State.begin(trace.header)
    for record in trace.records:
        apply_event(state, record)
        for work, since in state.work.items():
            if work not in unfinished:
                unfinished[work] = Span(*work, begin=since, end=end)
                spans.append(unfinished[work])
        # finished by this event
        for work in [work for work in unfinished if work not in state.work]:
            span = unfinished.pop(work)
            span.end = record.time
            span.outcome = DONE
            match record.event:
                case Cancel():
                    span.outcome = CANCELLED
                case Drafted(_, None):
                    span.outcome = FAILED
    return spans


def _written(trace: TraceFile, begin: float) -> list[Span]:
    """The spans of plain decoding: each step from the end of the previous one to its
    last token."""
    spans: list[Span] = []
    for record in trace.records:
        match record.event:
            case StepWritten(role, index, _, node):
                name = str(node or f"{index}:{index}")
                spans.append(Span(role.value, name, begin, record.time, DONE))
                begin = record.time
    return spans


def draw_order(run: ScriptedRun) -> Figure:
    """The clock of a scripted run, for notebooks: shows the order of turns, but no
    durations."""
    return timeline_figure(scripted_trace(run), width=7.2)


def timeline_figure(trace: TraceFile, *, width: float = WIDTH) -> Figure:
    """The clock from the first event to the last, in the unit of the trace. Cancelled
    work is hatched; the signs of decisions are at the top."""
    timeline = timeline_of(trace)
    length = max(timeline.end - timeline.begin, 1e-12)  # never 0
    tops: dict[str, float] = {}  # of lanes, in inches from the top
    middles: dict[str, float] = {}
    passes_at: dict[str, float] = {}
    bottom = 0.0
    for lane in timeline.lanes:
        tops[lane.name] = bottom
        middles[lane.name] = bottom + lane.rows * LANE / 2
        bottom += lane.rows * LANE
        passes_at[lane.name] = bottom + PASS / 2
        bottom += GAP + PASS * lane.passes
    with figure(width, bottom + 1.05, size=11) as drawing:
        axes = drawing.subplots()
        for span in timeline.spans:
            inches_wide = (span.end - span.begin) / length * (width - 1)
            _draw_span(axes, span, tops[span.lane] + span.row * LANE, inches_wide)
        for each in timeline.passes:
            y = passes_at[each.lane]
            axes.hlines(y, each.begin, each.end, colors=COLOURS[each.lane], lw=5)
        for record in trace.records:
            if isinstance(record.event, Emit):
                origin = ORIGINS[record.event.emitted.origin.value]
                colour = COLOURS[origin.role]
                axes.vlines(record.time, -0.06, bottom, colors=colour, lw=0.9, ls=":")
                put(axes, record.time, -0.2, origin.mark, 11, colour, ha="center")
        axes.set(xlim=(timeline.begin, timeline.begin + length), ylim=(bottom, -0.12))
        axes.set_xlabel(f"time in {trace.header.unit}s")
        axes.set_yticks(list(middles.values()), list(middles))
        axes.tick_params("y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        signs = [f"{origin.mark} {name}" for name, origin in ORIGINS.items()]
        caption = "    ".join([*signs, "hatched: cancelled", "thin bars: passes"])
        axes.set_title(caption, fontsize=9, color=SOFT, loc="right", pad=16)
    return drawing


def _draw_span(axes: Any, span: Span, y: float, inches_wide: float) -> None:
    """A bar, with the number of its step where that fits."""
    dropped = span.outcome in (CANCELLED, FAILED)
    style: dict[str, Any] = {"color": COLOURS[span.lane], "edgecolor": PAPER}
    if dropped:
        style = {"color": WASHES["rejected"], "edgecolor": COLOURS["rejected"]}
        style["hatch"] = "////"
    length = span.end - span.begin
    # a gap between rows
    axes.barh(y + 0.02, length, LANE - 0.04, span.begin, align="edge", **style)
    if inches_wide > 0.2:  # else the number does not fit
        ink = INK if dropped else PAPER
        put(axes, span.begin, y + LANE / 2, f" {span.index}", 8, ink, clip_on=True)
