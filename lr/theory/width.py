"""Several alternatives per position: what acceptance they buy, and what their rows cost.

With W alternatives a position is accepted if any of them is aligned; the chain goes on below the
accepted one, so alpha_W takes the place of alpha in every formula. Independent alternatives: 1 - (1
- alpha)^W. But alternatives are alike: a position is easy or hard for all of them. If its
acceptance rate is drawn from Beta(p, q), alpha_W = 1 - prod over i < W of (q + i) / (p + q + i),
which is E[1 - (1 - A)^W]. The paper's Table 3 shows strong correlation (`lr/theory/tables.py`).

Rows: the target writes one step per draft prefix, N = 1 + W + ... + W^g in a cycle of depth g. A
batch of n rows takes 1 + b (n - 1) times as long as one. Source: the paper, section 3.1 (no formula
there); THEORY 2d. Read next: `hybrid.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lr.theory.domain import Reals, geometric, nonnegative, plain, positive, probability, whole


def width_acceptance(alpha: Reals, width: Reals) -> Reals:
    """1 - (1 - alpha)^W: some of W >= 1 independent alternatives is accepted. Raises
    `DomainError`.
    """
    return plain(1 - (1 - probability("alpha", alpha)) ** whole("width", width, 1))


def beta_width_acceptance(p: Reals, q: Reals, width: Reals) -> Reals:
    """1 - prod over i < W of (q + i) / (p + q + i): the same for alternatives that share a rate
    drawn from Beta(p, q).

    W = 1 gives the mean p / (p + q); p, q -> infinity with p / (p + q) = alpha are independent
    alternatives, p, q -> 0 equal ones. Example: Beta(0.35, 0.20): 0.636, 0.718, 0.781 for W = 1, 2,
    4. Raises `DomainError`.
    """
    p, q, w = np.broadcast_arrays(positive("p", p), positive("q", q), whole("width", width, 1))
    failing: Any = np.ones(w.shape)
    for i in range(int(w.max(initial=0))):
        failing = np.where(i < w, failing * (q + i) / (p + q + i), failing)
    return plain(1 - failing)


def tree_rows(width: Reals, draft_steps: Reals) -> Reals:
    """N = 1 + W + ... + W^g: target steps of a synchronous cycle, one per draft prefix. Example: W
    2, g 2: 7.
    """
    w, g = np.broadcast_arrays(whole("width", width, 1), whole("draft_steps", draft_steps, 0))
    return plain(sum(np.where(j <= g, w**j, 0) for j in range(int(g.max(initial=0)) + 1)))


def tree_cycle_time(
    width: int, draft_steps: int, c: Reals, batch_overhead: Reals = 0.0, draft_overhead: Reals = 0.0
) -> Reals:
    """sum over j = 1..g of c (1 + b_d (W^j - 1)) + 1 + b (N - 1): a synchronous cycle, level after
    level in one draft batch each."""
    w, g = int(whole("width", width, 1)), int(whole("draft_steps", draft_steps, 0))
    c, b, b_d = (
        nonnegative("c", c),
        nonnegative("batch_overhead", batch_overhead),
        nonnegative("draft_overhead", draft_overhead),
    )
    drafting = sum(c * (1 + b_d * (w**j - 1)) for j in range(1, g + 1))
    return plain(drafting + 1 + b * (tree_rows(w, g) - 1))


def tree_sync_speedup(
    alpha_w: Reals,
    width: int,
    draft_steps: int,
    c: Reals,
    batch_overhead: Reals = 0.0,
    draft_overhead: Reals = 0.0,
) -> Reals:
    """G_{g+1}(alpha_W) / `tree_cycle_time`: convention B with W alternatives, alpha_W being the
    rate at which *some* alternative is accepted.

    Example: alpha 0.5, so alpha_2 = 0.75; W 2, g 2, c 0.1, b 0.01, b_d 0.02: 1.8237381703. Raises
    `DomainError`.
    """
    steps = geometric(probability("alpha_w", alpha_w), whole("draft_steps", draft_steps, 0) + 1)
    return plain(steps / tree_cycle_time(width, draft_steps, c, batch_overhead, draft_overhead))


def width_pays_sync(
    alpha: Reals,
    alpha_w: Reals,
    width: int,
    draft_steps: int,
    c: Reals,
    batch_overhead: Reals = 0.0,
    draft_overhead: Reals = 0.0,
) -> Any:
    """Whether W alternatives beat one: G_{g+1}(alpha_W) / G_{g+1}(alpha) exceeds the ratio of the
    cycle times. Always where batches are free."""
    overheads = batch_overhead, draft_overhead
    return tree_sync_speedup(alpha_w, width, draft_steps, c, *overheads) > tree_sync_speedup(
        alpha, 1, draft_steps, c, *overheads
    )


def width_pays_async(
    alpha: Reals, alpha_w: Reals, c: Reals, target_cost: Reals, draft_cost: Reals
) -> Any:
    """Whether W alternatives beat one without a window: u_W (1 - alpha_W) + c_W alpha_W < (1 -
    alpha) + c alpha.

    `target_cost` u_W and `draft_cost` c_W: time of a target and of a draft step in the wider batch,
    in target steps alone.
    """
    a, a_w = probability("alpha", alpha), probability("alpha_w", alpha_w)
    wide = (
        positive("target_cost", target_cost) * (1 - a_w)
        + nonnegative("draft_cost", draft_cost) * a_w
    )
    return plain(wide < (1 - a) + nonnegative("c", c) * a)
