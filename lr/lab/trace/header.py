"""The first line of a trace file: what was run, on which models, with which settings, on which
prompt.

It has all that a viewer wants to say about the run, and all that a replay needs to run it again.
Fields that a driver does not have (models of a simulation) are null. Read next: `file.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from lr.lab.trace.fields import has, is_list_of, is_whole, one_of, or_null
from lr.lab.trace.schema import VERSION

FORMAT = "lr trace"
DRIVERS = ("plain", "lockstep", "overlapped", "scripted", "simulated")
CLOCKS = ("wall", "virtual")


@dataclass(frozen=True)
class Header:
    """What a trace is about. `unit` of its times: "second"; on virtual clocks "target step"
    (simulated) or "turn" (scripted).
    """

    driver: str
    """plain (no draft steps), lockstep, overlapped, scripted, simulated."""
    clock: str = "wall"
    unit: str = "second"
    mode: str = "lr"
    schedule: str = "depth"
    depth: int = 1
    width: int = 1
    max_target_rows: int | None = None
    models: dict[str, Any] = field(default_factory=dict)
    """target, draft and judge by name; device, dtype."""
    verifier: str | None = None
    needs: dict[str, Any] | None = None
    """What the verifier needs: {"judge": ["target_step"], "glance": null or [...]}; see
    `spec/verifiers/base.py`.
    """
    variant: str | None = None
    """What a variant replaced, if one was used; such a run is not replayed from names."""
    options: dict[str, Any] = field(default_factory=dict)
    """All of `GenerateOptions`; for scripted and simulated runs what made them."""
    question: str | None = None
    prompt: dict[str, Any] = field(default_factory=lambda: {"tokens": [], "pieces": []})
    """{"tokens": [...], "pieces": [...]}, the pieces joined being its text."""
    eos: list[int] = field(default_factory=list)
    caches: dict[str, Any] = field(default_factory=dict)
    """By name: {"blocks": how many, "block_size": tokens in each}."""
    alone: bool = True
    """Whether forwards and caches served this answer only; else events of the caches are missing,
    or begin in the middle.
    """
    detailed: bool = True
    """Whether the events beside the statistics were recorded."""
    lr: str = ""
    """Version of this program."""
    made: str | None = None
    """When, in UTC: 2026-01-31T12:00:00Z."""

    def to_json(self) -> dict[str, Any]:
        """The first line of the file."""
        return {"format": FORMAT, "version": VERSION} | {
            one.name: getattr(self, one.name) for one in fields(self)
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Header:
        """The inverse of `to_json`, of what `fault_of_header` found nothing wrong with. Unknown
        fields are dropped.
        """
        names = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in content.items() if name in names})


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _bool(value: Any) -> bool:
    return isinstance(value, bool)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


_CACHE = has(blocks=is_whole, block_size=is_whole)

HEADER: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "driver": (f"one of {', '.join(DRIVERS)}", one_of(DRIVERS)),
    "clock": ("wall or virtual", one_of(CLOCKS)),
    "unit": ("text: what a time of 1 is", _text),
    "mode": ("ar, sd, lr or lr+sd", _text),
    "schedule": ("sync, paper or depth", _text),
    "depth": ("a whole number", is_whole),
    "width": ("a whole number", is_whole),
    "max_target_rows": ("a whole number, or null", or_null(is_whole)),
    "models": ("an object: target, draft, judge, device, dtype", _object),
    "verifier": ("text, or null", or_null(_text)),
    "needs": (
        "an object, or null: what the verifier needs, to judge and (where it can) to glance",
        or_null(has(judge=is_list_of(_text), glance=or_null(is_list_of(_text)))),
    ),
    "variant": ("text, or null: parts of the algorithm that were replaced", or_null(_text)),
    "options": ("an object: what a replay needs", _object),
    "question": ("text, or null", or_null(_text)),
    "prompt": (
        "an object: tokens, pieces",
        has(tokens=is_list_of(is_whole), pieces=is_list_of(_text)),
    ),
    "eos": ("a list of token ids", is_list_of(is_whole)),
    "caches": (
        "an object: by the name of a cache {blocks, block_size}",
        lambda value: isinstance(value, dict) and all(map(_CACHE, value.values())),
    ),
    "alone": ("true or false: whether forwards and caches served this answer only", _bool),
    "detailed": ("true or false: whether there is more than statistics", _bool),
    "lr": ("text: version of the program", _text),
    "made": ("text, or null: when", or_null(_text)),
}


def fault_of_header(content: Any) -> str | None:
    """What is wrong with the first line; None if nothing is."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return f'this is no trace: the first line should be an object with "format": "{FORMAT}"'
    version = content.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        advice = "Read it with a newer version of this program." if newer else "Record it anew."
        return f"the trace has version {version!r}, this program reads version {VERSION}. {advice}"
    for name, (says, fits) in HEADER.items():
        if name not in content:
            return f'the header lacks "{name}": {says}'
        if not fits(content[name]):
            return f'"{name}" in the header is {content[name]!r}, expected {says}'
    return None
