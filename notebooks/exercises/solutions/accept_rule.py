"""The reference solution of accept_rule.py; `LookaheadScheduler._decide` in
lr/spec/scheduler.py does the same on its tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from exercise_kit import Decide


def decide(
    verdicts: Sequence[bool | None], target_ready: bool, drafts_to_come: bool
) -> int | Decide:
    """Walk through the alternatives in their order; the first that is not rejected
    settles it."""
    for number, aligned in enumerate(verdicts):
        if aligned is None:
            return Decide.WAIT
        if aligned:
            return number
    return Decide.CORRECT if target_ready and not drafts_to_come else Decide.WAIT
