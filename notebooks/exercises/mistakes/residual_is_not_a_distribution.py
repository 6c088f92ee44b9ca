"""The residual is (p - q)+ as it is. Right up to a factor, and the factor is
everything."""

from __future__ import annotations

from torch import Tensor


def accept_prob(p: float, q: float) -> float:
    """Right."""
    return min(1.0, p / q)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Wrong: it sums to the chance of a rejection, not to one."""
    return (p - q).clamp(min=0)
