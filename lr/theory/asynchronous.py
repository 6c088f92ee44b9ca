"""Asynchronous Lookahead Reasoning: draft, target and verifier work at the same time.

Four rules say how far the draft may run ahead. With T = 1, a = alpha and G_n as in `domain.py`:

    window  rule                               target steps in flight  speedup
    ------  ---------------------------------  ----------------------  ----------------------------
    paper   P: k pairs in flight (Appendix B)  min(k, ceil(1/c))       G_k / (1 + c (a G_k - k a^k))
    depth   D: k unverified drafts (official   min(k+1, ceil(1/c))     G_K / (1 + c (a G_K - k a^K))
               code)                                                   with K = k + 1
    cycle   C: asynchronous inside a cycle of  k                       G_k / (1 + c (G_k - 1))
               k target steps, then a barrier
    none    no window (k c >= 1)               ceil(1/c)               1 / (c + (1-c) (1-a))

"paper" is the printed S2(k), "none" the printed S1 (Theorem 2). P and D become "none" where
k c >= 1: the draft is then never held up. For every sequence of verdicts,

    f_sync(k) <= C(k) <= P(k) <= D(k) <= P(k+1) <= none <= min(1/(1-a), 1/c)

so asynchronous lookahead is never below 1 and the best k is ceil(1/c). As a -> 1 the limits are
k (P), (k+1)/(1+c) (D) and 1/c (none).

The formulas solve three recurrences. A stage begins at a corrected step, with draft and target
starting at once, and ends when the first rejected pair is judged. For pair j = 0, 1, ...: tau_j is
when the target begins s_j, d_j when the draft step is ready, V_j when the pair is judged:

    paper   tau_j = max(d_(j-1), V_(j-k))    d_j = tau_j + c
    depth   tau_j = d_(j-1)                  d_j = max(d_(j-1), V_(j-k)) + c
    both    V_j = max(tau_j + 1, d_j) + v    d_(-1) = V_(-i) = 0

If X drafts are accepted, the stage emits X + 1 steps in time V_X: speedup = E[X + 1] / E V_X.

Assumptions: constant times, 0 <= c < 1, every target row at full speed, as many verifiers as
needed, instant cancellation, independent acceptance. Random times make all formulas optimistic.
Sources: the paper, Theorem 2 and Appendices B and C; D and C are derived here from the recurrences.
Slips in the paper: k1 = gamma1 holds for P only; ParallelDim prints 1/c for 1/c1.
"""

from __future__ import annotations

from typing import Any, Literal

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

Window = Literal["paper", "depth", "cycle"]
WINDOWS = ("paper", "depth", "cycle")


def lr_async_limit(alpha: Reals, c: Reals, verifier_latency: Reals = 0.0) -> Reals:
    """S1 = 1 / ((1+v)(1-alpha) + c alpha): no window, verifier latency v (Theorem 2, case 1).

    The latency counts once per rejection, not once per step. It needs k c >= 1 + v. Example: alpha
    0.6, c 0.1: 2.1739130435. Raises `DomainError`, also for alpha = 1 with c = 0 (infinite).
    """
    a, c = probability("alpha", alpha), ratio("c", c)
    v = nonnegative("verifier_latency", verifier_latency)
    time = (1 + v) * (1 - a) + c * a
    expected = "below 1 where c is 0: a free draft that never fails has no limit"
    inside(time > 0, "alpha", np.broadcast_to(a, time.shape), expected)
    return plain(1 / time)


def lr_async_speedup(
    alpha: Reals, k: Reals, c: Reals, window: Window = "paper", verifier_latency: Reals = 0.0
) -> Reals:
    """Speedup of a `window` of k >= 1, which counts what the table above says.

    Verifier latency v keeps a slot occupied, so for "paper" the unit grows from 1 to 1 + v:
    S2(k; c/(1+v)) / (1+v) while k c < 1 + v, then `lr_async_limit`. "depth" likewise with its own
    formula while v <= (k-1) c; for larger v drafts are late, no closed form is known and the
    recurrence is summed. "cycle" adds v to each cycle. Examples: alpha 0.6, k 6, c 0.1:
    2.1375272644 ("paper"), 2.1523522309 ("depth"), 2.0937227673 ("cycle"). Raises `DomainError`.
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
    n: Any = k + (window == "depth")  # target steps per period of the window; it writes k drafts
    unit = c / (1 + v)
    steps = geometric(a, n)
    windowed = steps / (1 + unit * (a * steps - k * a**n)) / (1 + v)
    held = k * c < 1 + v  # the window holds the draft up
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


def async_parallelism(k: Reals, c: Reals, window: Window = "paper") -> Reals:
    """ParallelDim_f: most target steps in flight, min(k, ceil(1/c)); "depth": min(k+1, ceil(1/c)).

    Where 1/c is whole, one target step ends as the next begins. Source: the paper, section 3.3.
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
    """(target steps begun, target time used) per stage without a window; needs alpha < 1, c > 0.

    With m = ceil(1/c): alpha/(1-alpha) + m steps, and alpha/(1-alpha) + m - c m (m-1)/2 time,
    because cancelled steps stop early. Times (1 - alpha) they are per emitted step.
    """
    a, c = probability("alpha", alpha), ratio("c", c)
    inside(a < 1, "alpha", a, "a probability below 1")
    inside(c > 0, "c", c, "a ratio in (0, 1)")
    m = ceil_inverse(c)
    begun = a / (1 - a) + m
    return plain(begun), plain(begun - c * m * (m - 1) / 2)


