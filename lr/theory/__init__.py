"""The mathematics of Lookahead Reasoning as functions: closed forms, optimum under a budget,
calibration, planner. numpy, no torch.

`domain.py` begins; `docs/theory.md` has the table from formula to function, equation and test.
"""

from lr.theory.asynchronous import lr_async_limit, lr_async_speedup
from lr.theory.domain import DomainError
from lr.theory.hybrid import best_split, hybrid_speedup
from lr.theory.synchronous import lr_sync_cycle_speedup, lr_sync_speedup
from lr.theory.theorems import theorem3_holds, theorem4_conditions
from lr.theory.token_level import sd_speedup, sd_tokens

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
    "theorem3_holds",
    "theorem4_conditions",
]
