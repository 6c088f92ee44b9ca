"""Going down, the block is cut after x_i with probability w_i, since that is how much
of it "may stay".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def endings(
    p_rows: Tensor, q_rows: Tensor, tokens: Sequence[int]
) -> list[tuple[float, Tensor]]:
    """Wrong: w_i is the chance that at least i stay, and the longer blocks have had
    their part of it.
    """
    n, weights = len(tokens), [1.0]
    for i, token in enumerate(tokens):
        weights.append(
            min(1.0, weights[i] * float(p_rows[i, token] / q_rows[i, token]))
        )
    found, left = [(weights[n], p_rows[n])], 1.0 - weights[n]
    for i in reversed(range(n)):
        due = (weights[i] * p_rows[i] - q_rows[i]).clamp(min=0)
        law = due / due.sum() if due.sum() > 0 else p_rows[i]
        found.append((left * weights[i], law))
        left *= 1.0 - weights[i]
    return found[::-1]
