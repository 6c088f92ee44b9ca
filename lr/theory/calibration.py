"""What was measured of a pair of models: every number the formulas and the simulation take.

`calibrate` makes it from traces (`trace_metrics.py`), `lr calibrate` runs the models for it,
`lr plan` and `lr theory validation` read its file. Times are seconds by the clock that `conditions`
names; `c1`, `b` and the other letters of the formulas are ratios of them. Intervals are percentile
bootstraps over problems (the steps of one answer are not independent), 1000 draws, 95 %. A file of
another version is refused. Read next: `predicted.py`, `planner.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
import numpy as np

from lr.errors import LRError
from lr.theory.domain import geometric
from lr.theory.trace_metrics import Load, PassCost, Seen
from lr.types import Role

VERSION = 3


class CalibrationError(LRError):
    """A calibration file is missing, not JSON, of another version, or holds impossible numbers."""


NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Length = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True)
class Estimate:
    """A number >= 0 with the ends of its 95 % confidence interval."""

    value: NonNegative
    low: NonNegative
    high: NonNegative

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def exactly(value: float) -> Estimate:
    """A number that is given, not measured."""
    return Estimate(value, value, value)


@dataclass(frozen=True)
class Calibration:
    """One pair of models on one machine. All times are in seconds.

    `alpha1`, `alpha2`: accepted draft steps per judged one, draft tokens per tried one.
    `second_chance`: where the first of two alternatives was rejected, how often the second was
    accepted. `plain_token`: a token of plain decoding. `target_first`: a target pass of one row and
    token in runs with speculation, `target_row`: each further row, `target_token`: each token more
    than one per row; the same for the draft. `verdict`: per pair. `start`: the prompt, for both
    models. `lookup`: draft tokens are looked up in the text and cost nothing. `..._lengths`: tokens
    of steps (none: a step is the unit, of one token), steps of answers (none: they are endless)."""

    name: str
    alpha1: Estimate
    alpha2: Estimate
    second_chance: Estimate
    plain_token: Estimate
    target_first: Estimate
    target_row: Estimate
    target_token: Estimate
    draft_first: Estimate
    draft_row: Estimate
    draft_token: Estimate
    verdict: Estimate
    start: Estimate
    lookup: bool = False
    target_lengths: tuple[Length, ...] = ()
    draft_lengths: tuple[Length, ...] = ()
    chain_lengths: tuple[Length, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def __post_init__(self) -> None:
        for name in ("alpha1", "alpha2", "second_chance"):
            if getattr(self, name).value > 1:
                raise ValueError(f"{name} is {getattr(self, name).value!r}, not a probability")

    @property
    def target(self) -> PassCost:
        return PassCost(self.target_first.value, self.target_row.value, self.target_token.value)

    @property
    def draft(self) -> PassCost:
        return PassCost(self.draft_first.value, self.draft_row.value, self.draft_token.value)

    @property
    def step_seconds(self) -> float:
        """T: a step of mean length in plain decoding."""
        return fmean(self.target_lengths or (1,)) * self.plain_token.value

    @property
    def c1(self) -> float:
        """A draft step, in T."""
        return fmean(self.draft_lengths or (1,)) * self.draft_first.value / self.step_seconds

    @property
    def c2(self) -> float:
        """A drafted token, in plain target passes."""
        return 0.0 if self.lookup else self.draft_first.value / self.plain_token.value

    @property
    def b(self) -> float:
        """A further row makes a target batch slower by this share of a lone row's time."""
        return self.target_row.value / self.target_first.value

    @property
    def v(self) -> float:
        """A verdict, in T."""
        return self.verdict.value / self.step_seconds

    @property
    def reading(self) -> float:
        """Reading a draft step along with a batch, in T."""
        tokens = fmean(self.draft_lengths) if self.draft_lengths else 0.0
        return tokens * self.target_token.value / self.step_seconds

    def expected_load(self, tokens: int = 0) -> Load:
        """The work of answers with `tokens` drafted tokens per round inside the target's steps.

        Rounds per step are drawn, several times for each recorded length: a batch waits for the
        row that needs the most."""
        alpha, chance = self.alpha2.value, random.Random(0)
        draws = 1 + 400 // (len(self.target_lengths) or 1) if tokens else 1
        rounds = [
            float(drawn_rounds(alpha, tokens, n, chance))
            for n in self.target_lengths
            for _ in range(draws)
        ]
        return Load(
            acceptance=self.alpha1.value,
            target_passes=rounds or [1 / float(geometric(alpha, tokens + 1))],
            draft_lengths=self.draft_lengths,
            chain_lengths=self.chain_lengths,
            proposed=tokens,
            draft_passes=0 if self.lookup else tokens,
            verdict=self.verdict.value,
            start=self.start.value,
        )

    def with_faster_target(self, gain: float) -> Calibration:
        """The same pair with a target that is `gain` times as fast."""
        new: dict[str, Any] = {}
        for name in ("plain_token", "target_first", "target_row", "target_token"):
            old = getattr(self, name)
            new[name] = Estimate(old.value / gain, old.low / gain, old.high / gain)
        return replace(self, **new)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file. Raises `CalibrationError`, naming it and what is wrong."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            version = data.get("version") if isinstance(data, dict) else None
            if version != VERSION:
                raise ValueError(f"calibration version {version!r}, expected {VERSION}")
            if unknown := sorted(set(data) - {f.name for f in fields(cls)}):
                raise ValueError(f"unknown entries {unknown}")
            return msgspec.convert(data, cls)
        except (OSError, UnicodeDecodeError) as error:
            hint = "Give a file of lr calibrate, or `paper`."
            raise CalibrationError(f"{path} cannot be read ({error}). {hint}") from None
        except (ValueError, RecursionError) as error:
            hint = "Make it with lr calibrate --output FILE."
            raise CalibrationError(f"{path} is no calibration: {error}. {hint}") from None


