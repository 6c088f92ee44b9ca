"""What the player tells besides the events: the tour, nine stops with their idea, and
the race against plain decoding on the same clock (docs/player.md).

The race counts passes of the target, which are the same on every machine."""

from collections.abc import Callable
from itertools import accumulate
from textwrap import shorten
from typing import Any

from lr.engine.recorder import BranchesGrew
from lr.spec.protocol import Emit
from lr.trace import ForwardPass
from lr.types import Origin, Role
from lr.watch.recorded import kept_and_rejected
from lr.watch.trace.file import Record, TraceFile
from lr.watch.words import is_emitted, is_rejection, quoted

QUOTED_LETTERS = 200  # of a step that a caption quotes

CAPTIONS = {
    "steps": ("answer", "Steps of two models", "A small model, the draft, writes steps ahead. A large one, the"
        " target, writes the same steps in its own words, and a verifier compares."),
    "ahead": ("tree", "The draft runs ahead", "The small model has written a step and goes straight"
        " on to the next. It does not wait to hear whether the first was good."),
    "target": ("timeline", "The target begins", "The large model writes its own version of the next"
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
    ahead = drafts[1:]  # the second: the first runs ahead of nothing
    targets = after(lambda record: record.kind == "target")
    corrections = after(lambda record: is_emitted(record, Origin.CORRECTION))
    correction = min(corrections, default=len(records) + 1)  # the first
    rejections = after(is_rejection)
    copies = after(_copies)
    # the copy that a correction causes
    late_copies = [event for event in copies if event > correction]
    stops = {
        "steps": [0],
        "ahead": ahead,
        "target": [event for event in targets if ahead and event > ahead[0]],
        "verdict": after(lambda record: record.kind == "judged"),
        "slide": after(lambda record: is_emitted(record, Origin.ACCEPTED)),
        # the one that the correction follows
        "rejection": [event for event in rejections if event < correction][-1:],
        "correction": corrections,
        "copy": late_copies or copies[-1:],
        "end": [len(records)],
    }
    tour = []
    for key, events in stops.items():
        if events and drafts:  # plain decoding has no tour
            panel, title, words = CAPTIONS[key]
            words += examples_of(trace) if key == "steps" else ""
            stop = {"event": events[0], "key": key, "panel": panel}
            tour.append(stop | {"title": title, "words": words})
    return sorted(tour, key=lambda stop: int(stop["event"]))


def examples_of(trace: TraceFile) -> str:
    """A step of this trace that was kept and one that was rejected, on lines of their
    own."""

    def brief(words: str) -> str:
        return quoted(shorten(words, QUOTED_LETTERS, placeholder=" ..."))

    return "".join(
        f"\n{'Kept' if pair.aligned else 'Rejected'}: the draft's {brief(pair.draft)}\n"
        f"beside the target's {brief(pair.target)}"
        for pair in kept_and_rejected(trace)
    )


def _copies(record: Record) -> bool:
    """Whether blocks of the target's cache are copied, which the page shows first."""
    event = record.event
    return (
        isinstance(event, BranchesGrew)
        and event.cache == "target"
        and event.copies != ()
    )


def race_of(trace: TraceFile) -> dict[str, Any] | None:
    """Passes of the target before each step joins the answer, here and in plain
    decoding, which takes one per token. None without passes or draft steps."""
    passes = 0
    run = []
    lengths = []
    for record in trace.records:
        match record.event:
            case ForwardPass(Role.TARGET):
                passes += 1
            case Emit(emitted):
                run.append(passes)  # before this step
                lengths.append(len(emitted.step.tokens))
    has_drafts = any(record.kind == "draft" for record in trace.records)
    if not passes or not run or not has_drafts:
        return None
    return {"run": run, "plain": list(accumulate(lengths))}  # plain: one token per pass
