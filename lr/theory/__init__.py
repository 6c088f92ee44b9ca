"""The mathematics of Lookahead Reasoning as functions, and the scheduler on a simulated
clock.

Closed forms, the best split of a budget, calibration and prediction, with
numpy and scipy but without torch. Start with `domain.py` and `synchronous.py`.
`docs/theory.md` lists each formula with its function and its test."""

from lr.theory.asynchronous import lr_async_limit, lr_async_speedup
from lr.theory.domain import DomainError
from lr.theory.hybrid import (
    best_split,
    hybrid_speedup,
    theorem3,
    theorem4_conditions,
)
from lr.theory.synchronous import (
    lr_sync_cycle_speedup,
    lr_sync_speedup,
    sd_speedup,
    sd_tokens,
)

__all__ = [
    "DomainError",
    "best_split",
    "hybrid_speedup",
    "lr_async_limit",
    "lr_async_speedup",
    "lr_sync_cycle_speedup",
    "lr_sync_speedup",
    "sd_speedup",
    "sd_tokens",
    "theorem3",
    "theorem4_conditions",
]
