"""The ratios are multiplied and cut to 1 only at the end: credit is saved up without
limit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def endings(
    p_rows: Tensor, q_rows: Tensor, tokens: Sequence[int]
) -> list[tuple[float, Tensor]]:
    """Wrong: a surplus may pay for draft tokens before it, never for those after."""
    n, products = len(tokens), [1.0]
    for i, token in enumerate(tokens):
        products.append(products[i] * float(p_rows[i, token] / q_rows[i, token]))
    weights = [min(1.0, product) for product in products]
    found, left = [(weights[n], p_rows[n])], 1.0 - weights[n]
    for i in reversed(range(n)):
        due = (weights[i] * p_rows[i] - q_rows[i]).clamp(min=0)
        surplus = float(due.sum())
        whole = surplus + 1.0 - weights[i]
        cut = 1.0 if i == 0 else surplus / whole if whole > 0 else 0.0
        found.append((left * cut, due / surplus if surplus > 0 else p_rows[i]))
        left *= 1.0 - cut
    return found[::-1]
