"""Events as JSON objects and back, by the table in `schema.py`; and the check of an object against
it.

    {"time": 0.0031, "event": "target", "node": "0:1", "limit": 100}

`write_event` and `read_event` are inverse to each other but for the texts of tokens, which only the
file has. Read next: `file.py`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from lr.lab.trace.fields import Bytes, piece_of
from lr.lab.trace.schema import KIND_OF, KINDS, EventKind
from lr.tracing.events import StepEmitted
from lr.types import EmittedStep


def _writers(kind: EventKind) -> list[tuple[str, Any, Any]]:
    return [
        (name, attrgetter(field.source or name), field.kind.write)
        for name, field in kind.fields.items()
    ]


_WRITERS = {kind.made: (name, _writers(kind), kind.piece) for name, kind in KINDS.items()}


def write_event(when: float, event: object, token_bytes: Bytes) -> dict[str, Any]:
    """An event with its time, as JSON."""
    name, writers, piece = _WRITERS[type(event)]
    content: dict[str, Any] = {"time": when, "event": name}
    for field, get, write in writers:
        content[field] = write(get(event), token_bytes)
    if piece is not None:
        content["piece"] = piece_of(content[piece], token_bytes)
    return content


def read_event(content: dict[str, Any]) -> object:
    """The event that a checked object stands for."""
    kind = KINDS[content["event"]]
    values = {name: field.kind.read(content[name]) for name, field in kind.fields.items()}
    if kind.made is StepEmitted:
        node = values.pop("node")
        return StepEmitted(EmittedStep(**values), node)
    return kind.made(**values)


def fault_of(content: Any) -> str | None:
    """What is wrong with an object that should be an event; None if nothing is. Kinds and fields
    that are not known are no fault.
    """
    if not isinstance(content, dict):
        return f"expected an object {{...}}, found {type(content).__name__}"
    time, name = content.get("time"), content.get("event")
    if not isinstance(time, (int, float)) or isinstance(time, bool):
        return f'"time" is {time!r}, expected a number'
    if not isinstance(name, str):
        return f'"event" is {name!r}, expected the name of a kind of event'
    if name not in KINDS:
        return None
    for field, told in KINDS[name].fields.items():
        if field not in content:
            return f'{name!r} lacks the field "{field}", {told.kind.says}: {told.means}'
        if not told.kind.fits(content[field]):
            return f'"{field}" of {name!r} is {_short(content[field])}, expected {told.kind.says}: {told.means}'
    return None


def known(content: dict[str, Any]) -> bool:
    """Whether this version knows the kind of event."""
    return content["event"] in KINDS


def kind_name(event: object) -> str:
    """The name of an event's kind in files."""
    return KIND_OF[type(event)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
