"""The residual is made of |p - q|, "where they differ". It also gives to tokens that had too much
already.
"""

from __future__ import annotations

from torch import Tensor


def accept_prob(p: float, q: float) -> float:
    """Right."""
    return min(1.0, p / q)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Wrong: only what is above q is still due."""
    gap = (p - q).abs()
    return gap / gap.sum() if gap.sum() > 0 else p
