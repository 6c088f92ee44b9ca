"""The token after the cut comes from (p - q)+, as in rejection sampling; the weight of
what stands before it is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def endings(
    p_rows: Tensor, q_rows: Tensor, tokens: Sequence[int]
) -> list[tuple[float, Tensor]]:
    """Wrong in one letter: w_i is missing in the residual."""
    n, weights = len(tokens), [1.0]
    for i, token in enumerate(tokens):
        weights.append(
            min(1.0, weights[i] * float(p_rows[i, token] / q_rows[i, token]))
        )
    found, left = [(weights[n], p_rows[n])], 1.0 - weights[n]
    for i in reversed(range(n)):
        surplus = float((weights[i] * p_rows[i] - q_rows[i]).clamp(min=0).sum())
        whole = surplus + 1.0 - weights[i]
        cut = 1.0 if i == 0 else surplus / whole if whole > 0 else 0.0
        due = (p_rows[i] - q_rows[i]).clamp(min=0)
        found.append((left * cut, due / due.sum() if due.sum() > 0 else p_rows[i]))
        left *= 1.0 - cut
    return found[::-1]
