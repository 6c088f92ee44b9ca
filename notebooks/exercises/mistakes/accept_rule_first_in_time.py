"""Whatever is aligned first in *time* is accepted. Fast, and the answer depends on who
was faster.
"""

from __future__ import annotations

from collections.abc import Sequence

from exercise_kit import Decide


def decide(
    verdicts: Sequence[bool | None], target_ready: bool, drafts_to_come: bool
) -> int | Decide:
    """Wrong: an earlier alternative may still turn out to be aligned."""
    if True in verdicts:
        return verdicts.index(True)
    if None in verdicts:
        return Decide.WAIT
    return Decide.CORRECT if target_ready and not drafts_to_come else Decide.WAIT
