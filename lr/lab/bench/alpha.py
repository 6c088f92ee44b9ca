"""`lr bench alpha`: how many tokens a round of token-level speculation decides, and the theory.

A round drafts k tokens and decides N = 1 + (accepted drafts) tokens. If every draft were accepted
with the same probability alpha, whatever happened before, P(N > i) = alpha^i for i <= k, and

    E N = G_(k+1)(alpha) = 1 + alpha + ... + alpha^k    (Leviathan et al., arXiv 2211.17192, eq. 1)

alpha is conditional: accepted per *tried* draft, and a draft after a round's first rejection is not
tried. This is also its maximum-likelihood estimate; rounds with a short proposal count as far as
they go. The end of a step cuts no round: dropped drafts were decided like any others and are in N;
`emitted` counts what is left. Errors are jackknives over problems, because the rounds of one
problem are not independent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from lr.lab.viz import plots
from lr.lab.viz.plots import Curves
from lr.theory.predicted import standard_error
from lr.theory.synchronous import sd_tokens
from lr.trace import TokenRound


@dataclass(frozen=True)
class Places:
    """The rounds of some problems, by the place in the proposal: 0 is the first draft.

    Of the k places: `offered[i]`: rounds that had a draft there; `tried[i]`: and accepted all
    before it; `kept[i]`: and accepted it too. Example, k = 2, three rounds that accept 2, 1 and 0
    drafts: offered (3, 3), tried (3, 2), kept (2, 1)."""

    rounds: int
    emitted: int
    offered: np.ndarray
    tried: np.ndarray
    kept: np.ndarray

    @classmethod
    def of(cls, rounds: Sequence[TokenRound], k: int) -> Places:
        """Those of rounds of chains of at most k drafts."""
        place, seen = np.arange(k), np.array([(r.depth, r.accepted) for r in rounds])
        depth, accepted = seen.reshape(-1, 2, 1).swapaxes(0, 1)  # each [rounds, 1]
        offered, kept = depth > place, accepted > place
        counts = (offered, offered & (accepted >= place), kept)
        return cls(len(rounds), sum(r.emitted for r in rounds), *(one.sum(0) for one in counts))

    @classmethod
    def total(cls, parts: Sequence[Places]) -> Places:
        """All of them together; at least one."""
        return cls(*(sum(getattr(part, one.name) for part in parts) for one in fields(cls)))

    @property
    def length(self) -> float:
        """The mean acceptance length: tokens that a round decides, 1 + accepted / rounds."""
        return float(1 + self.kept.sum() / self.rounds)

    @property
    def alpha(self) -> float:
        return float(self.kept.sum() / self.tried.sum())

    @property
    def constant(self) -> float:
        """G_(k+1)(alpha), alpha from the same rounds."""
        return float(sd_tokens(self.alpha, len(self.kept)))

    @property
    def rates(self) -> list[float]:
        """The conditional acceptance rate of each place; 0 where nothing was tried."""
        return (self.kept / np.maximum(self.tried, 1)).tolist()

    def predict(self, rates: Sequence[float]) -> float:
        """E N if place i is accepted at `rates[i]`, with the short proposals that there were."""
        return float(1 + self.offered @ np.cumprod(rates) / self.rounds)


def by_place(parts: Sequence[Places]) -> float:
    """One rate per place, measured on the *other* half of the problems, weighed by rounds.

    With the rates of the same rounds the prediction would be the measurement, term by term."""
    halves = [Places.total(parts[0::2]), Places.total(parts[1::2])]
    pairs = zip(halves, halves[::-1], strict=True)
    predicted = sum(half.rounds * half.predict(other.rates) for half, other in pairs)
    return predicted / sum(half.rounds for half in halves)


@dataclass(frozen=True)
class AlphaPoint:
    """What was measured and predicted for one k. `cut`: share of rounds with a short proposal.
    `constant_as_offered`: the same constant alpha, with the short proposals as they came.

    `gap_error` is the standard error of measured - constant; both come from the same rounds, so it
    is smaller than `error`."""

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
        """measured - prediction in standard errors: for one rate, and for one rate per place."""
        off = self.measured - self.constant, self.measured - self.by_place
        return off[0] / self.error, off[1] / self.error


def point(k: int, parts: Sequence[Places]) -> AlphaPoint:
    """Everything about one k from the rounds of each problem; at least four problems."""
    whole = Places.total(parts)

    def error(estimate: Callable[[Places], float]) -> float:
        return standard_error(lambda some: estimate(Places.total(some)), parts)

    return AlphaPoint(
        k=k,
        rounds=whole.rounds,
        cut=1 - int(whole.offered[-1]) / whole.rounds,
        alpha=whole.alpha,
        rates=whole.rates,
        rate_errors=[error(lambda some, at=at: some.rates[at]) for at in range(k)],  # type: ignore[misc]
        measured=whole.length,
        error=error(lambda some: some.length),
        constant=whole.constant,
        constant_as_offered=whole.predict([whole.alpha] * k),
        by_place=by_place(parts),
        gap_error=error(lambda some: some.length - some.constant),
        emitted=whole.emitted / whole.rounds,
    )


def draw(document: Mapping[str, Any], path: Path) -> list[Path]:
    """Tokens per round over k and acceptance by place, as PNG and SVG, from the JSON document."""
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
