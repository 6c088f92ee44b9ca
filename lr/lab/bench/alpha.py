"""Measured against theory: how many tokens a round of token-level speculation decides, and what a
constant acceptance rate says.

The convention, here and in `lr bench alpha`: a round drafts k tokens; it decides N = 1 + (accepted
drafts) tokens, 1 <= N <= k + 1. If every draft were accepted with the same probability alpha,
whatever happened before, P(N > i) = alpha^i for i <= k, so

    E N = G_{k+1}(alpha) = 1 + alpha + ... + alpha^k = (1 - alpha^(k+1)) / (1 - alpha)        (Leviathan et al., arXiv 2211.17192, eq. 1)

alpha is the *conditional* rate: accepted drafts per draft that was tried; a draft behind a round's
first rejection is not tried. So alpha = accepted / tried is also its maximum-likelihood estimate,
and a round whose proposal was short (the budget of the answer or the end of the text came) counts
as far as it goes. A step's end cuts no round: the drafts behind it were decided on like any others,
and are in N; that they are dropped afterwards shows in `emitted`, the tokens that a round really
adds to the answer.

Knows the trace and nothing of models. Errors come from a jackknife over problems, for rounds of one
problem are not independent. Read next: `alpha_figure.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from operator import mul

from lr.trace import TokenRound


@dataclass(frozen=True)
class Places:
    """The rounds of some problems, by the place in the proposal: i = 0 is the first draft, k - 1
    the last.

    `offered[i]`: rounds that had a draft there; `tried[i]`: that also accepted all before it;
    `kept[i]`: that accepted it too. Example, k = 2, three rounds that accept 2, 1 and 0 drafts:
    offered (3, 3), tried (3, 2), kept (2, 1).
    """

    rounds: int
    emitted: int
    offered: tuple[int, ...]
    tried: tuple[int, ...]
    kept: tuple[int, ...]

    @classmethod
    def of(cls, rounds: Iterable[TokenRound], k: int) -> Places:
        """Those of rounds of chains of at most k drafts."""
        seen, places = list(rounds), range(k)
        return cls(
            rounds=len(seen),
            emitted=sum(r.emitted for r in seen),
            offered=tuple(sum(r.depth > i for r in seen) for i in places),
            tried=tuple(sum(r.depth > i and r.accepted >= i for r in seen) for i in places),
            kept=tuple(sum(r.accepted > i for r in seen) for i in places),
        )

    @classmethod
    def total(cls, parts: Sequence[Places]) -> Places:
        """All of them together; at least one."""

        def added(name: str) -> tuple[int, ...]:
            return tuple(map(sum, zip(*(getattr(part, name) for part in parts), strict=True)))

        rounds, emitted = sum(part.rounds for part in parts), sum(part.emitted for part in parts)
        return cls(rounds, emitted, added("offered"), added("tried"), added("kept"))

    @property
    def length(self) -> float:
        """The mean acceptance length: tokens that a round decides, 1 + accepted / rounds."""
        return 1 + sum(self.kept) / self.rounds

    @property
    def alpha(self) -> float:
        """accepted / tried."""
        return sum(self.kept) / sum(self.tried)

    @property
    def rates(self) -> tuple[float, ...]:
        """The conditional acceptance rate of each place; 0 where nothing was tried."""
        return tuple(
            kept / tried if tried else 0.0
            for kept, tried in zip(self.kept, self.tried, strict=True)
        )

    def predict(self, rates: Sequence[float]) -> float:
        """E N if place i is accepted with `rates[i]` after all before it, with as many short
        proposals as there were here.

        Equal rates and no short proposal: G_{k+1}.
        """
        shares = [offered / self.rounds for offered in self.offered]
        return 1 + sum(
            share * reach for share, reach in zip(shares, accumulate(rates, mul), strict=True)
        )


def expected_tokens(alpha: float, k: int) -> float:
    """G_{k+1}(alpha): tokens that a round of k drafts decides. Example: alpha 0.5, k 2: 1 + 0.5 +
    0.25 = 1.75.
    """
    return sum(alpha**i for i in range(k + 1))


Estimate = Callable[[Sequence[Places]], float]


def constant(parts: Sequence[Places]) -> float:
    """G_{k+1}(alpha), alpha from the same rounds."""
    whole = Places.total(parts)
    return expected_tokens(whole.alpha, len(whole.kept))


def constant_as_offered(parts: Sequence[Places]) -> float:
    """The same constant alpha, with the short proposals as they came."""
    whole = Places.total(parts)
    return whole.predict([whole.alpha] * len(whole.kept))


def by_place(parts: Sequence[Places]) -> float:
    """One rate per place, measured on the *other* half of the problems, each half predicted in turn
    and weighed by its rounds.

    With the rates of the very same rounds the prediction would be the measurement, term by term,
    and say nothing.
    """
    halves = [Places.total(parts[0::2]), Places.total(parts[1::2])]
    guesses = [
        half.rounds * half.predict(other.rates)
        for half, other in zip(halves, halves[::-1], strict=True)
    ]
    return sum(guesses) / sum(half.rounds for half in halves)


def measured(parts: Sequence[Places]) -> float:
    """The mean acceptance length."""
    return Places.total(parts).length


def standard_error(estimate: Estimate, parts: Sequence[Places]) -> float:
    """Of an estimate over independent problems, by leaving each of them out in turn (the
    jackknife).
    """
    n = len(parts)
    without = [estimate([*parts[:i], *parts[i + 1 :]]) for i in range(n)]
    mean = sum(without) / n
    return sqrt((n - 1) / n * sum((value - mean) ** 2 for value in without))


@dataclass(frozen=True)
class Point:
    """What was measured and predicted for one k. `cut`: the share of rounds whose proposal was
    shorter than k.

    `gap_error` is the standard error of measured - constant; both come from the same rounds, so it
    is smaller than `error`.
    """

    k: int
    rounds: int
    cut: float
    alpha: float
    rates: tuple[float, ...]
    rate_errors: tuple[float, ...]
    measured: float
    error: float
    constant: float
    constant_as_offered: float
    by_place: float
    gap_error: float
    by_place_error: float
    emitted: float

    @property
    def gaps(self) -> tuple[float, float]:
        """measured - prediction in standard errors of the measurement: for the constant rate, and
        for one rate per place.
        """
        return (self.measured - self.constant) / self.error, (
            self.measured - self.by_place
        ) / self.error


def point(k: int, parts: Sequence[Places]) -> Point:
    """Everything about one k from the rounds of each problem; at least four problems."""
    whole = Places.total(parts)

    def rate(place: int) -> Estimate:
        return lambda some: Places.total(some).rates[place]

    return Point(
        k=k,
        rounds=whole.rounds,
        cut=1 - whole.offered[-1] / whole.rounds,
        alpha=whole.alpha,
        rates=whole.rates,
        rate_errors=tuple(standard_error(rate(place), parts) for place in range(k)),
        measured=whole.length,
        error=standard_error(measured, parts),
        constant=constant(parts),
        constant_as_offered=constant_as_offered(parts),
        by_place=by_place(parts),
        gap_error=standard_error(lambda some: measured(some) - constant(some), parts),
        by_place_error=standard_error(lambda some: measured(some) - by_place(some), parts),
        emitted=whole.emitted / whole.rounds,
    )
