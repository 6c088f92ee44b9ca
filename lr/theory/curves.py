"""The theoretical curves of the paper, computed: what `figures.py` draws. Each function gives the
lines of one picture as plain numbers.

The paper's Figures 2 and 3 are measurements; these are their theory: the same axes, the formulas of
this room. Read next: `figures.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lr.theory.asynchronous import lr_async_limit, lr_async_speedup
from lr.theory.hybrid import Kind, best_split, hybrid_speedup
from lr.theory.synchronous import lr_sync_cycle_speedup
from lr.theory.tables import TABLE_3, WIDTHS
from lr.theory.token_level import sd_speedup_of_positions
from lr.theory.width import beta_width_acceptance, tree_sync_speedup, width_acceptance


@dataclass(frozen=True)
class Line:
    """A labelled curve. `marks`: single points instead of a line."""

    label: str
    x: Any
    y: Any
    marks: bool = False


def draft_length(
    alpha1: float = 0.6,
    alpha2: float = 0.8,
    c1: float = 0.2,
    c2: float = 0.05,
    budgets: tuple[int, ...] = (16, 64),
) -> list[Line]:
    """Speedup against positions per target pass: SD alone, and the best lookahead on top that the
    rest of the budget allows.

    With M positions in all, k2 per pass leave floor(M / k2) target steps in flight; the
    asynchronous `paper` window.
    """
    k2 = np.arange(1, 33)
    lines = [Line("SD alone", k2, sd_speedup_of_positions(alpha2, k2, c2))]
    for m in budgets:
        fits = k2[k2 <= m]
        both = [
            float(hybrid_speedup(alpha1, alpha2, c1, c2, max(1, m // int(k)), int(k), "async"))
            for k in fits
        ]
        lines.append(Line(f"SD + lookahead, M = {m}", fits, np.array(both)))
    return lines


def schedules(alpha: float = 0.8, c: float = 0.1) -> list[Line]:
    """Speedup against k (g, pairs, drafts) of the synchronous cycle and both windows, and the limit
    without a window.
    """
    k = np.arange(1, 17)
    return [
        Line("sync, g = k drafts (Algorithm 1)", k, lr_sync_cycle_speedup(alpha, k, c)),
        Line("paper, k pairs in flight", k, lr_async_speedup(alpha, k, c, "paper")),
        Line("depth, k unverified drafts", k, lr_async_speedup(alpha, k, c, "depth")),
        Line("cycle of k, asynchronous inside", k, lr_async_speedup(alpha, k, c, "cycle")),
        Line("no window", k, np.full(len(k), lr_async_limit(alpha, c))),
    ]


def hybrid_region(
    c1: float = 0.2, c2: float = 0.1, budget: int = 16, schedule: Kind = "async"
) -> tuple[Any, Any, Any]:
    """(alpha1 [a], alpha2 [b], gain [b, a]): the best hybrid over the best pure method; above 1
    steps and tokens together win.
    """
    rates = np.linspace(0.05, 0.95, 37)
    gain = np.empty((len(rates), len(rates)))
    for i, alpha2 in enumerate(rates):
        for j, alpha1 in enumerate(rates):
            gain[i, j] = _gain(float(alpha1), float(alpha2), c1, c2, budget, schedule)
    return rates, rates, gain


def _gain(alpha1: float, alpha2: float, c1: float, c2: float, budget: int, schedule: Kind) -> float:
    """Best with k1, k2 >= 2 over the best with k1 = 1 or k2 = 1."""
    split = best_split(alpha1, alpha2, c1, c2, budget, schedule)
    pure = max(split.token_only_speedup, split.step_only_speedup)
    if split.hybrid_wins:
        return split.speedup / pure
    k = np.arange(2, budget // 2 + 1)
    h = np.array(
        [
            np.max(hybrid_speedup(alpha1, alpha2, c1, c2, k[k <= budget // m], float(m), schedule))
            for m in k
        ]
    )
    return float(h.max()) / pure


def width_acceptances() -> list[Line]:
    """Acceptance against W: independent siblings, Beta-correlated ones as fitted, and what Table 3
    says, for its first and third row.
    """
    from lr.theory.fit import fit_width

    w = np.arange(1, 9)
    lines = []
    for row in (TABLE_3[0], TABLE_3[2]):
        fitted = fit_width(row)
        lines += [
            Line(f"{row.name}: printed", np.array(WIDTHS), np.array(row.acceptance), marks=True),
            Line(
                f"correlated, Beta({fitted.p:.2f}, {fitted.q:.2f})",
                w,
                beta_width_acceptance(fitted.p, fitted.q, w),
            ),
            Line("independent", w, width_acceptance(row.acceptance[0], w)),
        ]
    return lines


def width_speedups(
    c: float = 0.1, draft_steps: int = 2, overheads: tuple[float, ...] = (0.0, 0.01, 0.05)
) -> list[Line]:
    """Speedup of a synchronous cycle of depth 2 against W, siblings as in the first row of Table 3,
    for several batch overheads b.
    """
    from lr.theory.fit import fit_width

    fitted = fit_width(TABLE_3[0])
    w = range(1, 9)
    alphas = [float(beta_width_acceptance(fitted.p, fitted.q, n)) for n in w]
    return [
        Line(
            f"b = {b:g}",
            np.array(w),
            np.array(
                [
                    tree_sync_speedup(a, n, draft_steps, c, b, b)
                    for a, n in zip(alphas, w, strict=True)
                ]
            ),
        )
        for b in overheads
    ]
