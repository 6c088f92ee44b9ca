"""Nothing is ever accepted, and the target draws from p. Lossless, and of no use: the
law alone does not tell.
"""

from __future__ import annotations

from torch import Tensor


def accept_prob(p: float, q: float) -> float:
    """Wrong: too careful."""
    return 0.0


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Right, if nothing is accepted."""
    return p
