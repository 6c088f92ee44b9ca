"""`lr bench trace`: what a trace costs, with statistics only, every detail, and the file written.

Draws are keyed, so all three ways write the same tokens, and the ratio of two times is that of
tokens/s. A turn is one question, answered in all three ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lr.lab.bench.report import Spread, in_turn
from lr.lab.trace.replay import save_trace
from lr.reasoner import Reasoner

WAYS = ("off", "on", "file")  # Statistics only; every detail in memory; every detail, and the file.


@dataclass
class Overhead:
    """What was measured for one mode: by way the seconds of every turn, and of all turns together
    the tokens, the events of "on" and the bytes of the file."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    tokens: int = 0
    events: int = 0
    size: int = 0

    def spread(self, way: str) -> Spread:
        """Of the seconds over those of "off": 1.02 is two per cent more time."""
        return Spread.of_ratios(self.seconds[way], self.seconds["off"])


def measure(
    reasoner: Reasoner,
    questions: Sequence[str],
    settings: dict[str, dict[str, Any]],
    repeats: int,
    file: Path,
    progress: Callable[[], None] = lambda: None,
) -> list[Overhead]:
    """The overhead under each of some settings, by name. `file` is written again and again."""
    measured = []

    def answer(question: str, options: dict[str, Any], way: str) -> tuple[float, Any, int]:
        """Seconds, tokens and number of events of one answer."""
        started = time.perf_counter()
        run = reasoner.run(question, detailed=way != "off", **options)
        result = run.finish()
        if way == "file":
            save_trace(file, run)
        return time.perf_counter() - started, result.tokens, len(run.trace.events)

    for name, options in settings.items():
        overhead = Overhead(name)
        for way in WAYS:
            answer(questions[0], options, way)  # warm up
        for turn in range(repeats * len(questions)):
            question = questions[turn % len(questions)]
            tokens = set[tuple[int, ...]]()
            for way in in_turn(WAYS, turn):
                seconds, written, events = answer(question, options, way)
                overhead.seconds[way].append(seconds)
                tokens.add(written)
                overhead.events += events if way == "on" else 0
            assert len(tokens) == 1, "a trace must not change the answer"
            overhead.tokens += len(tokens.pop())
            overhead.size += file.stat().st_size
            progress()
        measured.append(overhead)
    return measured
