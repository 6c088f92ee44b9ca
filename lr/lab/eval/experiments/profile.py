"""Experiment `profile`: where the time of Lookahead Reasoning goes, from the events of its traces:
who was at work, together with whom, in batches of what size; and one problem as a picture, draft,
target and judge each on a line of its own."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from lr.lab.eval.experiments.lab import Arm, Lab, Outcome
from lr.lab.eval.experiments.show import Finding
from lr.lab.eval.figure import Bars, Lanes
from lr.lab.eval.keeping import Keeping
from lr.lab.eval.spans import Span, covered
from lr.lab.trace.file import read_trace

COLUMNS = (
    "driver",
    "seconds",
    "target",
    "draft",
    "judge",
    "none of them",
    "draft beside target",
    "target passes",
    "rows per pass",
)
DRIVERS = ("lockstep", "overlapped")
SHOWN_PROBLEM = 0


def arms(lab: Lab) -> list[Arm]:
    """Lookahead Reasoning with either driver, every event kept."""
    keep = Keeping(traces=True, details=False)
    return [
        Arm(driver, "lr", {"driver": driver}, keeping=keep, concurrency=1) for driver in DRIVERS
    ]


def find(lab: Lab, outcome: Outcome) -> Finding:
    """One row per driver; the batch sizes and the picture are those of the overlapped one."""
    shown, panels = [], []
    for driver in DRIVERS:
        traces = [_events(lab, driver, key.file) for key in outcome.runs[driver].records]
        seconds, busy, together, sizes = 0.0, Counter[str](), 0.0, Counter[int]()
        for events in traces:
            spans = spans_of(events)
            end = max((event["time"] for event in events), default=0.0)
            seconds += end
            for lane, some in spans.items():
                busy[lane] += covered(some)  # type: ignore[assignment]
            both = (
                covered(spans["target"])
                + covered(spans["draft"])
                - covered([*spans["target"], *spans["draft"]])
            )
            together += both
            busy["any"] += covered([span for some in spans.values() for span in some])  # type: ignore[assignment]
            sizes.update(
                e["branches"] for e in events if e["event"] == "forward" and e["role"] == "target"
            )
        passes = sum(sizes.values())
        rows = sum(size * count for size, count in sizes.items()) / passes if passes else math.nan
        shares = [busy[lane] / seconds for lane in ("target", "draft", "judge")]
        shown.append(
            (driver, seconds, *shares, 1 - busy["any"] / seconds, together / seconds, passes, rows)
        )
        if driver == DRIVERS[-1]:
            largest = max(sizes, default=0)
            numbers = list(range(1, largest + 1))
            panels.append(
                Bars(
                    "target passes by rows",
                    [str(n) for n in numbers],
                    [sizes[n] / passes for n in numbers],
                    percent=True,
                )
            )
    picture = _events(lab, DRIVERS[-1], next(iter(outcome.runs[DRIVERS[-1]].records)).file)
    lanes = {
        lane: [(span.begin, span.end) for span in some] for lane, some in spans_of(picture).items()
    }
    return Finding(
        f"Where the time goes, {len(outcome.runs[DRIVERS[0]].records)} problems, depth {lab.options.depth}, verifier {lab.verifier}",
        COLUMNS,
        shown,
        [*panels, Lanes("one problem, driver overlapped", "seconds", lanes)],
        [
            "target, draft, judge, none: shares of the time in which each was at work; together they can exceed 1.",
            "draft beside target: the share of the time in which both were at work, which on one thread cannot be.",
        ],
    )


def spans_of(events: list[dict[str, Any]]) -> dict[str, list[Span]]:
    """When target, draft and judge were at work, in seconds: an event comes at the end of what it
    tells of.
    """
    spans: dict[str, list[Span]] = {"draft": [], "target": [], "judge": []}
    for event in events:
        if event["event"] == "forward":
            spans[event["role"]].append(
                Span(max(0.0, event["time"] - event["seconds"]), event["time"])
            )
        elif event["event"] == "verifier":
            spans["judge"].append(Span(max(0.0, event["time"] - event["seconds"]), event["time"]))
    return spans


def _events(lab: Lab, arm: str, file: str) -> list[dict[str, Any]]:
    return [record.data for record in read_trace(lab.work / arm / "traces" / f"{file}l").records]
