"""Where two traces differ: the first event, and in it the first value, that is not the
same.

docs/trace.md says what is compared. In short: everything except times; numbers from a
model up to `TOLERANCE`. If the order of events is chance, only the outputs and what
both runs wrote under the same name (`compare_outputs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lr.watch.trace.file import Record

CLOCKED = frozenset({"time", "seconds"})
COMPUTED = frozenset({"p", "q", "accept", "uniform", "score"})
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Difference:
    """The first thing that is not the same."""

    number: int  # of the event in the older trace
    key: str  # the place in the event
    expected: Any  # None: missing
    got: Any

    def __str__(self) -> str:
        was, now = [
            "missing" if one is None else repr(one) for one in (self.expected, self.got)
        ]
        return f"event {self.number}: {self.key} was {was[:120]}, now {now[:120]}"


@dataclass(frozen=True)
class Replayed:
    """The result of running a trace again."""

    compared: int  # the number of equal events
    difference: Difference | None
    ordered: bool = True  # whether the order of events counted


def compare_in_order(
    expected: Sequence[Record],
    got: Sequence[Record],
    start: int = 0,
    *,
    whole: bool = False,
    virtual: bool = False,
) -> Difference | None:
    """The first difference between `got` and `expected` from event `start` on. `whole`:
    `expected` must end where `got` ends; `virtual`: compare times too."""
    for place, new in enumerate(got, start):
        if place >= len(expected):
            return Difference(place, "event", None, new.data)
        old = expected[place]
        if old.kind != new.kind:
            return Difference(place, "event", old.data, new.data)
        found = _differ(old.data, new.data, frozenset() if virtual else CLOCKED)
        if found is not None:
            return Difference(place, f"{old.kind}{found[0]}", *found[1:])
    end = start + len(got)
    return (
        Difference(end, "event", expected[end].data, None)
        if whole and expected[end:]
        else None
    )


def compare_outputs(
    expected: Sequence[Record], got: Sequence[Record]
) -> Difference | None:
    """The first difference in the output, or in a step or verdict with the same name in
    both."""
    theirs, ours = (
        [one for one in run if one.kind == "emit"] for run in (expected, got)
    )
    known = {_name(record): record for record in got if _name(record) is not None}
    named = [(old, known[_name(old)]) for old in expected if _name(old) in known]
    for old, new in [*zip(theirs, ours, strict=False), *named]:
        found = _differ(old.data, new.data, CLOCKED)
        if found is not None:
            return Difference(old.number, f"{old.kind}{found[0]}", *found[1:])
    for old in theirs[len(ours) :]:
        return Difference(old.number, "emit", old.data, None)
    for new in ours[len(theirs) :]:
        return Difference(len(expected), "emit", None, new.data)
    return None


def _name(record: Record) -> tuple[Any, ...] | None:
    """The name of a step or verdict, the same in every run; None for all other
    events."""
    data = record.data
    if record.kind == "written":
        return "written", data["role"], data["node"], data["index"]
    if record.kind == "judged" and data["verdict"] is not None:
        return "judged", data["node"]
    return None


def _differ(
    old: Any, new: Any, left_out: frozenset[str], key: str = ""
) -> tuple[str, Any, Any] | None:
    """The first place, depth first, at which two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [name for name in old | new if name not in left_out]
        pairs = [(f".{name}", old.get(name), new.get(name)) for name in names]
    elif isinstance(old, list) and isinstance(new, list):
        pairs = [
            (f"[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new, strict=False))
        ]
        pairs.append((" (its length)", len(old), len(new)))
    else:
        same = old == new
        if not same and isinstance(old, float) and isinstance(new, float):
            close = abs(old - new) <= TOLERANCE * max(abs(old), abs(new), TOLERANCE)
            computed = key.split(".")[-1] in COMPUTED or key.startswith(".fields.")
            same = close and computed
        return None if same else (key, old, new)
    for name, a, b in pairs:
        found = _differ(a, b, left_out, key + name)
        if found is not None:
            return found
    return None
