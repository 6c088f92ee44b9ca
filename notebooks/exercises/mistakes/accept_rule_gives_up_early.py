"""No alternative is there, so the target is to go on alone, although the draft is only
about to begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from exercise_kit import Decide


def decide(
    verdicts: Sequence[bool | None], target_ready: bool, drafts_to_come: bool
) -> int | Decide:
    """Wrong: an empty list is taken for the last word."""
    for number, aligned in enumerate(verdicts):
        if aligned is None:
            return Decide.WAIT
        if aligned:
            return number
    return Decide.CORRECT if target_ready else Decide.WAIT
