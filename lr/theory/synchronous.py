"""Synchronous cycles: write g drafts, then let the target check all of them at once.

The unit of time is one target step. A draft step takes c; X, the number of drafts
accepted before the first rejection, has P(X >= i) = alpha^i. There are three
conventions for a cycle:

    name  drafts  target steps  cycle                                 emits          time
    ----  ------  ------------  ------------------------------------  -------------  ------------
    B     g       g + 1         Algorithm 1: barrier, bonus step      min(X, g) + 1  1 + c g
    N1    g       g             barrier, no bonus step                min(X + 1, g)  1 + c g
    N2    g       g             last draft overlaps the target batch  min(X + 1, g)  1 + c (g-1)

    speedup    B: G_(g+1) / (1 + c g)    N1: G_g / (1 + c g)    N2: G_g / (1 + c (g-1))

The paper's f_sync(k) (Theorem 1) is B with k = g + 1, or N2 with k = g. Its text says
k1 = gamma1, which is wrong for Algorithm 1: it has gamma1 + 1 target steps. The
scheduler follows B.

Token-level speculative decoding is the same cycle in tokens: gamma drafted tokens, one
target pass over gamma + 1 positions, speedup G_(gamma+1) / (1 + gamma c) (Leviathan et
al., arXiv 2211.17192). `gamma` counts drafted tokens; the paper's k2 counts positions,
k2 = gamma + 1.

Assumptions: constant times, steps of equal length, a batch as fast as one row, a free
verifier, independent acceptance, one alternative per position. Read next:
`asynchronous.py`."""

from typing import Literal

import numpy as np

from lr.theory.domain import (
    DomainError,
    Reals,
    as_float,
    geometric,
    nonnegative,
    probability,
    whole,
)

Convention = Literal["B", "N1", "N2"]


def lr_sync_speedup(alpha: Reals, k: Reals, c: Reals) -> Reals:
    """f_sync(k) = (1 - alpha^k) / ((1 - alpha)(1 - c + c k)), as printed in Theorem 1.

    k >= 1 counts target steps in flight: Algorithm 1 with k - 1 drafts (B), or N2 with
    k. f(1) = 1 is plain decoding. Example: f(6) = 1.5889066667 for alpha = 0.6, c =
    0.1."""
    return lr_sync_cycle_speedup(alpha, whole("k", k, 1) - 1, c)


def lr_sync_cycle_speedup(
    alpha: Reals,
    draft_steps: Reals,
    c: Reals,
    convention: Convention = "B",
    *,
    batch_overhead: Reals = 0.0,
    verifier_latency: Reals = 0.0,
) -> Reals:
    """Speedup of a cycle of g = `draft_steps` drafts, in the conventions of the table
    above.

    `batch_overhead` b: n target rows take 1 + b (n - 1). `verifier_latency` v: all
    verdicts of a cycle arrive together after v. So B is G_(g+1) / (1 + c g + b g + v),
    as if a draft took c + b. g >= 0 for B (0 is plain decoding), g >= 1 for N1 and N2.
    Example: alpha = 0.6, g = 6, c = 0.1 give 1.51876 (B) and 1.4896 (N1)."""
    if convention not in ("B", "N1", "N2"):
        raise DomainError("convention", convention, "B (Algorithm 1), N1 or N2")
    g = whole("draft_steps", draft_steps, 0 if convention == "B" else 1)
    rows = g + 1 if convention == "B" else g  # with the bonus
    serial_drafts = g - 1 if convention == "N2" else g
    b = nonnegative("batch_overhead", batch_overhead)
    v = nonnegative("verifier_latency", verifier_latency)
    # in target steps
    time = 1 + b * (rows - 1) + nonnegative("c", c) * serial_drafts + v * (g > 0)
    return as_float(geometric(probability("alpha", alpha), rows) / time)


def sync_best_k(alpha: float, c: float, limit: int = 10_000) -> int:
    """The k in 1..`limit` that maximises f_sync(k); Algorithm 1 then drafts k - 1 steps.

    f_sync is unimodal (Lemma 3) and grows at k iff alpha^k (1 + c (k - 1)) > c G_k. So
    the best k is 1 (do not speculate) iff alpha <= c, and `limit` if alpha = 1 or c =
    0."""
    a = float(probability("alpha", alpha))
    cost = float(nonnegative("c", c))
    limit = int(whole("limit", limit, 1))
    k = np.arange(1, limit)
    tie = 1 + 1e-12  # equal values do not count as growth
    # f(k + 1) > f(k), cleared of denominators
    grows = a**k * (1 + cost * (k - 1)) > cost * geometric(a, k) * tie
    return limit if np.all(grows) else int(k[np.argmin(grows)])


def sd_tokens(alpha: Reals, gamma: Reals) -> Reals:
    """E N = G_(gamma+1): mean tokens per round of `gamma` >= 0 drafted tokens.

    P(N > i) = alpha^i for i <= gamma (Leviathan et al., eq. 1). Example: 3.68928 for
    alpha = 0.8, gamma = 5."""
    return as_float(
        geometric(probability("alpha", alpha), whole("gamma", gamma, 0) + 1)
    )


def sd_speedup(alpha: Reals, gamma: Reals, c: Reals) -> Reals:
    """G_(gamma+1) / (1 + gamma c): speedup of token-level speculation, at most 1 / (1 -
    alpha).

    A drafted token takes c target passes; a pass takes as long for gamma + 1 positions
    as for one (Leviathan et al., Theorem 3.8). Example: 2.45952 for alpha = 0.8, gamma
    = 5, c = 0.1."""
    return lr_sync_cycle_speedup(alpha, whole("gamma", gamma, 0), c)


def sd_speedup_of_positions(alpha2: Reals, k2: Reals, c2: Reals) -> Reals:
    """g(k2) = (1 - alpha2^k2) / ((1 - alpha2)(1 - c2 + c2 k2)): `sd_speedup` with k2 =
    gamma + 1.

    This is the paper's form (section 3.3, which prints c for c2 in the denominator).
    g(1) = 1."""
    return sd_speedup(alpha2, whole("k2", k2, 1) - 1, c2)
