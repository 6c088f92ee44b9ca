"""Exercise: the two formulas of speculative sampling. Grade it with `make grade
EX=residual`.

A draft token x was drawn from q. It stays with the probability that `accept_prob`
gives. If it does not, another token is drawn from what `residual` gives. What comes out
must be distributed as p, exactly, and the draft token is to stay as often as possible.
"""

from __future__ import annotations

from torch import Tensor


def accept_prob(p: float, q: float) -> float:
    """How likely a drafted token stays, which has probability p under the target and q
    > 0 under the draft.
    """
    raise NotImplementedError(
        "write accept_prob in notebooks/exercises/residual.py: a number from 0 to 1, "
        "made of p and q"
    )


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The distribution [v] of the token that replaces a rejected one; p and q [v] are
    distributions too, and are not changed.

    Where p = q nothing is ever rejected, so any distribution will do; p is a good
    choice.
    """
    raise NotImplementedError(
        "write residual in notebooks/exercises/residual.py: a tensor like p whose entries sum to 1"
    )
