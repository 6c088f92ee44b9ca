"""Exercise: judge a chain of draft tokens as a whole. Grade it with `make grade
EX=block_verification`.

Token by token, a draft token with p(x) > q(x) stays for sure, and the surplus is
forgotten. Block verification (Sun et al., arXiv 2403.10444) keeps it as credit for the
tokens before it. Let w_0 = 1 and w_i = min(1, w_{i-1} p(x_i) / q(x_i)), where p and q
are the rows before x_i. Go down from the end. The block is cut

- after the last draft token x_n with probability w_n; the next token then comes from p,
- else, for i = n-1, ..., 1, after x_i with probability S_i / (S_i + 1 - w_i), where S_i = sum over
  x of (w_i p(x) - q(x))+ is made of the rows *after* x_i,
- else before the first, i = 0.

Where it was cut after x_i with i < n, the next token comes from (w_i p - q)+, scaled to
sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def endings(
    p_rows: Tensor, q_rows: Tensor, tokens: Sequence[int]
) -> list[tuple[float, Tensor]]:
    """For i = 0, ..., n: how likely it is that exactly i of the n draft tokens stay,
    and the distribution [v] of the token after them.

    `p_rows` [n + 1, v]: the target's distributions, row i after the first i draft
    tokens. `q_rows` [n, v]: row i is the distribution from which draft token number i
    was drawn. Neither is changed. The probabilities sum to 1. Where an ending is
    impossible its distribution does not matter (p will do), but it must not be made of
    divisions by zero. Every draft token has q > 0.
    """
    raise NotImplementedError(
        "write endings in notebooks/exercises/block_verification.py: "
        "n + 1 pairs (probability, distribution)"
    )
