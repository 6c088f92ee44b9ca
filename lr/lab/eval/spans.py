"""Spans of time, and how much of it some of them cover together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """From `begin` to `end`, in seconds."""

    begin: float
    end: float


def covered(spans: Iterable[Span]) -> float:
    """The length of the union. Example: (0, 2), (1, 3), (5, 6) cover 4."""
    total = reached = 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
