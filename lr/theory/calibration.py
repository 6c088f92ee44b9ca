"""What was measured of a pair of models, as one file: every number the formulas take, with its
confidence interval.

Times are in units of T, the time that the target alone takes for a step of mean length, if not
named otherwise; a file says how long T is. Made by `lr calibrate` (`estimate.py` does the
arithmetic), read by `lr plan` and by the simulated twin. The format has a version; a file of
another version is refused. This module knows no trace and no model. Read next: `estimate.py`,
`planner.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lr.errors import LRError

VERSION = 2


class CalibrationError(LRError):
    """A calibration file cannot be read: not there, not JSON, another version, numbers missing or
    impossible.
    """


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def exactly(value: float) -> Estimate:
    """A number that is given, not measured."""
    return Estimate(value, value, value)


@dataclass(frozen=True)
class Calibration:
    """One pair of models on one machine. `conditions` says what was run, on which problems and by
    which clock.
    """

    name: str
    alpha1: Estimate
    """Accepted draft steps per judged one."""
    c1: Estimate
    """A draft step, all that it costs, in T."""
    alpha2: Estimate
    """Accepted draft tokens per tried one."""
    c2: Estimate
    """A draft token in target passes, behind another draft token."""
    turn: Estimate
    """What it costs that the other model had the thread in between, draft and target together, in
    target passes: caches are cold.
    """
    b: Estimate
    """Each further row makes a target batch so much slower, as a share of one row's time."""
    b_draft: Estimate
    """The same for the draft's batches."""
    b_positions: Estimate
    """Each further position of a target row does: k2 positions take 1 + b_positions (k2 - 1)
    passes.
    """
    pace: Estimate
    """A lone target row inside a lookahead run, relative to plain decoding: forks, scheduler and a
    cooler cache slow it down.
    """
    v: Estimate
    """A verdict, in T."""
    reading: Estimate
    """What a draft step costs the target before it can write behind it, read along with a batch
    that goes on: it must read the draft's tokens. In T."""
    reading_alone: Estimate
    """The same, read in a pass of its own."""
    start: Estimate
    """The prompt, for both models together, in T."""
    step_seconds: Estimate
    """T in seconds."""
    second_chance: Estimate
    """Where the first of two alternatives was rejected: how often the second was accepted."""
    target_lengths: tuple[int, ...] = ()
    """Tokens of target steps."""
    draft_lengths: tuple[int, ...] = ()
    """Tokens of draft steps."""
    chain_lengths: tuple[int, ...] = ()
    """Steps of whole answers."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    @property
    def token_ratio(self) -> float:
        """c1 per token: what a draft token costs of a target token's time, in steps of mean
        length.
        """
        if not (self.target_lengths and self.draft_lengths):
            return self.c1.value
        return self.c1.value * mean(self.target_lengths) / mean(self.draft_lengths)

    def reading_of(self, depth: int, *, barrier: bool) -> float:
        """What a draft step that is read costs on average. Behind a barrier all but the deepest of
        a cycle get passes of their own.
        """
        alone = (depth - 1) / depth if barrier else 0.0
        return alone * self.reading_alone.value + (1 - alone) * self.reading.value

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> Calibration:
        """Raises `CalibrationError`, naming `source` and what is wrong."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise CalibrationError(
                f"{source} is not JSON ({error}). Make it with lr calibrate --output FILE."
            ) from None
        if not isinstance(data, dict) or data.get("version") != VERSION:
            found = data.get("version") if isinstance(data, dict) else None
            raise CalibrationError(
                f"{source} has calibration version {found!r}, expected {VERSION}. Make it anew: lr calibrate --output FILE."
            )
        known = {f.name for f in fields(cls)}
        missing, unknown = sorted(ESTIMATES - set(data)), sorted(set(data) - known)
        if missing or unknown:
            raise CalibrationError(
                f"{source} lacks {missing or 'nothing'} and has unknown entries {unknown or 'none'}."
            )
        made: dict[str, Any] = {
            n: _estimate(data[n], n, source) if n in ESTIMATES else data[n] for n in data
        }
        for name in LENGTHS & set(data):
            made[name] = _lengths(data[name], name, source)
        return cls(**made)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file. Raises `CalibrationError`."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise CalibrationError(
                f"{path} cannot be read ({error}). Give a file that lr calibrate --output wrote, or `paper`."
            ) from None


ESTIMATES = frozenset(f.name for f in fields(Calibration) if f.type == "Estimate")
LENGTHS = frozenset({"target_lengths", "draft_lengths", "chain_lengths"})
PROBABILITIES = ("alpha1", "alpha2", "second_chance")


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def _estimate(data: object, name: str, source: str) -> Estimate:
    numbers = [data.get(end) for end in ("value", "low", "high")] if isinstance(data, dict) else []
    if len(numbers) != 3 or not all(
        isinstance(x, (int, float)) and math.isfinite(x) and x >= 0 for x in numbers
    ):
        raise CalibrationError(
            f"{source}: {name} is {data!r}, expected value, low and high, numbers >= 0."
        )
    value, low, high = (float(x) for x in numbers if isinstance(x, (int, float)))
    if name in PROBABILITIES and value > 1:
        raise CalibrationError(f"{source}: {name} is {value!r}, expected a probability.")
    return Estimate(value, low, high)


def _lengths(data: object, name: str, source: str) -> tuple[int, ...]:
    if not isinstance(data, list) or not all(isinstance(x, int) and x >= 1 for x in data):
        raise CalibrationError(
            f"{source}: {name} is {data!r}, expected a list of whole numbers >= 1."
        )
    return tuple(data)
