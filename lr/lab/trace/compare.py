"""Where two traces part: the first event, and in it the first value, that is not the same.

Everything counts but what a clock says: `time`, and the `seconds` of forwards and verifiers; on
virtual clocks times count as well. Numbers that a model computed (probabilities, scores) may differ
by `TOLERANCE` of their size, since another machine adds up in another order; tokens, verdicts,
nodes, keys and blocks may not differ at all.

Where draft and target run side by side, which of two events comes first is chance. Then only what
must not depend on it is compared (`compare_outputs`): the steps of the output in order, and
whatever both runs wrote under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lr.lab.trace.file import Record

CLOCKED = frozenset({"time", "seconds"})
COMPUTED = frozenset({"p", "q", "accept", "uniform", "score"})
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Difference:
    """The first thing that is not the same. `number`: of the event in the older trace; `key`: where
    in it; None stands for "not there".
    """

    number: int
    key: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return (
            f"event {self.number}: {self.key} was {_short(self.expected)}, now {_short(self.got)}"
        )


def compare_in_order(
    expected: Sequence[Record], got: Sequence[Record], start: int = 0, *, virtual: bool = False
) -> Difference | None:
    """The first difference between `got` and the part of `expected` from event `start` on; None if
    there is none as far as `got` goes.
    """
    for new in got:
        place = start + new.number
        if place >= len(expected):
            return Difference(place, "event", None, new.data)
        old = expected[place].data
        if old["event"] != new.data["event"]:
            return Difference(place, "event", old, new.data)
        found = _differ(old, new.data, "", frozenset() if virtual else CLOCKED)
        if found is not None:
            return Difference(place, f"{old['event']}.{found[0]}", *found[1:])
    return None


def compare_outputs(expected: Sequence[Record], got: Sequence[Record]) -> Difference | None:
    """The first difference in the output, or in a step or verdict that both runs have under the
    same name.
    """
    ours = [record for record in got if record.kind == "emit"]
    theirs = [record for record in expected if record.kind == "emit"]
    for old, new in zip(theirs, ours, strict=False):
        found = _differ(old.data, new.data, "", CLOCKED)
        if found is not None:
            return Difference(old.number, f"emit.{found[0]}", *found[1:])
    known = {name: record for record in got if (name := _name(record)) is not None}
    for old in expected:
        same = known.get(_name(old) or ())
        found = None if same is None else _differ(old.data, same.data, "", CLOCKED)
        if found is not None:
            return Difference(old.number, f"{old.kind}.{found[0]}", *found[1:])
    for more, less, number in ((theirs, ours, len(ours)), (ours, theirs, len(theirs))):
        if len(more) > len(less):
            extra = more[number]
            shown = (extra.data, None) if more is theirs else (None, extra.data)
            return Difference(extra.number if more is theirs else len(expected), "emit", *shown)
    return None


def _name(record: Record) -> tuple[Any, ...] | None:
    """What two runs call the same thing; None for what has no name of its own."""
    data = record.data
    if record.kind == "written":
        return "written", data["role"], data["node"], data["index"]
    if record.kind == "judged":
        return "judged", data["node"], data["alone"]
    return None


def _differ(old: Any, new: Any, key: str, left_out: frozenset[str]) -> tuple[str, Any, Any] | None:
    """The first place, depth first, at which two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            if name not in left_out:
                found = _differ(
                    old.get(name), new.get(name), f"{key}.{name}" if key else name, left_out
                )
                if found is not None:
                    return found
        return None
    if isinstance(old, list) and isinstance(new, list):
        for i, (one, other) in enumerate(zip(old, new, strict=False)):
            found = _differ(one, other, f"{key}[{i}]", left_out)
            if found is not None:
                return found
        return None if len(old) == len(new) else (f"{key} (its length)", len(old), len(new))
    same = old == new and type(old) is type(new)
    if not same and isinstance(old, (int, float)) and isinstance(new, (int, float)):
        computed = key.split(".")[-1] in COMPUTED
        same = (
            abs(old - new) <= TOLERANCE * max(abs(old), abs(new), TOLERANCE)
            if computed
            else old == new
        )
    return None if same else (key, old, new)


def _short(value: Any) -> str:
    if value is None:
        return "not there"
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
