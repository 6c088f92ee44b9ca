"""`lr bench alpha`: the tokens that a round of token-level speculation decides, next to
the theory.

A round drafts k tokens and decides N = 1 + (accepted drafts) tokens. If every draft is
accepted with the same probability alpha, independently, then P(N > i) = alpha^i for i
<= k, and

    E N = G_(k+1)(alpha) = 1 + alpha + ... + alpha^k    (Leviathan et al., arXiv 2211.17192, eq. 1)

alpha is conditional: accepted / *tried* drafts, where a draft after a round's first
rejection is not tried. This is its maximum-likelihood estimate, also with rounds that
drafted fewer than k. N includes drafts beyond the end of a step, which are decided and
then dropped; `emitted` does not. Errors are jackknives over problems, because the
rounds of one problem are not independent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from lr.theory.predicted import standard_error
from lr.theory.synchronous import sd_tokens
from lr.trace import TokenRound
from lr.watch.figures import plots
from lr.watch.figures.plots import Curves


@dataclass(frozen=True)
class Places:
    """The rounds of some problems, counted by place in the proposal (0 is the first
    draft).

    Rounds that had a draft at place i (`offered[i]`), that also accepted all drafts
    before it (`tried[i]`), and that accepted it too (`kept[i]`). Example, k = 2, three
    rounds that accept 2, 1 and 0 drafts: offered (3, 3), tried (3, 2), kept (2, 1)."""

    rounds: int
    emitted: int
    offered: np.ndarray
    tried: np.ndarray
    kept: np.ndarray

    @classmethod
    def of(cls, rounds: Sequence[TokenRound], k: int) -> Places:
        """Count rounds of chains of at most k drafts."""
        place, seen = np.arange(k), np.array([(r.depth, r.accepted) for r in rounds])
        depth, accepted = seen.reshape(-1, 2, 1).swapaxes(0, 1)  # each [rounds, 1]
        offered, kept = depth > place, accepted > place
        counts = (offered, offered & (accepted >= place), kept)
        return cls(
            len(rounds), sum(r.emitted for r in rounds), *(one.sum(0) for one in counts)
        )

    @classmethod
    def total(cls, parts: Sequence[Places]) -> Places:
        """The sum of at least one part."""
        return cls(
            *(sum(getattr(part, one.name) for part in parts) for one in fields(cls))
        )

    @property
    def length(self) -> float:
        """The mean acceptance length: tokens decided per round, 1 + accepted /
        rounds."""
        return float(1 + self.kept.sum() / self.rounds)

    @property
    def alpha(self) -> float:
        return float(self.kept.sum() / self.tried.sum())

    @property
    def constant(self) -> float:
        """G_(k+1)(alpha) with alpha from the same rounds."""
        return float(sd_tokens(self.alpha, len(self.kept)))

    @property
    def rates(self) -> list[float]:
        """The conditional acceptance rate at each place; 0 where nothing was tried."""
        return (self.kept / np.maximum(self.tried, 1)).tolist()

    def predict(self, rates: Sequence[float]) -> float:
        """E N if place i is accepted with probability `rates[i]`, given the proposals'
        lengths."""
        return float(1 + self.offered @ np.cumprod(rates) / self.rounds)


def by_place(parts: Sequence[Places]) -> float:
    """E N predicted with one rate per place, measured on the *other* half of the
    problems; weighted by rounds. With the rates of the same rounds it would equal the
    measurement, term by term."""
    halves = [Places.total(parts[0::2]), Places.total(parts[1::2])]
    pairs = zip(halves, halves[::-1], strict=True)
    predicted = sum(half.rounds * half.predict(other.rates) for half, other in pairs)
    return predicted / sum(half.rounds for half in halves)


@dataclass(frozen=True)
class AlphaPoint:
    """Measurement and predictions for one k. `cut`: the share of rounds with fewer than
    k drafts. `constant_as_offered`: the prediction of constant alpha, given the
    proposals' lengths. `gap_error`: the standard error of measured - constant, smaller
    than `error` since both come from the same rounds."""

    k: int
    rounds: int
    cut: float
    alpha: float
    rates: list[float]
    rate_errors: list[float]
    measured: float
    error: float
    constant: float
    constant_as_offered: float
    by_place: float
    gap_error: float
    emitted: float

    @property
    def gaps(self) -> tuple[float, float]:
        """measured - predicted in standard errors: with one rate, and with one rate per
        place."""
        off = self.measured - self.constant, self.measured - self.by_place
        return off[0] / self.error, off[1] / self.error


def point(k: int, parts: Sequence[Places]) -> AlphaPoint:
    """The point of one k, from the rounds of each problem; at least four problems."""
    whole = Places.total(parts)

    def error(estimate: Callable[[Places], float]) -> float:
        return standard_error(lambda some: estimate(Places.total(some)), parts)

    return AlphaPoint(
        k=k,
        rounds=whole.rounds,
        cut=1 - int(whole.offered[-1]) / whole.rounds,
        alpha=whole.alpha,
        rates=whole.rates,
        rate_errors=[error(lambda one, i=i: one.rates[i]) for i in range(k)],  # type: ignore[misc]
        measured=whole.length,
        error=error(lambda some: some.length),
        constant=whole.constant,
        constant_as_offered=whole.predict([whole.alpha] * k),
        by_place=by_place(parts),
        gap_error=error(lambda some: some.length - some.constant),
        emitted=whole.emitted / whole.rounds,
    )


def draw(document: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw tokens per round over k, and acceptance by place, as PNG and SVG, from the
    document."""
    points, settings = document["points"], document["settings"]
    last = points[-1]
    places = range(1, last["k"] + 1)

    def over_k(name: str) -> plots.Curve:
        return [(p["k"], p[name]) for p in points]

    decided = Curves(
        "", "k, drafts per round", "tokens per round (mean acceptance length)",
        [("predicted: one rate,  (1 − α$^{k+1}$) / (1 − α)", over_k("constant")),
         ("predicted: one rate per place", over_k("by_place"))],
        [("measured, ± 2 standard errors", over_k("measured"))],
        [2 * p["error"] for p in points], marked=False, ylim=(1, None),
    )  # fmt: skip
    tried = Curves(
        "", f"place of the draft, in a round of {last['k']}", "accepted, given that it was tried",
        [(f"α = accepted / tried = {last['alpha']:.3f}", [(x, last["alpha"]) for x in places])],
        [("by place, ± 2 standard errors", list(zip(places, last["rates"], strict=True)))],
        [2 * error for error in last["rate_errors"]], marked=False, ylim=(0, 1),
    )  # fmt: skip
    how = f"rule reject, temperature {settings['temperature']:g}"
    title = f"Draft model, {how}, {settings['problems']} held-out problems"
    return plots.draw([decided, tried], path, title)
