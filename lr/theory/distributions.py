"""The random parts of a simulation: how long work takes, and which draft steps are
accepted.

Every draw is a function of a key (`lr/rng.py`), so a simulation is repeatable and does
not depend on the order of its draws. The formulas assume `Constant` times and
`Bernoulli` acceptance. Read next: `simulate.py`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from lr.rng import uniform
from lr.types import require


class Duration(Protocol):
    """How long a piece of work takes, in the unit of the simulation (usually one target
    step)."""

    def draw(self, key: int) -> float:
        """The duration for `key`, >= 0."""


@dataclass(frozen=True)
class Constant:
    """The same duration every time."""

    value: float

    def __post_init__(self) -> None:
        require(0 <= self.value < math.inf, "value", self.value, "a finite number >= 0")

    def draw(self, key: int) -> float:
        return self.value


@dataclass(frozen=True)
class Lognormal:
    """A lognormal duration; `variation` is standard deviation / mean."""

    mean: float
    variation: float

    def __post_init__(self) -> None:
        require(0 < self.mean < math.inf, "mean", self.mean, "a finite number > 0")
        require(
            0 <= self.variation < math.inf,
            "variation",
            self.variation,
            "a finite number >= 0",
        )

    def draw(self, key: int) -> float:
        variance = math.log1p(self.variation**2)  # of the logarithm
        normal = NormalDist().inv_cdf(uniform(key) or 2.0**-54)
        return self.mean * math.exp(math.sqrt(variance) * normal - variance / 2)


@dataclass(frozen=True)
class Resampled:
    """One of these values, for example measured times, each equally likely."""

    values: Sequence[float]

    def __post_init__(self) -> None:
        good = len(self.values) > 0 and all(0 <= v < math.inf for v in self.values)
        require(good, "values", self.values, "finite numbers >= 0, at least one")

    def draw(self, key: int) -> float:
        return self.values[int(uniform(key) * len(self.values))]


class Acceptance(Protocol):
    """Whether a draft step is equivalent to the target's."""

    def equivalent(self, index: int, position: int, sibling: int) -> bool:
        """For draft step `index`. `position` is the key of its parent, `sibling` its
        own key."""


@dataclass(frozen=True)
class Bernoulli:
    """Each draft step is equivalent with probability `alpha`, independently of all
    others."""

    alpha: float

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "alpha", self.alpha, "a probability")

    def equivalent(self, index: int, position: int, sibling: int) -> bool:
        return uniform(sibling) < self.alpha


@dataclass(frozen=True)
class BetaSiblings:
    """Siblings share the rate of their position, which is drawn from Beta(p, q)."""

    p: float
    q: float

    def __post_init__(self) -> None:
        require(self.p > 0 and self.q > 0, "p, q", (self.p, self.q), "numbers > 0")

    def equivalent(self, index: int, position: int, sibling: int) -> bool:
        chance, size = random.Random(position), self.p + self.q
        if (
            size < 0.01
        ):  # all or none; `betavariate` would round its gamma variates to 0
            return chance.random() < self.p / size
        return uniform(sibling) < chance.betavariate(self.p, self.q)


@dataclass(frozen=True)
class Replay:
    """Recorded outcomes by step number, repeated cyclically. Siblings share the
    outcome."""

    outcomes: Sequence[bool]

    def __post_init__(self) -> None:
        require(
            len(self.outcomes) > 0, "outcomes", self.outcomes, "at least one outcome"
        )

    def equivalent(self, index: int, position: int, sibling: int) -> bool:
        return self.outcomes[index % len(self.outcomes)]


@dataclass(frozen=True)
class JudgeErrors:
    """How often the verifier rejects an equivalent step, and accepts a different
    one."""

    false_reject: float = 0.0
    false_accept: float = 0.0

    def __post_init__(self) -> None:
        require(
            0 <= self.false_reject <= 1,
            "false_reject",
            self.false_reject,
            "a probability",
        )
        require(
            0 <= self.false_accept <= 1,
            "false_accept",
            self.false_accept,
            "a probability",
        )

    def says_aligned(self, equivalent: bool, key: int) -> bool:
        return (
            uniform(key) >= self.false_reject
            if equivalent
            else uniform(key) < self.false_accept
        )
