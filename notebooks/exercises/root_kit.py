"""The messages of at_the_root.py: what happens, and what is to be done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WrittenStep:
    """A step. `ends`: it ends the text; `cut`: it was cut at the length limit."""

    ends: bool = False
    cut: bool = False


@dataclass(frozen=True)
class DraftWritten:
    """Event: alternative `number` is written; None: the draft failed to write it."""

    number: int
    step: WrittenStep | None


@dataclass(frozen=True)
class TargetWritten:
    """Event: the target's own step is written."""

    step: WrittenStep


@dataclass(frozen=True)
class Judged:
    """Event: the verdict on alternative `number`."""

    number: int
    aligned: bool


@dataclass(frozen=True)
class Ask:
    """To do: ask the verifier about alternative `number`."""

    number: int


@dataclass(frozen=True)
class Accept:
    """To do: alternative `number` joins the answer."""

    number: int


@dataclass(frozen=True)
class Correct:
    """To do: the target's own step joins the answer."""
