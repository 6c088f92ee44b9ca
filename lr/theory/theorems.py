"""The paper's Theorems 3 and 4 and their lemmas as predicates: when does using steps *and* tokens
beat either alone?

Conventions of `hybrid.py`: k1 target steps in flight, k2 positions per pass, M rows. Both theorems
are statements about integers, and the tests check them by trying all of them. What they leave open
is in THEORY 2f: Theorem 4 needs M >= 12 only, M = 10 has counterexamples; most acceptance rates
that the paper itself reports are below Theorem 4's 0.52 (and the hybrid wins there nevertheless,
mostly).

Slips in the paper: the proof of Theorem 4, step 1 case 2, asks for (1 + a1)/(1 + c1) >= 1.157,
which fails at a1 -> 0.52, c1 -> 1/3 (1.14); what is needed is f_async(2) = (1+a)/(1 + c a (1-a)) >=
1.403 there, so the theorem stands. Case 2 of both proofs halves an odd number. Source: the paper,
section 3.3, Appendices B and C; THEORY 1.5 and 1.11. Read next: `planner.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lr.theory.domain import Reals, inside, nonnegative, numbers, plain, probability, whole

THRESHOLD = 1.157
"""Condition (6) asks for more than this: the maximum of `lemma6`, 1.1562281731, rounded up."""


def lemma6(y: Reals) -> Reals:
    """2 - y + (y - 2 + 1/y) ln(1 - y), 0 < y < 1: at most 1.1562281731, reached at y = 0.5693971.
    Raises `DomainError`.
    """
    y = numbers("y", y)
    inside((y > 0) & (y < 1), "y", y, "a number in (0, 1)")
    return plain(2 - y + (y - 2 + 1 / y) * np.log1p(-y))


def halving_ratio(alpha: Reals, c: Reals, budget: Reals) -> Reals:
    """D(M) = (1 + alpha^(M/2)) (1 - c + c M/2) / (1 - c + c M): what a method gains from M rows
    over M/2, f(M) / f(M/2).
    """
    half, c = whole("budget", budget, 2) / 2, nonnegative("c", c)
    gain = 1 + probability("alpha", alpha) ** half
    return plain(gain * (1 + c * (half - 1)) / (1 + c * (2 * half - 1)))


@dataclass(frozen=True)
class Theorem3:
    """The conditions of Theorem 3 at one point (or at many: arrays). `premise`: (6) and an even M
    >= 4; the rest means something only there.

    `seven`: (1 + a1)/(1 + c1) >= D_2(M), that is h(2, M/2) >= h(1, M): token-level speculation
    alone is not optimal. `eight`: (1 + a2)/(1 + c2) >= D_1(M), that is h(M/2, 2) >= h(M, 1):
    lookahead alone is not optimal. One of them holds at least.
    """

    premise: Any
    seven: Any
    eight: Any

    @property
    def hybrid(self) -> Any:
        """The theorem applies and says that both together are strictly better than each alone."""
        return plain(np.asarray(self.premise) & self.seven & self.eight)


def theorem3(alpha1: Reals, alpha2: Reals, c1: Reals, c2: Reals, budget: Reals) -> Theorem3:
    """The conditions of Theorem 3 (synchronous schedule, h = f_sync g). Raises `DomainError`."""
    m = whole("budget", budget, 2)
    first = (1 + probability("alpha1", alpha1)) / (1 + nonnegative("c1", c1))
    second = (1 + probability("alpha2", alpha2)) / (1 + nonnegative("c2", c2))
    premise = (m >= 4) & (m % 2 == 0) & (np.minimum(first, second) > THRESHOLD)
    seven, eight = first >= halving_ratio(alpha2, c2, m), second >= halving_ratio(alpha1, c1, m)
    return Theorem3(plain(premise), plain(seven), plain(eight))


def theorem3_holds(alpha1: Reals, alpha2: Reals, c1: Reals, c2: Reals, budget: Reals) -> Any:
    """Whether Theorem 3 promises that the synchronous hybrid strictly beats both pure methods:
    premise, (7) and (8) (see `theorem3`).

    False where it promises nothing and where it promises the contrary. Source: the paper, Theorem 3
    ((8), (9) in the camera-ready).
    """
    return theorem3(alpha1, alpha2, c1, c2, budget).hybrid


def theorem4_conditions(alpha1: Reals, alpha2: Reals, c1: Reals, c2: Reals, budget: Reals) -> Any:
    """Whether the point is in the box of Theorem 4: 0.52 < alpha1, alpha2 < 0.8, c1 < 1/3, c2 <
    1/5, even M >= 16.

    Then h (asynchronous, min(ceil(1/c1), k1) k2 <= M) is at its maximum only with k1 >= 2 and k2 >=
    2. The main text has no "even"; the appendix has. Source: the paper, Theorem 4. Raises
    `DomainError`.
    """
    a1, a2 = probability("alpha1", alpha1), probability("alpha2", alpha2)
    c1, c2, m = nonnegative("c1", c1), nonnegative("c2", c2), whole("budget", budget, 1)
    rates = (a1 > 0.52) & (a1 < 0.8) & (a2 > 0.52) & (a2 < 0.8)
    return plain(rates & (c1 < 1 / 3) & (c2 < 1 / 5) & (m >= 16) & (m % 2 == 0))


def hybrid_wins_at_last(
    alpha1: Reals, alpha2: Reals, c1: Reals, c2: Reals, asynchronous: bool
) -> Any:
    """Whether the hybrid wins strictly for every large enough budget: alpha2 > c2, and,
    synchronous, alpha1 > c1 as well (THEORY 2f)."""
    tokens = probability("alpha2", alpha2) > nonnegative("c2", c2)
    steps = probability("alpha1", alpha1) > (0 if asynchronous else nonnegative("c1", c1))
    return plain(tokens & steps)
