"""What the player tells besides the events: the tour, eight stops with their idea, and
the race against plain decoding on the same clock (docs/player.md).

The race has two clocks: passes of the target, which are the same on every machine, and
the time of the machine that made the recording."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from statistics import median
from typing import Any

from lr.engine.recorder import BranchesGrew
from lr.spec.protocol import Emit
from lr.trace import ForwardPass
from lr.types import Origin, Role
from lr.watch.stepper.words import is_emitted, is_rejection
from lr.watch.trace.file import Record, TraceFile

CAPTIONS = {
    "ahead": ("tree", "The draft runs ahead", "The small model has written a step and goes straight"
        " on to the next. It does not wait to hear whether the first was good."),
    "target": ("timeline", "The target begins", "The large model writes its own version of the same"
        " step. It does so at every place of the tree at once, one row each in one batch."),
    "verdict": ("tree", "A verdict", "The verifier compares two versions of one step: do they mean"
        " the same? The wording may differ."),
    "slide": ("tree", "The window slides", "The two steps mean the same: the draft's joins the answer"
        " and the root moves on. All work after it stays valid."),
    "rejection": ("tree", "A rejection", "The two steps do not mean the same. The draft's is dropped,"
        " with everything written after it."),
    "correction": ("answer", "The correction was already written", "Why is it not slower to be"
        " wrong? The target's own step, written for the comparison, replaces it. Nothing is"
        " computed again."),
    "copy": ("cache", "Fork and copy", "Branches share the blocks of their common prefix. Only when"
        " one writes into a shared block is that block copied."),
    "end": ("timeline", "The end", "Look at the race: how far would plain decoding be now?"),
}  # fmt: skip
"""By stop: the panel that shows it, the title, the idea."""


def tour_of(trace: TraceFile) -> list[dict[str, Any]]:
    """The stops of the tour that occur in this trace, in the order of their events:
    event, panel, title, words."""
    records = trace.records

    def after(wanted: Callable[[Record], bool]) -> list[int]:
        """The numbers of events after which such an event has happened."""
        return [record.number + 1 for record in records if wanted(record)]

    drafts = after(lambda record: record.kind == "draft")
    corrections = after(lambda record: is_emitted(record, Origin.CORRECTION))
    correction = min(corrections, default=len(records) + 1)
    rejections = after(is_rejection)
    copies = after(_copies)
    late_copies = [event for event in copies if event > correction]
    stops = {
        "ahead": drafts[1:],
        "target": after(lambda record: record.kind == "target"),
        "verdict": after(lambda record: record.kind == "judged"),
        "slide": after(lambda record: is_emitted(record, Origin.ACCEPTED)),
        "rejection": [event for event in rejections if event < correction][-1:],
        "correction": corrections,
        "copy": late_copies or copies or after(lambda record: record.kind == "fork"),
        "end": [len(records)],
    }
    tour = []
    for key, events in stops.items():
        if events and drafts:
            panel, title, words = CAPTIONS[key]
            stop = {"event": events[0], "key": key, "panel": panel}
            tour.append(stop | {"title": title, "words": words})
    return sorted(tour, key=lambda stop: int(stop["event"]))


def _copies(record: Record) -> bool:
    """Whether blocks of the target's cache are copied, which the page shows first."""
    event = record.event
    return (
        isinstance(event, BranchesGrew)
        and event.cache == "target"
        and event.copies != ()
    )


def race_of(trace: TraceFile) -> list[dict[str, Any]]:
    """The clocks of the race, each with the times at which the steps join the answer
    here and in plain decoding. No clock without target passes and draft steps."""
    passes = []  # of the target
    passes_before = []  # by step of the answer
    times = []
    lengths = []
    for record in trace.records:
        match record.event:
            case ForwardPass(Role.TARGET) as forward:
                passes.append(forward)
            case Emit(emitted):
                times.append(record.time - trace.records[0].time)
                passes_before.append(len(passes))
                lengths.append(len(emitted.step.tokens))
    total = list(accumulate(lengths))
    has_drafts = any(record.kind == "draft" for record in trace.records)
    if not passes or not sum(total) or not has_drafts:
        return []
    in_passes = {
        "name": "passes",
        "says": "If only passes of the target took time",
        "costs": "passes of the target are counted, each as one, however many rows it "
        "has; drafts and verdicts cost nothing",
        "run": passes_before,
        "plain": total,
    }
    fewest = min(forward.branches for forward in passes)
    alone = median(each.seconds for each in passes if each.branches == fewest)
    machine = {
        "name": "this machine",
        "says": "On the machine that made this recording",
        "costs": f"plain decoding: one pass of the target per token, {alone * 1000:.1f} ms "
        f"each, the median of this run's passes with the fewest rows ({fewest})",
        "run": times,
        "plain": [alone * tokens for tokens in total],
    }
    return [in_passes, machine]
