"""Steps and tokens together: the product of both speedups, and the best split of a budget of M rows
between them.

k1 target steps in flight, each writing k2 positions per pass, fill the machine: ParallelDim_f(k1) *
k2 <= M. ParallelDim_f is k1 for the synchronous f and min(ceil(1/c1), k1) for the asynchronous one,
`paper` window. k1 = 1 is token-level speculation alone, k2 = 1 lookahead alone.

h(k1, k2) = f(k1) g(k2) is true where draft *and* target write their steps with the inner
speculation, so that c1 stays; if only the target does, c1 grows by g: h = g f(k1; c1 g). With
random token acceptance a synchronous cycle waits for its slowest row: less than the product.
Assumptions: those of f and g. Source: the paper, section 3.3; THEORY 2f. Slips: the paper's k1 =
gamma1 (for the synchronous f the number of drafts is k1 - 1). Read next: `theorems.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lr.theory.asynchronous import async_parallelism, lr_async_speedup
from lr.theory.domain import DomainError, Reals, nonnegative, plain, probability, ratio, whole
from lr.theory.synchronous import lr_sync_speedup
from lr.theory.token_level import sd_speedup_of_positions

Kind = Literal["sync", "async"]
Inner = Literal["both", "target"]


def step_speedup(alpha1: Reals, k1: Reals, c1: Reals, schedule: Kind) -> Reals:
    """f(k1): the printed f_sync, or the asynchronous S1 and S2 (`paper` window), k1 >= 1 target
    steps in flight. Raises `DomainError`.

    With c1 >= 1 the asynchronous formula has no meaning; k1 = 1 is plain decoding even there.
    """
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
    schedule: Kind = "sync",
    inner: Inner = "both",
) -> Reals:
    """h(k1, k2) = f(k1) g(k2); k1 >= 1 target steps in flight, k2 >= 1 positions per pass.

    `inner` "target": only the target's steps are made faster by speculation, h = g f(k1; c1 g);
    where c1 g reaches 1 the asynchronous f is outside of its domain. Example, async: alpha1 =
    alpha2 = 0.6, c1 = 0.2, c2 = 0.1, k1 = k2 = 4: 3.1468492801. Raises `DomainError`.
    """
    if inner not in ("both", "target"):
        raise DomainError("inner", inner, "both or target")
    tokens = sd_speedup_of_positions(alpha2, k2, c2)
    c = nonnegative("c1", c1) * (tokens if inner == "target" else 1.0)
    return plain(tokens * step_speedup(alpha1, k1, c, schedule))


@dataclass(frozen=True)
class Split:
    """The best use of a budget of M rows. `k1` target steps in flight, `k2` positions per pass; of
    equal ones the smallest k1, then k2."""

    k1: int
    k2: int
    speedup: float
    token_only_k2: int
    token_only_speedup: float
    """k1 = 1: token-level speculation alone, at its best."""
    step_only_k1: int
    step_only_speedup: float
    """k2 = 1: Lookahead Reasoning alone, at its best."""

    @property
    def hybrid_wins(self) -> bool:
        """Whether both together are strictly better than each alone."""
        return self.k1 > 1 and self.k2 > 1


def best_split(
    alpha1: float, alpha2: float, c1: float, c2: float, budget: int, schedule: Kind = "sync"
) -> Split:
    """The integers k1, k2 >= 1 with ParallelDim_f(k1) k2 <= budget that maximise h, by trying all
    of them.

    Beyond k1 = ceil(1/c1) the asynchronous f is constant, so larger k1 are not tried. Example,
    async, alpha1 = alpha2 = 0.6, c1 = 0.2, c2 = 0.1, budget 16: (4, 4) 3.1468492801, token only
    1.6738461538, step only 1.9230769231. Raises `DomainError`.
    """
    m = int(whole("budget", budget, 1))
    if schedule not in ("sync", "async"):
        raise DomainError("schedule", schedule, "sync or async")
    probability("alpha1", alpha1)
    k = np.arange(1, m + 1)
    f = np.asarray(step_speedup(alpha1, k, c1, schedule))
    g = np.asarray(sd_speedup_of_positions(alpha2, k, c2))
    parallel: Any = async_parallelism(k, ratio("c1", c1)) if schedule == "async" else k
    h = np.where(parallel[:, None] * k[None, :] <= m, f[:, None] * g[None, :], -np.inf)
    h = np.round(h, 13)  # equal ones are equal: of k1 beyond ceil(1/c1) the first is taken
    i, j = np.unravel_index(int(np.argmax(h)), h.shape)
    tokens, steps = int(np.argmax(h[0])), int(np.argmax(h[:, 0]))
    return Split(
        *(int(i) + 1, int(j) + 1, float(f[i] * g[j])),
        *(tokens + 1, float(f[0] * g[tokens])),
        *(steps + 1, float(f[steps] * g[0])),
    )
