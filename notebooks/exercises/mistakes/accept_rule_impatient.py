"""The target is ready and nothing is aligned yet, so its step is taken. A slow verifier
then costs every draft step.
"""

from __future__ import annotations

from collections.abc import Sequence

from exercise_kit import Decide


def decide(
    verdicts: Sequence[bool | None], target_ready: bool, drafts_to_come: bool
) -> int | Decide:
    """Wrong: not known is not the same as rejected."""
    for number, aligned in enumerate(verdicts):
        if aligned:
            return number
        if aligned is None and not target_ready:
            return Decide.WAIT
    return Decide.CORRECT if target_ready and not drafts_to_come else Decide.WAIT
