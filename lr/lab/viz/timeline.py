"""Draws a trace's clock for a slide: lanes for draft, target rows and verifier, cancelled work
hatched, decisions on top.

    with timeline_figure(trace) as made:
        write(made, Path("timeline.png"))

What lies where is computed in `lives.py`, for the player too. Read next: `moment.py`, the tree at
one moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lr.lab.trace.file import TraceFile
from lr.lab.viz.lives import CANCELLED, FAILED, Lives, Span, lives_of
from lr.lab.viz.style import COLOUR_OF, INK, MARKS, PAPER, SOFT, WASH, WHO, figure

ROW, GAP, PASS = 0.26, 0.14, 0.09
"""Heights in inches: of a row, between lanes, of a model's passes."""
WIDTH = 12.0
NEEDED, THINNEST, APART = 0.03, 0.002, 0.011
"""Shares of the whole width: what a bar needs beside its letters to carry words, the thinnest bar,
the distance of two signs.
"""


@contextmanager
def timeline_figure(
    trace: TraceFile, begin: float | None = None, end: float | None = None
) -> Iterator[Any]:
    """The picture from time `begin` to `end` (None: from the first event to the last), in the unit
    of the trace.
    """
    lives = lives_of(trace)
    begin = lives.begin if begin is None else begin
    last = max(lives.end if end is None else min(end, lives.end), begin + 1e-12)
    tops, bottom = _tops(lives)
    with figure(WIDTH, bottom + 1.05, size=11, salt="lr draw") as made:
        axes = made.subplots()
        scale, unit = _unit(trace, last - begin)
        for span in lives.spans:
            if span.end >= begin and span.asked <= last:
                _draw_span(axes, span, tops[lives.lane(span.work)], scale, (begin, last))
        _draw_passes(axes, lives, tops, scale)
        sign = begin  # signs of decisions at the same moment stand beside each other
        for mark in lives.marks:
            if begin <= mark.time <= last:
                sign = max(mark.time, sign + APART * (last - begin))
                _draw_mark(axes, (mark.time * scale, sign * scale), mark.origin, bottom)
        axes.set(xlim=(begin * scale, last * scale), ylim=(bottom, -0.12), xlabel=unit)
        middles = [top + lane.rows * ROW / 2 for top, lane in zip(tops, lives.lanes, strict=True)]
        axes.set_yticks(middles, [lane.name for lane in lives.lanes], weight="bold")
        for label, lane in zip(axes.get_yticklabels(), lives.lanes, strict=True):
            label.set_color(WHO[lane.work])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_title(_caption(lives), fontsize=9, color=SOFT, loc="right", pad=16)
        yield made


def _tops(lives: Lives) -> tuple[list[float], float]:
    """Where each lane begins, in inches from the top, and where the last one ends."""
    tops, y = [], 0.0
    for lane in lives.lanes:
        tops.append(y)
        y += (
            lane.rows * ROW
            + GAP
            + (PASS if any(one.work == lane.work for one in lives.passes) else 0)
        )
    return tops, y


def _unit(trace: TraceFile, shown: float) -> tuple[float, str]:
    """What times are multiplied by, and the words below the axis."""
    if trace.header.unit != "second":
        return 1.0, f"time in {trace.header.unit}s"
    return (1000.0, "time in milliseconds") if shown < 2 else (1.0, "time in seconds")


def _draw_span(
    axes: Any, span: Span, top: float, scale: float, window: tuple[float, float]
) -> None:
    y, lane = top + span.row * ROW, span.work
    dropped = span.outcome in (CANCELLED, FAILED)
    shown = window[1] - window[0]
    left, width = span.begin * scale, max(span.end - span.begin, THINNEST * shown) * scale
    if span.begin > span.asked:
        axes.plot([span.asked * scale, left], [y + ROW / 2] * 2, color=WHO[lane], lw=0.8)
    axes.barh(
        y + 0.02,
        width,
        left=left,
        height=ROW - 0.04,
        align="edge",
        color=WASH["gone"] if dropped else WHO[lane],
        edgecolor=WHO["gone"] if dropped else PAPER,
        hatch="////" if dropped else None,
        linewidth=0.6,
    )
    if dropped:
        axes.plot(left + width, y + ROW / 2, "x", color=INK, ms=5, mew=1.4, zorder=5)
    words = f"step {span.index}"
    if (span.end - span.begin) / shown > NEEDED + 0.006 * len(words):
        ground = {"facecolor": WASH["gone"], "edgecolor": "none", "pad": 0.8} if dropped else None
        at = max(span.begin, window[0]) * scale + 0.004 * shown * scale
        colour = SOFT if dropped else PAPER
        axes.text(
            at, y + ROW / 2, words, color=colour, fontsize=8, va="center", bbox=ground, clip_on=True
        )


def _draw_passes(axes: Any, lives: Lives, tops: list[float], scale: float) -> None:
    for lane, top in zip(lives.lanes, tops, strict=True):
        bars = [
            (one.begin * scale, (one.end - one.begin) * scale)
            for one in lives.passes
            if one.work == lane.work
        ]
        axes.broken_barh(
            bars, (top + lane.rows * ROW + 0.02, PASS - 0.02), facecolors=WHO[lane.work], alpha=0.75
        )


def _draw_mark(axes: Any, where: tuple[float, float], origin: str, bottom: float) -> None:
    """A line at the moment of a decision, and its sign, which may stand a little further right."""
    at, sign = where
    colour = WHO[COLOUR_OF[origin]]
    axes.plot([at, at], [-0.06, bottom], color=colour, lw=0.9, ls=":")
    axes.text(
        sign,
        -0.14,
        MARKS[origin],
        color=colour,
        ha="center",
        va="bottom",
        fontsize=11,
        weight="bold",
    )


def _caption(lives: Lives) -> str:
    """What the signs mean that are in the picture."""
    there = {mark.origin for mark in lives.marks}
    parts = [f"{sign} {origin}" for origin, sign in MARKS.items() if origin in there]
    if any(span.outcome in (CANCELLED, FAILED) for span in lives.spans):
        parts.append("hatched: cancelled")
    if lives.passes:
        parts.append("thin bars: passes of the model")
    return "    ".join(parts)
