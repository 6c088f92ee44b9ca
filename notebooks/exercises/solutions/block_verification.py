"""The reference solution of block_verification.py. `lr/spec/acceptance.py` is the rule
that runs, with the proof.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def endings(
    p_rows: Tensor, q_rows: Tensor, tokens: Sequence[int]
) -> list[tuple[float, Tensor]]:
    """First the weights going up, then the cuts going down."""
    n, weights = len(tokens), [1.0]
    for i, token in enumerate(tokens):
        weights.append(
            min(1.0, weights[i] * float(p_rows[i, token] / q_rows[i, token]))
        )
    found = [(weights[n], p_rows[n])]
    left = 1.0 - weights[n]
    for i in reversed(range(n)):
        due = (weights[i] * p_rows[i] - q_rows[i]).clamp(min=0)
        surplus = float(due.sum())
        whole = surplus + 1.0 - weights[i]
        cut = 1.0 if i == 0 else surplus / whole if whole > 0 else 0.0
        found.append((left * cut, due / surplus if surplus > 0 else p_rows[i]))
        left *= 1.0 - cut
    return found[::-1]
