"""Each draft token is judged by itself. Lossless, like rejection sampling, which it is;
but fewer draft tokens stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def endings(
    p_rows: Tensor, q_rows: Tensor, tokens: Sequence[int]
) -> list[tuple[float, Tensor]]:
    """Wrong: no credit for a draft token that the target likes better than the draft
    does."""
    found, left = [], 1.0
    for i, token in enumerate(tokens):
        stays = min(1.0, float(p_rows[i, token] / q_rows[i, token]))
        due = (p_rows[i] - q_rows[i]).clamp(min=0)
        found.append(
            (left * (1.0 - stays), due / due.sum() if due.sum() > 0 else p_rows[i])
        )
        left *= stays
    return [*found, (left, p_rows[len(tokens)])]
