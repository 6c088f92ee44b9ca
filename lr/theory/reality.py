"""Predictions beside measurements: for each way of decoding the closed form, the twin refined step
by step, and what came out.

The speedup of a way is the time of plain decoding over its own, on the same problems (all of which
have as many steps either way, or the times are taken per step). Its error comes from leaving each
problem out in turn (the jackknife). This module knows no model. Read next: `twin.py`; the measuring
is in `lr/commands/theory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from lr.spec.protocol import Schedule
from lr.theory.asynchronous import lr_async_speedup
from lr.theory.calibration import Calibration
from lr.theory.observe import Answered
from lr.theory.replayed import replayed
from lr.theory.synchronous import lr_sync_cycle_speedup
from lr.theory.token_level import sd_speedup
from lr.theory.twin import LADDER, Twin


@dataclass(frozen=True)
class Way:
    """A way of decoding. `depth` 0: no lookahead; `tokens` 0: no token-level speculation."""

    schedule: Schedule = Schedule.SYNC
    depth: int = 0
    tokens: int = 0

    @property
    def name(self) -> str:
        """Such as "sync 4", "sd 2" or "sync 4 + sd 2"."""
        parts = [f"{self.schedule.value} {self.depth}"] * (self.depth > 0) + [
            f"sd {self.tokens}"
        ] * (self.tokens > 0)
        return " + ".join(parts) or "ar"

    def formula(self, found: Calibration) -> float:
        """The closed form with the calibrated parameters. Token-level speculation in the target
        alone: c1 grows by its speedup.
        """
        tokens = float(sd_speedup(found.alpha2.value, self.tokens, found.c2.value))
        a, c = found.alpha1.value, found.c1.value * tokens
        if self.depth == 0:
            return tokens
        if self.schedule is Schedule.SYNC:
            return tokens * float(lr_sync_cycle_speedup(a, self.depth, c))
        return tokens * float(
            lr_async_speedup(
                a, self.depth, c, "paper" if self.schedule is Schedule.PAPER else "depth"
            )
        )

    def predictions(
        self,
        found: Calibration,
        known: tuple[Sequence[Answered], Sequence[Answered]] | None = None,
        steps: int = 2000,
        ladder: Sequence[str] = LADDER,
    ) -> tuple[float, ...]:
        """The closed form, the twin with 1, 2, ... refinements of `ladder`, and with what is
        `known` of the answers, if anything.

        `known`: the very answers that are predicted, and those of plain decoding: the last figure
        says how far the times alone are off.
        """
        refined = [
            Twin(found, ladder[:n], self.tokens).speedup(self.schedule, self.depth, steps)
            for n in range(1, len(ladder) + 1)
        ]
        twin = Twin(found, ladder, self.tokens)
        last = refined[-1] if known is None else replayed(twin, self.schedule, self.depth, *known)
        return (self.formula(found), *refined, last)


@dataclass(frozen=True)
class Compared:
    """One way: measured speedup with its standard error, and the predictions."""

    way: Way
    measured: float
    error: float
    predicted: tuple[float, ...]

    @property
    def gap(self) -> float:
        """Last prediction / measurement - 1."""
        return self.predicted[-1] / self.measured - 1


def ratio_with_error(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """sum(above) / sum(below) over problems, and its jackknife standard error. At least two
    problems.

    Example: above 2, 4, below 1, 2: 2, without error.
    """
    n, a, b = len(above), sum(above), sum(below)
    without = [(a - x) / (b - y) for x, y in zip(above, below, strict=True)]
    mean = sum(without) / n
    return a / b, sqrt((n - 1) / n * sum((value - mean) ** 2 for value in without))


def ladder_of(driver: str) -> tuple[str, ...]:
    """The refinements that belong to a driver: with `overlapped` the models do not share a
    thread.
    """
    return LADDER if driver == "lockstep" else tuple(name for name in LADDER if name != "thread")


def as_markdown(rows: Sequence[Mapping[str, Any]], ladder: Sequence[str] = LADDER) -> str:
    """The table of `docs/theory.md`, from the rows that `lr theory reality --json` writes."""
    head = ["way", "formula", *ladder, "answers", "measured", "off"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for row in rows:
        figures = [f"{x:.2f}" for x in row["predicted"]]
        measured = f"{row['measured']:.2f} ± {row['error']:.2f}"
        lines.append(
            f"| {' | '.join([row['way'], *figures, measured, format(row['gap'], '+.1%')])} |"
        )
    return "\n".join(lines)
