"""What a trace costs: the same answers with statistics only, with every detail, and with the file
written, in turns.

Draws are keyed, so all three write the same tokens, and the ratio of two times is that of tokens/s.
Ratios are taken within a turn (one question answered in all three ways, directly one after the
other, each way going first in its turn), then summarised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lr.lab.bench.timing import Spread
from lr.lab.trace.replay import save_trace
from lr.reasoner import Reasoner

WAYS = ("off", "on", "file")
"""Statistics only; every detail in memory; every detail, and the file."""


@dataclass
class Overhead:
    """What was measured for one mode. `ratios`: by way, the seconds of each turn over those of
    "off"; `per_token`: details per token.
    """

    name: str
    ratios: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS[1:]})
    tokens: int = 0
    events: int = 0
    size: int = 0
    seconds: float = 0.0

    def spread(self, way: str) -> Spread:
        """Of the ratios: 1.02 is two per cent more time."""
        return Spread.of(self.ratios[way])

    @property
    def per_token(self) -> float:
        return self.events / self.tokens

    @property
    def tokens_per_second(self) -> float:
        """With the trace off, over all turns."""
        return self.tokens / self.seconds


def measure(
    reasoner: Reasoner,
    questions: Sequence[str],
    settings: dict[str, dict[str, Any]],
    repeats: int,
    file: Path,
    progress: Callable[[], None] = lambda: None,
) -> list[Overhead]:
    """The overhead under each of some settings, by name. `file` is written again and again.
    `progress` is called after each turn.
    """
    measured = []
    for name, options in settings.items():
        overhead = Overhead(name)
        for way in WAYS:
            _answer(reasoner, questions[0], options, way, file)  # warm up
        for turn in range(repeats * len(questions)):
            _turn(reasoner, questions[turn % len(questions)], options, turn, overhead, file)
            progress()
        measured.append(overhead)
    return measured


def _turn(
    reasoner: Reasoner,
    question: str,
    options: dict[str, Any],
    turn: int,
    overhead: Overhead,
    file: Path,
) -> None:
    """One question in all three ways."""
    first = turn % len(WAYS)
    seconds, tokens = dict[str, float](), set[tuple[int, ...]]()
    for way in WAYS[first:] + WAYS[:first]:
        seconds[way], written, events = _answer(reasoner, question, options, way, file)
        tokens.add(written)
        if way == "on":
            overhead.events += events
    assert len(tokens) == 1, "a trace must not change the answer"
    for way in WAYS[1:]:
        overhead.ratios[way].append(seconds[way] / seconds["off"])
    overhead.tokens += len(tokens.pop())
    overhead.seconds += seconds["off"]
    overhead.size += file.stat().st_size


def _answer(
    reasoner: Reasoner, question: str, options: dict[str, Any], way: str, file: Path
) -> tuple[float, tuple[int, ...], int]:
    """Seconds, tokens and number of events of one answer."""
    started = time.perf_counter()
    run = reasoner.run(question, detailed=way != "off", **options)
    result = run.finish()
    if way == "file":
        save_trace(file, run)
    return time.perf_counter() - started, result.tokens, len(run.trace.events)
