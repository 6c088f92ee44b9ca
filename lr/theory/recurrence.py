"""The exact times of an asynchronous stage, for every window, draft speed and judge latency: three
recurrences.

A stage begins at a corrected step, with draft and target starting at once, and lasts until the
first rejected pair is judged. For the pair number j = 0, 1, ...: tau_j is when the target begins
s_j, d_j when the draft's version is ready, V_j when the pair is judged.

    paper, k pairs in flight         tau_j = max(d_{j-1}, V_{j-k})     d_j = tau_j + c
    depth, D unverified drafts       tau_j = d_{j-1}                   d_j = max(d_{j-1}, V_{j-D}) + c
    both                             V_j = max(tau_j + 1, d_j) + v

with d_{-1} = 0 and V_{-i} = 0. If X drafts are accepted, X + 1 steps come out of V_X units of time,
so the speedup of any of these rules is E[X + 1] / E V_X.

Assumptions: constant times, target rows at full speed, as many judges as needed, cancellation at
once. Source: the paper, Appendix B (k pairs); the official code (D drafts); THEORY 2c. Read next:
`asynchronous.py`, which solves them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lr.theory.domain import DomainError, inside, nonnegative, probability, whole

Window = Literal["paper", "depth", "cycle"]


def stage_times(
    window: Window, k: int, c: float, length: int, verifier_latency: float = 0.0
) -> np.ndarray:
    """V_0, ..., V_{length-1} [length], in units of a target step: how long a stage lasts in which X
    = 0, 1, ... drafts are accepted.

    `k` is the k of "paper" or the D of "depth". Example, c = 0.2, k = 3: "paper" 1, 1.2, 1.4, 2,
    2.2, 2.4, 3; "depth" 1, 1.2, 1.4, 1.6, 2.2. c may be 1 or more (the draft then sets the pace).
    Raises `DomainError`; "cycle" has a barrier and no such stage.
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
        ready = (start if window == "paper" else max(ready, slot)) + c
        judged[j] = max(start + 1, ready) + v
    return judged


def speedup_of_stages(alpha: float, times: np.ndarray) -> float:
    """E[X + 1] / E V_X for stage times V_0, V_1, ... [n] and alpha < 1.

    E V_X is the sum of (V_j - V_{j-1}) P(X >= j). Stages longer than n have probability alpha^n and
    are taken to last V_{n-1}: choose n so that it does not matter.
    """
    a = float(probability("alpha", alpha))
    inside(np.asarray(a < 1), "alpha", np.asarray(a), "a probability below 1: stages must end")
    gains = np.diff(times, prepend=0.0)
    return float(1 / (1 - a) / np.sum(gains * a ** np.arange(len(times))))


def recurrence_speedup(
    window: Window, alpha: float, k: int, c: float, verifier_latency: float = 0.0
) -> float:
    """The speedup by summing over the recurrence: exact to 1e-12 for every c and v, also where no
    closed form is known.

    alpha = 1: steps per time in the long run, over whole periods of the window. Between 0.9997 and
    1 stages are too long to sum over. Raises `DomainError`.
    """
    a, k = float(probability("alpha", alpha)), int(whole("k", k, 1))
    if a == 1:
        period = (
            k * (k + 1)
        )  # the pattern of "paper" repeats after k steps, that of "depth" after k + 1 or, with late drafts, k
        times = stage_times(window, k, c, 4 * period + 1, verifier_latency)
        return float(period / (times[-1] - times[-1 - period]))
    inside(
        np.asarray(a <= 0.9997),
        "alpha",
        np.asarray(a),
        "at most 0.9997, or 1: longer stages are not summed over",
    )
    length = 2 if a == 0 else 2 + int(np.ceil(-36.0 / np.log(a)))
    return speedup_of_stages(a, stage_times(window, k, c, length, verifier_latency))
