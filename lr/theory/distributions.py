"""The random parts of a simulation: how long work takes, and which draft steps are
accepted.

Every draw is a function of a key (`lr/rng.py`), so a simulation is repeatable and does
not depend on the order of its draws. The formulas assume `Constant` times and
`Bernoulli` acceptance. Read next: `simulate.py`."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from lr.rng import uniform


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
        assert 0 <= self.value < math.inf

    def draw(self, key: int) -> float:
        return self.value


@dataclass(frozen=True)
class Lognormal:
    """A lognormal duration; `variation` is standard deviation / mean."""

    mean: float
    variation: float

    def __post_init__(self) -> None:
        assert 0 < self.mean < math.inf
        assert 0 <= self.variation < math.inf

    def draw(self, key: int) -> float:
        variance = math.log1p(self.variation**2)  # of the logarithm
        normal = NormalDist().inv_cdf(uniform(key) or 2.0**-54)  # 0 has no inverse
        return self.mean * math.exp(math.sqrt(variance) * normal - variance / 2)


@dataclass(frozen=True)
class Resampled:
    """One of these values, for example measured times, each equally likely."""

    values: Sequence[float]

    def __post_init__(self) -> None:
        assert len(self.values) > 0
        assert all(0 <= value < math.inf for value in self.values)

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
        assert 0 <= self.alpha <= 1

    def equivalent(self, index: int, position: int, sibling: int) -> bool:
        return uniform(sibling) < self.alpha


@dataclass(frozen=True)
class BetaSiblings:
    """Siblings share the rate of their position, which is drawn from Beta(p, q)."""

    p: float
    q: float

    def __post_init__(self) -> None:
        assert self.p > 0
        assert self.q > 0

    def equivalent(self, index: int, position: int, sibling: int) -> bool:
        chance = random.Random(position)
        size = self.p + self.q
        # all or none: `betavariate` would round its gamma variates to 0
        if size < 0.01:
            return chance.random() < self.p / size
        return uniform(sibling) < chance.betavariate(self.p, self.q)


@dataclass(frozen=True)
class JudgeErrors:
    """How often the verifier rejects an equivalent step, and accepts a different
    one."""

    false_reject: float = 0.0
    false_accept: float = 0.0

    def __post_init__(self) -> None:
        assert 0 <= self.false_reject <= 1
        assert 0 <= self.false_accept <= 1

    def says_aligned(self, equivalent: bool, key: int) -> bool:
        if equivalent:
            return uniform(key) >= self.false_reject
        return uniform(key) < self.false_accept