def drawn_rounds(alpha: float, k: int, length: int, chance: random.Random) -> int:
    """Rounds of k drafted tokens that one step of `length` tokens takes, this time.

    A round writes 1 to k + 1 tokens; what it writes beyond the step's end is dropped. Example:
    alpha = 1, k = 3: ceil(length / 4)."""
    rounds = written = 0
    while written < length:
        rounds, written = rounds + 1, written + 1
        kept = next((i for i in range(k) if chance.random() >= alpha), k)
        written += kept
    return rounds


def estimates(seen: Sequence[Seen]) -> dict[str, float]:
    """The value of every estimate by name, from these problems: ratios of sums, 0 for 0 / 0."""

    def ratio(above: Iterable[float], below: Iterable[float]) -> float:
        trials = sum(below)
        return sum(above) / trials if trials else 0.0

    plain = [one for s in seen for run in s.plain.passes for one in run[Role.TARGET].values()]
    looked, pairs = [s.lookahead for s in seen], [s.pairs for s in seen]
    rounds = [s.tokens.rounds[Role.TARGET] for s in seen]
    by_target = [way for s in seen for way in (s.lookahead, s.tokens, s.both)]
    by_draft = [way for s in seen for way in (s.lookahead, s.tokens, s.pairs, s.both)]
    target = PassCost.fit(run[Role.TARGET] for way in by_target for run in way.passes)
    draft = PassCost.fit(run[Role.DRAFT] for way in by_draft for run in way.passes)
    return {
        "alpha1": ratio((a.accepted[0] for a in looked), (a.judged[0] for a in looked)),
        "alpha2": ratio((r.accepted for r in rounds), (r.tried for r in rounds)),
        "second_chance": ratio((p.accepted[1] for p in pairs), (p.judged[1] for p in pairs)),
        "plain_token": ratio((t for _, t in plain), (n for n, _ in plain)),
        **{f"target_{part}": seconds for part, seconds in asdict(target).items()},
        **{f"draft_{part}": seconds for part, seconds in asdict(draft).items()},
        "verdict": ratio((a.verdict_seconds for a in looked), (a.pairs for a in looked)),
        "start": fmean(a.start for a in looked),
    }


def calibrate(seen: Sequence[Seen], name: str, conditions: Mapping[str, Any]) -> Calibration:
    """Every parameter with its interval. Fewer than four problems: `CalibrationError`."""
    if len(seen) < 4:
        raise CalibrationError(
            f"there are {len(seen)} problems, expected at least 4: intervals come from resampling."
        )
    from scipy.stats import bootstrap  # takes a second to import

    problems = np.arange(len(seen))
    values = estimates(seen)
    interval = bootstrap(
        (problems,),
        lambda drawn: np.array([*estimates([seen[i] for i in drawn]).values()]),
        n_resamples=1000,
        vectorized=False,
        method="percentile",
        random_state=0,
    ).confidence_interval
    ends = zip(values.items(), interval.low, interval.high, strict=True)
    found: dict[str, Any] = {
        parameter: Estimate(value, float(low), float(high))
        for (parameter, value), low, high in ends
    }
    return Calibration(
        name=name,
        **found,
        target_lengths=tuple(n for s in seen for n in s.plain.emitted),
        draft_lengths=tuple(n for s in seen for n in s.lookahead.lengths[Role.DRAFT]),
        chain_lengths=tuple(len(s.plain.emitted) for s in seen),
        conditions=dict(conditions),
    )