def judge_latency_that_pays(alpha: Reals, c: Reals) -> Reals:
    """alpha (1-c) / (1-alpha): below this verifier latency `lr_async_limit` is above 1."""
    a, c = probability("alpha", alpha), ratio("c", c)
    inside(a < 1, "alpha", a, "a probability below 1")
    return plain(a * (1 - c) / (1 - a))


def crowded_step_time(batch_overhead: Reals, c: Reals) -> Reals:
    """T' = (1-b) / (1-b/c): time of a target step when n rows slow each other by 1 + b (n - 1).

    Steady state of an unbounded window, all drafts accepted: n = T'/c rows and T' = 1 + b (n - 1).
    From b = c on, the batch grows for ever: use a window. 0 <= b < c, or `DomainError`.
    """
    b, c = np.broadcast_arrays(nonnegative("batch_overhead", batch_overhead), ratio("c", c))
    inside(b < c, "batch_overhead", b, "less than c, or the batch grows for ever")
    return plain((1 - b) / (1 - b / c))


def stage_times(
    window: Window, k: int, c: float, length: int, verifier_latency: float = 0.0
) -> np.ndarray:
    """V_0, ..., V_(length-1) [length]: how long a stage lasts with X = 0, 1, ... accepted drafts.

    Example, c = 0.2, k = 3: "paper" 1, 1.2, 1.4, 2, 2.2, 2.4, 3; "depth" 1, 1.2, 1.4, 1.6, 2.2.
    c may be 1 or more. Raises `DomainError`; "cycle" has no such stage.
    """
    if window not in ("paper", "depth"):
        raise DomainError("window", window, "paper or depth")
    k, n = int(whole("k", k, 1)), int(whole("length", length, 1))
    c, v = float(nonnegative("c", c)), float(nonnegative("verifier_latency", verifier_latency))
    judged = np.zeros(n)
    ready = 0.0
    for j in range(n):
        slot = judged[j - k] if j >= k else 0.0
        start = max(ready, slot) if window == "paper" else ready
        ready = max(ready, slot) + c
        judged[j] = max(start + 1, ready) + v
    return judged


def speedup_of_stages(alpha: float, times: np.ndarray) -> float:
    """E[X + 1] / E V_X for stage times V_0, V_1, ... [n] and alpha < 1.

    E V_X = sum of (V_j - V_(j-1)) alpha^j. Stages longer than n (probability alpha^n) are taken to
    last V_(n-1).
    """
    a = float(probability("alpha", alpha))
    inside(np.asarray(a < 1), "alpha", np.asarray(a), "a probability below 1: stages must end")
    gains = np.diff(times, prepend=0.0)
    return float(1 / (1 - a) / np.sum(gains * a ** np.arange(len(times))))


def recurrence_speedup(
    window: Window, alpha: float, k: int, c: float, verifier_latency: float = 0.0
) -> float:
    """The speedup summed over the recurrence: exact to 1e-12 for every c and v.

    alpha = 1: steps per time over whole periods of the window. Raises `DomainError` for alpha
    between 0.9997 and 1, where stages are too long to sum.
    """
    a, k = float(probability("alpha", alpha)), int(whole("k", k, 1))
    if a == 1:
        # "paper" repeats after k steps, "depth" after k + 1, or after k if drafts are late
        period = k * (k + 1)
        times = stage_times(window, k, c, 4 * period + 1, verifier_latency)
        return float(period / (times[-1] - times[-1 - period]))
    inside(np.asarray(a <= 0.9997), "alpha", np.asarray(a), "at most 0.9997, or exactly 1")
    length = 2 if a == 0 else 2 + int(np.ceil(-36.0 / np.log(a)))
    return speedup_of_stages(a, stage_times(window, k, c, length, verifier_latency))
