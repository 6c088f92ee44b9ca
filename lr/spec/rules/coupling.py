"""How often two samples agree: with noise of their own, with shared noise, and at best. Closed
forms, all in [v] tensors.

`sampling.sample` takes argmax(log p + g) with Gumbel noise g keyed by the token. Write E = exp(-g),
an exponential number of rate 1: the sample is the token whose E_y / p_y is smallest, the winner of
a race. With the same noise the target picks the winner of E_y / p_y and the draft that of E_y /
q_y. Both pick x iff every other y loses both races, E_y > E_x m_y with m_y = max(p_y / p_x, q_y /
q_x). Given E_x = e that has probability exp(-e * sum over y != x of m_y); averaged over e with
density exp(-e), and with m_x = 1,

    P(both = x) = 1 / sum over y of max(p_y / p_x, q_y / q_x).

Each m_y is at most max(p_y, q_y) / min(p_x, q_x), so P(both = x) >= min(p_x, q_x) / sum of max(p,
q), and summed over x, with TV = sum of |p - q| / 2: P(agree) >= (1 - TV) / (1 + TV). No coupling at
all can do better than 1 - TV, and none whose two sides do not know each other's distribution can
promise more than the bound (Daliri, Musco and Suresh, arXiv 2408.07978).
"""

from __future__ import annotations

import torch
from torch import Tensor


def shared_noise_agreement(p: Tensor, q: Tensor) -> Tensor:
    """For each token x, the probability that both samples are x if they share their noise: [v] from
    [v]; the sum is P(agree).
    """
    possible = (p > 0) & (q > 0)
    both = torch.zeros_like(p)
    ps, qs = p[possible], q[possible]
    both[possible] = 1.0 / torch.maximum(p / ps[:, None], q / qs[:, None]).sum(-1)
    return both


def independent_agreement(p: Tensor, q: Tensor) -> float:
    """P(agree) if each draws with noise of its own: sum of p q."""
    return float((p * q).sum())


def total_variation(p: Tensor, q: Tensor) -> float:
    """Half the sum of |p - q|: the largest difference between the probabilities the two give to any
    event.
    """
    return float((p - q).abs().sum()) / 2


def shared_noise_bound(p: Tensor, q: Tensor) -> float:
    """(1 - TV) / (1 + TV): shared noise agrees at least this often."""
    distance = total_variation(p, q)
    return (1 - distance) / (1 + distance)
