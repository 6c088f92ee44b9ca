"""A rejected token is replaced by "what the target says", a draw from p. But acceptance
has emitted min(p, q) already.
"""

from __future__ import annotations

from torch import Tensor


def accept_prob(p: float, q: float) -> float:
    """Right."""
    return min(1.0, p / q)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Wrong: what p likes and q offers is counted twice."""
    return p
