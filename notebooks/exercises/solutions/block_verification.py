"""The reference solution of block_verification.py. `lr/spec/acceptance.py` is the rule
that runs, with the proof.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def scaled(weights: Tensor, otherwise: Tensor) -> Tensor:
    """Weights [v] as a distribution; `otherwise` where all of them are 0."""
    total = weights.sum()
    return weights / total if total > 0 else otherwise


def endings(
    p_rows: Tensor, q_rows: Tensor, tokens: Sequence[int]
) -> list[tuple[float, Tensor]]:
    """First the weights going up, then the cuts going down."""
    n = len(tokens)
    w = [1.0]
    for i, token in enumerate(tokens):
        w.append(min(1.0, w[i] * float(p_rows[i, token] / q_rows[i, token])))
    endings = [(w[n], p_rows[n])]
    left = 1.0 - w[n]
    for i in reversed(range(n)):
        due = (w[i] * p_rows[i] - q_rows[i]).clamp(min=0)
        surplus = float(due.sum())
        chance = surplus / (surplus + 1.0 - w[i]) if surplus > 0 else 0.0
        cut = 1.0 if i == 0 else chance
        endings.append((left * cut, scaled(due, p_rows[i])))
        left *= 1.0 - cut
    return endings[::-1]
