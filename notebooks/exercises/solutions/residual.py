"""The reference solution of residual.py; `lr/spec/acceptance.py` has the same."""

from __future__ import annotations

from torch import Tensor


def accept_prob(p: float, q: float) -> float:
    """min(1, p / q): as an accepted draft, x then comes out with probability q min(1, p
    / q) = min(p, q).
    """
    return min(1.0, p / q)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What is still due, p - min(p, q) = (p - q)+, scaled to a distribution."""
    due = (p - q).clamp(min=0)
    total = due.sum()
    return due / total if total > 0 else p
