"""All verdicts are awaited, then the first aligned alternative is taken. The answer is
right, and late.
"""

from __future__ import annotations

from collections.abc import Sequence

from exercise_kit import Decide


def decide(
    verdicts: Sequence[bool | None], target_ready: bool, drafts_to_come: bool
) -> int | Decide:
    """Wrong: it waits for verdicts that cannot change anything any more."""
    if None in verdicts:
        return Decide.WAIT
    for number, aligned in enumerate(verdicts):
        if aligned:
            return number
    return Decide.CORRECT if target_ready and not drafts_to_come else Decide.WAIT
