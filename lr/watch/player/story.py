"""What the player tells besides the events: the tour, eight stops with their idea, and
the race against plain decoding on the same clock (docs/player.md).

The race's clock "rows are free" is an estimate, not a measurement: every piece of work
begins with the event that began it in this run, in the same order, and takes its number
of passes."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from statistics import fmean, median
from typing import Any

from lr.theory.paper import paper_calibration
from lr.watch.stepper.words import says_aligned
from lr.watch.trace.file import TraceFile
from lr.watch.trace.state import ENDS

PAIR, DATASET = "qwen3", "GSM8K"
CAPTIONS = {
    "ahead": ("tree", "The draft runs ahead", "The small model has written a step and goes straight"
        " on to the next. It does not wait to hear whether the first was good."),
    "target": ("timeline", "The target begins", "The large model writes its own version of the same"
        " step. It does so at every place of the tree at once, one row each in one batch."),
    "verdict": ("tree", "A verdict", "The verifier compares two versions of one step: do they mean"
        " the same? The wording may differ."),
    "slide": ("tree", "The window slides", "They do: the draft's step joins the answer and the root"
        " moves on. All work after it stays valid, and the draft may go one step further."),
    "rejection": ("tree", "A rejection", "They do not. Everything written after this draft step was"
        " built on sand."),
    "correction": ("answer", "The correction was already written", "Why is it not slower to be"
        " wrong? The target's own step, written for the comparison, replaces it. Nothing is"
        " computed again."),
    "copy": ("cache", "Fork and copy", "Branches share the blocks of their common prefix. Only when"
        " one writes into a shared block is that block copied."),
    "end": ("timeline", "The end", "Look at the race: how far would plain decoding be now?"),
}  # fmt: skip
"""By stop: the panel that shows it, the title, the idea."""


def tour_of(trace: TraceFile) -> list[dict[str, Any]]:
    """The stops of the tour that occur in this trace: event, panel, title, words."""
    records = trace.records

    def found(kind: str, **wanted: str) -> list[int]:
        fits = (one for one in records if one.kind == kind)
        return [one.number + 1 for one in fits if wanted.items() <= one.data.items()]

    drafts, corrections = found("draft"), found("emit", origin="correction")
    correction = min(corrections, default=len(records) + 1)
    refused = [
        one.number + 1 for one in records[:correction] if says_aligned(one) is False
    ]
    grown = found("grow", cache="target")  # the page shows this cache first
    copies = [event for event in grown if records[event - 1].data["copies"]]
    copied = [event for event in copies if event > correction]
    stops = {
        "ahead": drafts[1:],
        "target": found("target"),
        "verdict": found("judged"),
        "slide": found("emit", origin="accepted"),
        "rejection": refused[-1:],
        "correction": corrections,
        "copy": copied or copies or found("fork", cache="target"),
        "end": [len(records)],
    }
    keys = ("panel", "title", "words")
    return [
        {"event": events[0], "key": key} | dict(zip(keys, CAPTIONS[key], strict=True))
        for key, events in stops.items()
        if events and drafts
    ]


def race_of(trace: TraceFile) -> list[dict[str, Any]]:
    """By clock: its name, its unit, and when each step joins the answer, here and in
    plain decoding. Empty for a trace without tokens or without lookahead."""
    records, emits = trace.records, [one for one in trace.records if one.kind == "emit"]
    lengths = [len(one.data["step"]["tokens"]) for one in emits]
    passes = [
        one.data
        for one in records
        if one.kind == "forward" and one.data["role"] == "target"
    ]
    if (
        not passes
        or not sum(lengths)
        or not any(one.kind == "draft" for one in records)
    ):
        return []
    fewest = min(one["branches"] for one in passes)
    alone = median(one["seconds"] for one in passes if one["branches"] == fewest)
    costs = paper_calibration(PAIR, DATASET)
    c, v = costs.draft.first, costs.verdict * fmean(lengths)
    rows = f"{fewest} row{'s' * (fewest > 1)}"
    total = list(accumulate(lengths))
    return [
        {"name": "this machine", "unit": "second",
         "costs": f"plain decoding: one pass of the target per token, {alone * 1000:.1f} ms each, "
                  f"the median of this run's passes with {rows}",
         "run": [one.time - records[0].time for one in emits],
         "plain": [alone * tokens for tokens in total]},
        {"name": "rows are free", "unit": "pass",
         "costs": f"estimated: a target pass 1 however many rows, a draft pass {c:.2f}, a verdict "
                  f"{v:.1f}, each on its own GPU (fitted to the paper's tables, "
                  f"{costs.name})",
         "run": _free(trace, c, v), "plain": [float(tokens) for tokens in total]},
    ]  # fmt: skip


def _free(trace: TraceFile, c: float, v: float) -> list[float]:
    """The times at which the steps join the answer if rows are free."""
    written = [one for one in trace.records if one.kind in ("token", "round")]
    passes = Counter((one.kind, one.data["role"], one.data["node"]) for one in written)
    began: dict[tuple[str, str], float] = {}
    done: dict[tuple[str, str], float] = {}
    now, emitted = 0.0, [0.0]
    for record in trace.records:
        kind, data = record.kind, record.data
        match kind:
            case "draft":
                began |= {("draft", child): now for child in data["children"]}
            case "target" | "judge":
                began[kind, data["node"]] = now
            case "drafted" | "targeted" | "judged":
                work, node = key = ENDS[kind], data["node"]
                count = passes["round", work, node] or passes["token", work, node]
                cost = {"draft": c * count, "target": float(count), "judge": v}[work]
                now = done[key] = began.get(key, now) + cost
            case "emit":
                kept = data["origin"] == "accepted"
                own = done.get(("judge" if kept else "target", data["node"]), now)
                now = max(now, own, emitted[-1])
                emitted.append(now)
    return emitted[1:]
