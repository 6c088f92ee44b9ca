"""The ratio the other way round: p and q were taken for each other."""

from __future__ import annotations

from torch import Tensor


def accept_prob(p: float, q: float) -> float:
    """Wrong: a token that the target likes better than the draft is rejected."""
    return min(1.0, q / p) if p > 0 else 0.0


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Right."""
    due = (p - q).clamp(min=0)
    return due / due.sum() if due.sum() > 0 else p
