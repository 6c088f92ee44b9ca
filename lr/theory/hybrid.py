"""Steps and tokens together: the product of both speedups, under a budget of M
positions.

    h(k1, k2) = f(k1) g(k2),    ParallelDim_f(k1) k2 <= M

k1 target steps are in flight, each with k2 positions per pass. ParallelDim_f is k1 for
the synchronous f and min(ceil(1/c1), k1) for the asynchronous f (`paper` window). k1 =
1 is token-level speculation alone, k2 = 1 is lookahead alone.

h = f g holds if draft *and* target speculate inside their steps, so that c1 stays the
same. If only the target does, c1 grows by the factor g. With random
token acceptance a synchronous cycle waits for its slowest row, so the measured product
is smaller.

Theorems 3 and 4 say when both together beat each alone; tests check them by trying all
integers. Beyond the paper: Theorem 4 holds from M = 12 on, M = 10 has counterexamples.
Most acceptance rates in the paper's Table 1 are below Theorem 4's 0.52, and the hybrid
mostly wins there as well.

Source: the paper, section 3.3, Appendices B and C. It has three slips. k1 = gamma1 is
wrong: the synchronous f has k1 - 1 drafts. The proof of Theorem 4, step 1 case 2, asks
for (1+a1)/(1+c1) >= 1.157, which fails at a1 -> 0.52, c1 -> 1/3 (1.14); what it needs
is (1+a)/(1 + c a (1-a)) >= 1.403. Case 2 of both proofs halves an odd number."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lr.theory.asynchronous import async_parallelism, lr_async_speedup
from lr.theory.domain import (
    DomainError,
    Reals,
    as_float,
    checked_ratio,
    nonnegative,
    probability,
    whole,
)
from lr.theory.synchronous import lr_sync_speedup, sd_speedup_of_positions

ScheduleKind = Literal["sync", "async"]
THRESHOLD = 1.157
"""Condition (6) asks for more than this. Lemma 6: 2 - y + (y - 2 + 1/y) ln(1 - y) is at
most 1.1562281731 for 0 < y < 1."""


def step_speedup(alpha1: Reals, k1: Reals, c1: Reals, schedule: ScheduleKind) -> Reals:
    """f(k1) with k1 >= 1 target steps in flight: f_sync as printed, or the async
    `paper` window."""
    if schedule not in ("sync", "async"):
        raise DomainError("schedule", schedule, "sync or async")
    if schedule == "sync":
        return lr_sync_speedup(alpha1, k1, c1)
    return lr_async_speedup(alpha1, k1, c1, "paper")


def hybrid_speedup(
    alpha1: Reals,
    alpha2: Reals,
    c1: Reals,
    c2: Reals,
    k1: Reals,
    k2: Reals,
    schedule: ScheduleKind = "sync",
) -> Reals:
    """h(k1, k2) = f(k1) g(k2).

    Example, async: 3.1468492801 for alpha1 = alpha2 = 0.6, c1 = 0.2, c2 = 0.1, k1 = k2
    = 4."""
    # k2 positions: k2 - 1 drafts and one more
    tokens = sd_speedup_of_positions(alpha2, k2, c2)
    return as_float(tokens * step_speedup(alpha1, k1, c1, schedule))


@dataclass(frozen=True)
class RowSplit:
    """The best split of a budget: `k1` steps in flight, `k2` positions per pass.

    Of equal speedups, the smallest k1. `token_only_speedup` (k1 = 1) and
    `step_only_speedup` (k2 = 1) are the best of each level alone."""

    k1: int
    k2: int
    speedup: float
    token_only_speedup: float
    step_only_speedup: float

    @property
    def hybrid_wins(self) -> bool:
        """Whether both levels together are strictly better than each alone."""
        return self.k1 > 1 and self.k2 > 1


def best_split(
    alpha1: float,
    alpha2: float,
    c1: float,
    c2: float,
    budget: int,
    schedule: ScheduleKind = "sync",
) -> RowSplit:
    """The integers k1, k2 >= 1 that maximise h under ParallelDim_f(k1) k2 <= `budget`.
    Tries all.

    Example, async, alpha1 = alpha2 = 0.6, c1 = 0.2, c2 = 0.1, budget 16: k1 = k2 = 4
    with speedup 3.1468492801, token only 1.6738461538, step only 1.9230769231."""
    for name, value in (("alpha1", alpha1), ("alpha2", alpha2), ("c1", c1), ("c2", c2)):
        if np.ndim(value):
            raise DomainError(name, value, "one number")
    m = int(whole("budget", budget, 1))  # token positions per pass
    k = np.arange(1, m + 1)  # [m]
    f = np.asarray(step_speedup(alpha1, k, c1, schedule))  # of k1 steps
    g = np.asarray(sd_speedup_of_positions(alpha2, k, c2))  # of k2 tokens
    parallel: Any = (
        async_parallelism(k, checked_ratio("c1", c1)) if schedule == "async" else k
    )
    # k1 k2 <= M, [m, m]
    h = np.where(parallel[:, None] * k[None, :] <= m, f[:, None] * g[None, :], -np.inf)
    h = np.round(
        h, 13
    )  # f is constant beyond ceil(1/c1); take the first of equal values
    i, j = np.unravel_index(int(np.argmax(h)), h.shape)
    return RowSplit(
        k1=int(i) + 1,
        k2=int(j) + 1,
        speedup=float(h[i, j]),
        token_only_speedup=float(h[0].max()),
        step_only_speedup=float(h[:, 0].max()),
    )


def halving_ratio(alpha: Reals, c: Reals, budget: Reals) -> Reals:
    """D(M) = (1 + alpha^(M/2)) (1 - c + c M/2) / (1 - c + c M) = f(M) / f(M/2)."""
    half = whole("budget", budget, 2) / 2
    c = nonnegative("c", c)
    # (1 - x²) / (1 - x), x = alpha^(M/2)
    gain = 1 + probability("alpha", alpha) ** half
    return as_float(gain * (1 + c * (half - 1)) / (1 + c * (2 * half - 1)))


@dataclass(frozen=True)
class Theorem3:
    """The conditions of Theorem 3, at one point or at many (arrays).

    `premise`: condition (6) and an even M >= 4; without it the other two mean nothing.
    `seven`: (1+a1)/(1+c1) >= D_2(M), i.e. h(2, M/2) >= h(1, M): token-level speculation
    alone is not optimal. `eight`: (1+a2)/(1+c2) >= D_1(M), i.e. h(M/2, 2) >= h(M, 1):
    lookahead alone is not optimal. At least one of `seven` and `eight` holds."""

    premise: Any
    seven: Any
    eight: Any

    @property
    def hybrid(self) -> Any:
        """Whether the theorem applies and says that both together strictly beat each
        alone."""
        return as_float(np.asarray(self.premise) & self.seven & self.eight)


def theorem3(
    alpha1: Reals, alpha2: Reals, c1: Reals, c2: Reals, budget: Reals
) -> Theorem3:
    """The conditions of Theorem 3 (h = f_sync g)."""
    m = whole("budget", budget, 2)
    first = (1 + probability("alpha1", alpha1)) / (1 + nonnegative("c1", c1))
    second = (1 + probability("alpha2", alpha2)) / (1 + nonnegative("c2", c2))
    # M is halved
    premise = (m >= 4) & (m % 2 == 0) & (np.minimum(first, second) > THRESHOLD)
    seven = first >= halving_ratio(alpha2, c2, m)  # inequality (7): a second row pays
    # inequality (8): a second token pays
    eight = second >= halving_ratio(alpha1, c1, m)
    return Theorem3(as_float(premise), as_float(seven), as_float(eight))


def theorem4_conditions(
    alpha1: Reals, alpha2: Reals, c1: Reals, c2: Reals, budget: Reals
) -> Any:
    """Whether 0.52 < alpha1, alpha2 < 0.8, c1 < 1/3, c2 < 1/5 and M >= 16 is even.

    Then the asynchronous h is maximal only with k1 >= 2 and k2 >= 2 (Theorem 4; only
    the appendix says "even")."""
    a1 = probability("alpha1", alpha1)
    a2 = probability("alpha2", alpha2)
    c1 = nonnegative("c1", c1)
    c2 = nonnegative("c2", c2)
    m = whole("budget", budget, 1)
    rates = (a1 > 0.52) & (a1 < 0.8) & (a2 > 0.52) & (a2 < 0.8)
    return as_float(rates & (c1 < 1 / 3) & (c2 < 1 / 5) & (m >= 16) & (m % 2 == 0))
