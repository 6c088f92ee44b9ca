"""Asynchronous Lookahead Reasoning: draft, target and verifier work at the same time.

A *pair* is a draft step and the target's step for the same position. A *window* limits
how far the draft may run ahead of the verdicts. In the tables a target step takes 1 and
a draft step c, a draft step is accepted with probability a = alpha, and G_n = 1 + a +
... + a^(n-1):

    window   what may be in flight                  most target steps at once
    -------  -------------------------------------  -------------------------
    "paper"  k pairs that are not yet judged        min(k, ceil(1/c))
    "depth"  k draft steps that are not yet judged  min(k + 1, ceil(1/c))
    "cycle"  k target steps, then wait for all      min(k, ceil(1/c))
    none     everything                             ceil(1/c)

    window   speedup                                  holds for
    -------  ---------------------------------------  ---------
    "paper"  S_P = G_k / (1 + c (a G_k - k a^k))      k c < 1
    "depth"  S_D = G_n / (1 + c (a G_n - k a^n))      k c < 1; n = k + 1
    "cycle"  S_C = G_k / (1 + c (G_k - 1))            all k
    none     S_1 = 1 / (c + (1 - c) (1 - a))          also "paper" and "depth" where k c >= 1

If k c >= 1, the window never holds the draft up. For every sequence of verdicts

synchronous f(k) <= S_C(k) <= S_P(k) <= S_D(k) <= S_P(k + 1) <= S_1 <= min(1/(1-a), 1/c)

so asynchronous lookahead is never slower than plain decoding, and the best k is
ceil(1/c).

Derivation: draft and target restart together after each correction. This begins a
*stage*, which ends when a pair is rejected. For pair j = 0, 1, 2, ... the target starts
at t_j, the draft step is ready at d_j, and the verdict arrives at V_j. A verdict takes
v; d_j = V_j = 0 for j < 0:

    "paper"  t_j = max(d_(j-1), V_(j-k))    d_j = t_j + c
    "depth"  t_j = d_(j-1)                  d_j = max(d_(j-1), V_(j-k)) + c
    both     V_j = max(t_j + 1, d_j) + v

A stage that accepts X drafts emits X + 1 steps and takes V_X, so the speedup is E[X +
1] / E[V_X].

Assumptions: constant times, 0 <= c < 1, target steps that do not slow each other, a
verifier for every pair, instant cancellation, independent acceptance. If times vary,
the true speedup is lower.

Sources: S_P is S2 and S_1 is S1 of the paper's Theorem 2 (Appendices B, C). "depth" is
the rule of the official code. S_D and S_C are derived here. Two slips in the paper: k1
= gamma1 holds for "paper" only, and ParallelDim prints 1/c where 1/c1 is meant."""

from typing import Any, Literal

import numpy as np

from lr.theory.domain import (
    DomainError,
    Reals,
    as_float,
    checked_ratio,
    geometric,
    inside,
    nonnegative,
    probability,
    whole,
)

Window = Literal["paper", "depth", "cycle"]


def lr_async_limit(alpha: Reals, c: Reals, verifier_latency: Reals = 0.0) -> Reals:
    """S_1 = 1 / ((1+v)(1-alpha) + c alpha): no window, verifier latency v (Theorem 2,
    case 1).

    The latency counts once per rejection, not once per step. Needs k c >= 1 + v, and
    not alpha = 1 with c = 0 (infinite speedup). Example: 2.1739130435 for alpha = 0.6,
    c = 0.1."""
    a = probability("alpha", alpha)
    c = checked_ratio("c", c)
    v = nonnegative("verifier_latency", verifier_latency)
    time = (1 + v) * (1 - a) + c * a
    expected = "below 1 where c is 0: a free draft that never fails has no limit"
    inside(time > 0, "alpha", np.broadcast_to(a, time.shape), expected)
    return as_float(1 / time)


def lr_async_speedup(
    alpha: Reals,
    k: Reals,
    c: Reals,
    window: Window = "paper",
    verifier_latency: Reals = 0.0,
) -> Reals:
    """Speedup of a `window` of size k >= 1. The first table above says what k counts.

    A pair keeps its place in the window until it is judged. So with verifier latency v
    the unit of "paper" is 1 + v instead of 1: S_P(k; c/(1+v)) / (1+v) while k c < 1 +
    v, then `lr_async_limit`. The same holds for "depth" while v <= (k-1) c; for larger
    v no closed form is known. "cycle" adds v to each cycle. Examples for alpha = 0.6,
    k = 6, c = 0.1: 2.1375272644 ("paper"), 2.1523522309 ("depth"), 2.0937227673
    ("cycle")."""
    a, k, c, v = np.broadcast_arrays(
        probability("alpha", alpha),
        whole("k", k, 1),
        checked_ratio("c", c),
        nonnegative("verifier_latency", verifier_latency),
    )
    n: Any = target_steps(k, window)
    steps = geometric(a, n)
    if window == "cycle":
        return as_float(steps / (1 + v + c * (steps - 1)))
    unit = c / (1 + v)  # c in units of a target step with its verdict
    windowed = steps / (1 + unit * (a * steps - k * a**n)) / (1 + v)
    held = k * c < 1 + v  # the window holds the draft up
    if window == "depth":
        in_time = ~held | (v <= (k - 1) * c)
        expected = "at most (k - 1) c: no closed form is known beyond it"
        inside(in_time, "verifier_latency", v, expected)
    with np.errstate(divide="ignore"):  # alpha = 1 with c = 0 is always held
        return as_float(np.where(held, windowed, 1 / ((1 + v) * (1 - a) + c * a)))


def target_steps(k: Any, window: Window) -> Any:
    """The target steps in a full window: k + 1 for "depth", else k."""
    if window not in ("paper", "depth", "cycle"):
        raise DomainError("window", window, "paper, depth or cycle")
    return k + (window == "depth")


def async_parallelism(k: Reals, c: Reals, window: Window = "paper") -> Reals:
    """ParallelDim_f (the paper, section 3.3): the last column of the first table.

    If 1/c is a whole number, one target step ends exactly when the next begins."""
    k, c = np.broadcast_arrays(whole("k", k, 1), checked_ratio("c", c))
    with np.errstate(divide="ignore"):
        fitting = np.ceil(1 / np.asarray(c) - 1e-9)  # a c that is a rounded 1/n is 1/n
    return as_float(np.minimum(target_steps(k, window), fitting))


def stage_times(
    window: Window, k: int, c: float, length: int, verifier_latency: float = 0.0
) -> np.ndarray:
    """V_0, ..., V_(length-1) [length]: how long a stage lasts with X = 0, 1, ...
    accepted drafts.

    Example, c = 0.2, k = 3: "paper" 1, 1.2, 1.4, 2, 2.2, 2.4, 3; "depth" 1, 1.2, 1.4,
    1.6, 2.2. c may be 1 or more. "cycle" has no such stages."""
    if window not in ("paper", "depth"):
        raise DomainError("window", window, "paper or depth")
    k = int(whole("k", k, 1))
    n = int(whole("length", length, 1))
    c = float(nonnegative("c", c))
    v = float(nonnegative("verifier_latency", verifier_latency))
    judged: list[float] = []  # V_0, V_1, ...
    ready = 0.0  # d_(j-1)
    for j in range(n):
        # the draft may go on: the window has room
        free = max(ready, judged[j - k] if j >= k else 0.0)
        start = free if window == "paper" else ready
        ready = free + c
        judged.append(max(start + 1, ready) + v)  # V_j
    times: np.ndarray = np.array(judged)
    return times
