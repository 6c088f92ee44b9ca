"""Asynchronous Lookahead Reasoning: draft, target and judge at work at once, a window that slides.
Four rules, each with its formula.

    window   rule                                            parallel target steps    with T = 1, a = alpha, G_n = 1 + a +
    ... + a^(n-1) paper    P: k pairs in flight (Appendix B)               min(k, ceil(1/c))        G_k / (1 + c (a G_k - k
    a^k))            (printed S2) depth    D: D = k unverified drafts (official code)      min(D + 1, ceil(1/c))    G_K / (1
    + c (a G_K - (K-1) a^K)), K = D + 1 cycle    C: asynchronous inside a cycle of k, barrier    k                        G_k
    / (1 + c (G_k - 1)) none     no window: k c >= 1                             ceil(1/c)                1 / (c +
    (1-c)(1-a))                     (printed S1)

P and D become "none" where k c >= 1 (D c >= 1): a draft step is then never held up. The order, step
by step of the same chain: f_sync(k) <= C(k) <= P(k) <= D(k) <= P(k+1) <= none <= min(1/(1-a), 1/c),
so asynchronous lookahead is never below 1 and the best k is ceil(1/c). With 1 - a -> 0 they tend to
k (P), (D+1)/(1+c) (D) and 1/c (none).

Assumptions: constant times, 0 <= c < 1, every target row at full speed, as many judges as needed,
cancellation at once, independent acceptance. Random times make all of them optimistic. Source: the
paper, Theorem 2 and Appendices B and C; D and C: THEORY 2c. Slips: the text's k1 = gamma1 is true
for P only; ParallelDim prints 1/c for 1/c1. Read next: `recurrence.py` for what they are solutions
of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lr.theory.domain import (
    DomainError,
    Reals,
    geometric,
    inside,
    nonnegative,
    plain,
    probability,
    ratio,
    whole,
)
from lr.theory.recurrence import Window, recurrence_speedup

WINDOWS = ("paper", "depth", "cycle")


def lr_async_limit(alpha: Reals, c: Reals, verifier_latency: Reals = 0.0) -> Reals:
    """S1 = 1 / (c + (1-c)(1-alpha)), no window; with judge latency v: 1 / ((1+v)(1-alpha) + c
    alpha).

    A verdict is waited for once per rejection, not once per step. Source: Theorem 2, case k >=
    ceil(1/c); v: THEORY 2e (needs k c >= 1 + v). Example: alpha 0.6, c 0.1: 2.1739130435. alpha = 1
    with c = 0 is infinite and refused. Raises `DomainError`.
    """
    a, c, v = (
        probability("alpha", alpha),
        ratio("c", c),
        nonnegative("verifier_latency", verifier_latency),
    )
    time = (1 + v) * (1 - a) + c * a
    inside(
        time > 0,
        "alpha",
        np.broadcast_to(a, time.shape),
        "below 1 where c is 0: a free draft that never fails has no limit",
    )
    return plain(1 / time)


def lr_async_speedup(
    alpha: Reals, k: Reals, c: Reals, window: Window = "paper", verifier_latency: Reals = 0.0
) -> Reals:
    """The speedup of the rule `window` with k >= 1 (pairs, unverified drafts, or target steps per
    cycle; see the table above).

    Judge latency v holds a slot until the verdict is there, which for "paper" stretches the unit
    from 1 to 1 + v: S2(k; c/(1+v)) / (1+v) for k c < 1 + v and `lr_async_limit` from there on.
    "depth": the same with its own formula where v <= (D-1) c; beyond, drafts are late, no closed
    form is known and the recurrence is summed (exact, slower). "cycle": the latency is added to
    each cycle (THEORY 2e). Examples: alpha 0.6, k 6, c 0.1: 2.1375272644, 2.1523522309 ("depth"),
    2.0937227673 ("cycle"). Raises `DomainError`.
    """
    if window not in WINDOWS:
        raise DomainError("window", window, ", ".join(WINDOWS))
    a, k, c, v = np.broadcast_arrays(
        probability("alpha", alpha),
        whole("k", k, 1),
        ratio("c", c),
        nonnegative("verifier_latency", verifier_latency),
    )
    if window == "cycle":
        steps = geometric(a, k)
        return plain(steps / (1 + v + c * (steps - 1)))
    held = k * c < 1 + v  # the window holds the draft up
    windowed = _windowed(a, k + (window == "depth"), c / (1 + v), k) / (1 + v)
    free = ~held & ((a < 1) | (c > 0))
    limit: Any = lr_async_limit(
        np.where(free, a, 0.0), np.where(free, c, 0.5), np.where(free, v, 0.0)
    )
    speedup: np.ndarray = np.array(np.where(held, windowed, limit))
    if window == "depth":
        late = held & (v > (k - 1) * c)
        cases: Any = zip(*(np.asarray(x)[late] for x in (a, k, c, v)), strict=True)
        speedup[late] = [recurrence_speedup("depth", *case) for case in cases]
    return plain(speedup)


def _windowed(a: Any, n: Any, c: Any, k: Any) -> Any:
    """G_n / (1 + c (a G_n - k a^n)): both windows that hold the draft up, n target steps and k
    drafts to a period.
    """
    steps = geometric(a, n)
    return steps / (1 + c * (a * steps - k * a**n))


def async_parallelism(k: Reals, c: Reals, window: Window = "paper") -> Reals:
    """ParallelDim_f: the most target steps ever in flight: min(k, ceil(1/c)), "depth" min(k + 1,
    ceil(1/c)), "cycle" like "paper".

    Where 1/c is a whole number one target step ends as the next begins. Source: the paper, section
    3.3 (which prints 1/c for 1/c1); "depth": THEORY 2c. Raises `DomainError`.
    """
    if window not in WINDOWS:
        raise DomainError("window", window, ", ".join(WINDOWS))
    k, c = np.broadcast_arrays(whole("k", k, 1), ratio("c", c))
    return plain(np.minimum(k + (window == "depth"), ceil_inverse(c)))


def ceil_inverse(c: Any) -> Any:
    """ceil(1/c), infinite for c = 0. A c that is a rounded 1/n counts as 1/n."""
    with np.errstate(divide="ignore"):
        return np.ceil(1 / np.asarray(c) - 1e-9)


def async_work(alpha: Reals, c: Reals) -> tuple[Reals, Reals]:
    """(target steps begun, target time used) per stage without a window; times (1 - alpha) they are
    per emitted step.

    With m = ceil(1/c): alpha/(1-alpha) + m, and alpha/(1-alpha) + m - c m (m-1)/2, for what is
    cancelled is cut. alpha < 1, c > 0. THEORY 2c.
    """
    a, c = probability("alpha", alpha), ratio("c", c)
    inside(a < 1, "alpha", a, "a probability below 1")
    inside(c > 0, "c", c, "a ratio in (0, 1)")
    m = ceil_inverse(c)
    begun = a / (1 - a) + m
    return plain(begun), plain(begun - c * m * (m - 1) / 2)


def judge_latency_that_pays(alpha: Reals, c: Reals) -> Reals:
    """alpha (1-c) / (1-alpha): below this judge latency asynchronous lookahead without a window
    beats plain decoding. alpha < 1. THEORY 2e."""
    a, c = probability("alpha", alpha), ratio("c", c)
    inside(a < 1, "alpha", a, "a probability below 1")
    return plain(a * (1 - c) / (1 - a))


def crowded_step_time(batch_overhead: Reals, c: Reals) -> Reals:
    """T' = (1-b) / (1-b/c): a target step in the steady crowd of an unbounded window, all drafts
    accepted, n rows slowing each other 1 + b(n-1)-fold.

    n = T'/c rows, and T' = 1 + b (n-1). From b = c on the crowd grows for ever: use a window. Fluid
    limit, THEORY 2e. 0 <= b < c. `DomainError`.
    """
    b, c = np.broadcast_arrays(nonnegative("batch_overhead", batch_overhead), ratio("c", c))
    inside(b < c, "batch_overhead", b, "less than c, or the crowd grows for ever")
    return plain((1 - b) / (1 - b / c))
