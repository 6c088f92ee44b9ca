"""A calibration: all numbers about a pair of models that the formulas and the
simulation need.

`lr calibrate` runs the models, `calibrate` computes the numbers from their traces
(`trace_metrics.py`), `lr theory validation` reads the file. Times are
seconds of the clock that `conditions` names; `c1`, `b` and the other letters of the
formulas are ratios of times. The 95 % intervals are percentile bootstraps with 1000
draws over problems, because the steps of one answer are not independent. Read next:
`predicted.py`."""

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
    """A calibration file is missing, not JSON, of another version, or holds impossible
    numbers."""


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
    """An estimate without uncertainty, for a number that was not measured."""
    return Estimate(value, value, value)


@dataclass(frozen=True)
class Calibration:
    """One pair of models on one machine. All times are in seconds.

    `alpha1`, `alpha2`: share of judged draft steps, and of tried draft tokens, that was
    accepted. `second_chance`: how often the second of two alternatives was accepted
    after the first was rejected. `plain_token`: a token of plain decoding.
    `target_first`: a target pass of one row and token in runs with speculation;
    `target_row`: each further row; `target_token`: each token beyond the first of its
    row; likewise for the draft. `verdict`: per pair. `start`: the prompt, for both
    models. `lookup`: draft tokens are looked up in the text and cost nothing.
    `target_lengths`, `draft_lengths`: tokens per step (empty: every step has one
    token). `chain_lengths`: steps per answer (empty: answers are endless)."""

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
                raise ValueError(
                    f"{name} is {getattr(self, name).value!r}, not a probability"
                )

    @property
    def target(self) -> PassCost:
        return PassCost(
            self.target_first.value, self.target_row.value, self.target_token.value
        )

    @property
    def draft(self) -> PassCost:
        return PassCost(
            self.draft_first.value, self.draft_row.value, self.draft_token.value
        )

    @property
    def step_seconds(self) -> float:
        """T: a step of mean length in plain decoding."""
        return fmean(self.target_lengths or (1,)) * self.plain_token.value

    @property
    def c1(self) -> float:
        """A draft step, in T."""
        return (
            fmean(self.draft_lengths or (1,))
            * self.draft_first.value
            / self.step_seconds
        )

    @property
    def c2(self) -> float:
        """A drafted token, in plain target passes."""
        return 0.0 if self.lookup else self.draft_first.value / self.plain_token.value

    @property
    def b(self) -> float:
        """A further row in a target batch, in units of a pass with one row."""
        return self.target_row.value / self.target_first.value

    @property
    def v(self) -> float:
        """A verdict, in T."""
        return self.verdict.value / self.step_seconds

    @property
    def reading(self) -> float:
        """Reading a draft step in a target batch, in T."""
        tokens = fmean(self.draft_lengths) if self.draft_lengths else 0.0
        return tokens * self.target_token.value / self.step_seconds

    def expected_load(self, tokens: int = 0) -> Load:
        """The work of answers with `tokens` drafted tokens per round inside the
        target's steps.

        Rounds per step are drawn at random, several times for each recorded length,
        since a batch waits for the row that needs the most rounds."""
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
        """The same pair with a target `gain` times as fast."""
        new: dict[str, Any] = {}
        for name in ("plain_token", "target_first", "target_row", "target_token"):
            old = getattr(self, name)
            new[name] = Estimate(old.value / gain, old.low / gain, old.high / gain)
        return replace(self, **new)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file. Raises `CalibrationError` with its name and what is wrong."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            version = data.get("version") if isinstance(data, dict) else None
            if version != VERSION:
                raise ValueError(f"calibration version {version!r}, expected {VERSION}")
            if unknown := sorted(set(data) - {f.name for f in fields(cls)}):
                raise ValueError(f"unknown entries {unknown}")
            return msgspec.convert(data, cls)
        except (OSError, UnicodeDecodeError) as error:
            hint = "Give a file written by lr calibrate, or `paper`."
            raise CalibrationError(f"{path} cannot be read ({error}). {hint}") from None
        except (ValueError, RecursionError) as error:
            hint = "Make it with lr calibrate --output FILE."
            raise CalibrationError(
                f"{path} is not a calibration: {error}. {hint}"
            ) from None


def drawn_rounds(alpha: float, k: int, length: int, chance: random.Random) -> int:
    """Draw how many rounds of k drafted tokens a step of `length` tokens takes.

    A round writes 1 to k + 1 tokens; tokens beyond the end of the step are dropped.
    Example: ceil(length / 4) for alpha = 1, k = 3."""
    rounds = written = 0
    while written < length:
        rounds, written = rounds + 1, written + 1
        kept = next((i for i in range(k) if chance.random() >= alpha), k)
        written += kept
    return rounds


def estimates(seen: Sequence[Seen]) -> dict[str, float]:
    """The value of every estimate by name: ratios of sums over the problems, with 0 / 0
    = 0."""

    def ratio(above: Iterable[float], below: Iterable[float]) -> float:
        trials = sum(below)
        return sum(above) / trials if trials else 0.0

    plain = [
        one for s in seen for run in s.plain.passes for one in run[Role.TARGET].values()
    ]
    looked, pairs = [s.lookahead for s in seen], [s.pairs for s in seen]
    rounds = [s.tokens.rounds[Role.TARGET] for s in seen]
    by_target = [way for s in seen for way in (s.lookahead, s.tokens, s.both)]
    by_draft = [way for s in seen for way in (s.lookahead, s.tokens, s.pairs, s.both)]
    target = PassCost.fit(run[Role.TARGET] for way in by_target for run in way.passes)
    draft = PassCost.fit(run[Role.DRAFT] for way in by_draft for run in way.passes)
    return {
        "alpha1": ratio((a.accepted[0] for a in looked), (a.judged[0] for a in looked)),
        "alpha2": ratio((r.accepted for r in rounds), (r.tried for r in rounds)),
        "second_chance": ratio(
            (p.accepted[1] for p in pairs), (p.judged[1] for p in pairs)
        ),
        "plain_token": ratio((t for _, t in plain), (n for n, _ in plain)),
        **{f"target_{part}": seconds for part, seconds in asdict(target).items()},
        **{f"draft_{part}": seconds for part, seconds in asdict(draft).items()},
        "verdict": ratio(
            (a.verdict_seconds for a in looked), (a.pairs for a in looked)
        ),
        "start": fmean(a.start for a in looked),
    }


def calibrate(
    seen: Sequence[Seen], name: str, conditions: Mapping[str, Any]
) -> Calibration:
    """All parameters with their intervals. Raises `CalibrationError` for fewer than 4
    problems."""
    if len(seen) < 4:
        raise CalibrationError(
            f"there are {len(seen)} problems, expected at least 4, since intervals come from "
            "resampling them."
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
