"""Synchronous Lookahead Reasoning: a cycle drafts g steps, then the target writes its own in one
batch, then the verdicts come.

T = 1 is the time of a target step, c that of a draft step; X, the number of draft steps accepted
before the first rejection, has P(X >= i) = alpha^i. Three conventions for what a cycle is, and one
formula that the paper prints:

    name  drafts  target steps  what happens                                emits           time        speedup
    B     g       g + 1         Algorithm 1: barrier, bonus step            min(X, g) + 1   1 + c g     G_{g+1} / (1 + c g)
    N1    g       g             barrier, no bonus                           min(X + 1, g)   1 + c g     G_g / (1 + c g)
    N2    g       g             last draft beside the target, no bonus      min(X + 1, g)   1 + c(g-1)  G_g / (1 + c(g-1))

The printed f_sync(k) is B with k = g + 1, and N2 with k = g. The paper's text says k1 = gamma1,
which with Algorithm 1 (B) is false: there are gamma1 + 1 target steps. The scheduler obeys B; a
test shows it.

Assumptions: constant times, equal lengths, a batch as fast as one row, a free judge, independent
acceptance, one draft branch. Source: the paper, Theorem 1 and Algorithm 1; THEORY 2b. Read next:
`asynchronous.py`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lr.theory.domain import DomainError, Reals, geometric, nonnegative, plain, probability, whole

Convention = Literal["B", "N1", "N2"]


def lr_sync_speedup(alpha: Reals, k: Reals, c: Reals) -> Reals:
    """f_sync(k) = (1 - alpha^k) / ((1 - alpha)(1 - c + c k)) as the paper prints it (Theorem 1), k
    >= 1 target steps in flight.

    True for Algorithm 1 with k = g + 1, where g steps are drafted (convention B), and for N2 with k
    = g; *not* for Algorithm 1 with k = g, though the paper's text says k1 = gamma1. f_sync(1) = 1:
    no lookahead. Example: alpha 0.6, k 6, c 0.1: 1.5889066667. Raises `DomainError`.
    """
    k = whole("k", k, 1)
    return plain(geometric(probability("alpha", alpha), k) / (1 + nonnegative("c", c) * (k - 1)))


def lr_sync_cycle_speedup(
    alpha: Reals,
    draft_steps: Reals,
    c: Reals,
    convention: Convention = "B",
    *,
    batch_overhead: Reals = 0.0,
    verifier_latency: Reals = 0.0,
) -> Reals:
    """Steps per cycle over time per cycle, by the number of drafted steps g and the convention of
    the table above.

    `batch_overhead` b: a batch of n target rows takes 1 + b (n - 1), which for B is the same as a
    draft that costs c + b. `verifier_latency` v: verdicts are given side by side and take v.
    Together, for B: G_{g+1} / (1 + c g + b g + v) (THEORY 2e). g >= 0 for B (0: plain decoding), >=
    1 for N1 and N2. Example: alpha 0.6, g 6, c 0.1: B 1.51876, N1 1.4896. Raises `DomainError`.
    """
    if convention not in ("B", "N1", "N2"):
        raise DomainError("convention", convention, "B (Algorithm 1), N1 or N2")
    g = whole("draft_steps", draft_steps, 0 if convention == "B" else 1)
    rows = g + 1 if convention == "B" else g
    waited = g - 1 if convention == "N2" else g
    b, v = (
        nonnegative("batch_overhead", batch_overhead),
        nonnegative("verifier_latency", verifier_latency),
    )
    time = 1 + b * (rows - 1) + nonnegative("c", c) * waited + v * (g > 0)
    return plain(geometric(probability("alpha", alpha), rows) / time)


def sync_judged(alpha: Reals, draft_steps: Reals) -> Reals:
    """G_g: verdicts that a cycle of convention B needs, up to its first rejection. alpha of them
    are accepted, exactly (THEORY 2b)."""
    return plain(geometric(probability("alpha", alpha), whole("draft_steps", draft_steps, 0)))


def sync_draft_share(alpha: Reals, draft_steps: Reals) -> Reals:
    """alpha G_g / G_{g+1} = alpha (1 - alpha^g) / (1 - alpha^(g+1)): the share of the output in the
    draft's words, convention B.
    """
    a, g = probability("alpha", alpha), whole("draft_steps", draft_steps, 0)
    return plain(a * geometric(a, g) / geometric(a, g + 1))


def sync_bonus(alpha: Reals, draft_steps: Reals) -> Reals:
    """alpha^g: the share of cycles of convention B that end in a bonus step, all drafts being
    accepted.
    """
    return plain(probability("alpha", alpha) ** whole("draft_steps", draft_steps, 0))


def sync_wasted(alpha: Reals, draft_steps: Reals) -> Reals:
    """g + 1 - G_{g+1}: target steps of a cycle of convention B that are thrown away."""
    a, g = probability("alpha", alpha), whole("draft_steps", draft_steps, 0)
    return plain(g + 1 - geometric(a, g + 1))


def sync_best_k(alpha: float, c: float, most: int = 10_000) -> int:
    """The k >= 1 that maximises f_sync(k), at most `most`; the number of drafts of Algorithm 1 is
    one less.

    f_sync is unimodal (Lemma 3): it grows at k iff alpha^k (1 + c (k - 1)) > c G_k. So it is 1 (do
    not speculate) iff alpha <= c. alpha = 1 or c = 0 grow for ever: `most`. Raises `DomainError`.
    """
    a, each = float(probability("alpha", alpha)), float(nonnegative("c", c))
    k = int(whole("most", most, 1))
    ks = np.arange(1, k)
    grows = a**ks * (1 + each * (ks - 1)) > each * geometric(a, ks) * (
        1 + 1e-12
    )  # a tie is no growth
    return k if bool(np.all(grows)) else int(np.argmin(grows)) + 1
