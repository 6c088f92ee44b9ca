"""What the acceptance rate alpha depends on: alternatives per position, and errors of
the verifier.

*Alternatives.* With W drafts per position, a position is accepted if any draft is. Then alpha_W
replaces alpha in every formula:

    independent    alpha_W = 1 - (1 - alpha)^W
    correlated     alpha_W = 1 - product over i < W of (q + i) / (p + q + i)

In the correlated case the rate A of a position is drawn from Beta(p, q), so that some
positions are easy for all alternatives, and alpha_W = E[1 - (1 - A)^W]. The paper's
Table 3 shows strong correlation (`scripts/paper_tables.py`). A synchronous cycle of depth g has N = 1
+ W + ... + W^g target rows.

*Errors.* A draft step is equivalent to the target's with probability p. The verifier rejects an
equivalent step with probability fr and accepts a different step with probability fa:

    alpha = p (1 - fr) + (1 - p) fa        wrong steps in the output: (1 - p) fa

False rejections only cost speed; false acceptances change the output. Source: the
paper, section 3.1, which describes alternatives without a formula and assumes a free
and correct verifier."""

from typing import Any

import numpy as np

from lr.theory.domain import (
    Reals,
    as_float,
    geometric,
    nonnegative,
    positive,
    probability,
    whole,
)


def width_acceptance(alpha: Reals, width: Reals) -> Reals:
    """1 - (1 - alpha)^W: one of W >= 1 independent alternatives is accepted."""
    return as_float(1 - (1 - probability("alpha", alpha)) ** whole("width", width, 1))


def beta_width_acceptance(p: Reals, q: Reals, width: Reals) -> Reals:
    """1 - product over i < W of (q + i) / (p + q + i): alternatives share a rate from
    Beta(p, q).

    W = 1 gives p / (p + q). Large p and q make alternatives independent, small ones
    make them alike. Example: 0.636, 0.718, 0.781 for W = 1, 2, 4 and Beta(0.35,
    0.20)."""
    p, q, w = np.broadcast_arrays(
        positive("p", p), positive("q", q), whole("width", width, 1)
    )
    failing: Any = np.ones(w.shape)  # P(all so far are rejected)
    for i in range(int(w.max(initial=0))):
        failing = np.where(i < w, failing * (q + i) / (p + q + i), failing)
    return as_float(1 - failing)


def tree_rows(width: Reals, draft_steps: Reals) -> Reals:
    """N = 1 + W + ... + W^g: target rows of a synchronous cycle. Example: 7 for W = 2,
    g = 2."""
    w, g = np.broadcast_arrays(
        whole("width", width, 1), whole("draft_steps", draft_steps, 0)
    )
    return as_float(
        sum(np.where(j <= g, w**j, 0) for j in range(int(g.max(initial=0)) + 1))
    )


def tree_sync_speedup(
    alpha_w: Reals,
    width: int,
    draft_steps: int,
    c: Reals,
    batch_overhead: Reals = 0.0,
    draft_overhead: Reals = 0.0,
) -> Reals:
    """G_(g+1)(alpha_W) / cycle time: speedup in convention B with W alternatives.

    A cycle takes c (1 + b_d (W^j - 1)), summed over its levels j = 1..g, plus
    1 + b (N - 1). Each level is one draft batch. A further row costs b_d =
    `draft_overhead` of a draft step in a draft batch and b = `batch_overhead` of a
    target step in the target batch. Example: 1.8237381703 for alpha_2 = 0.75, W = 2,
    g = 2, c = 0.1, b = 0.01, b_d = 0.02."""
    w = int(whole("width", width, 1))
    g = int(whole("draft_steps", draft_steps, 0))
    b = nonnegative("batch_overhead", batch_overhead)
    b_d = nonnegative("draft_overhead", draft_overhead)
    # w^j draft rows at level j
    levels = sum(1 + b_d * (w**j - 1) for j in range(1, g + 1))
    time = nonnegative("c", c) * levels + 1 + b * (tree_rows(w, g) - 1)
    return as_float(geometric(probability("alpha_w", alpha_w), g + 1) / time)


def judged_acceptance(p: Reals, false_reject: Reals, false_accept: Reals) -> Reals:
    """alpha = p (1 - fr) + (1 - p) fa. Example: 0.65 for p = 0.7, fr = 0.2, fa =
    0.3."""
    p = probability("p", p)
    fr = probability("false_reject", false_reject)
    return as_float(p * (1 - fr) + (1 - p) * probability("false_accept", false_accept))


def wrong_share(p: Reals, false_accept: Reals) -> Reals:
    """(1 - p) fa: share of wrong steps in asynchronous schedules, which judge every
    position."""
    return as_float(
        (1 - probability("p", p)) * probability("false_accept", false_accept)
    )
