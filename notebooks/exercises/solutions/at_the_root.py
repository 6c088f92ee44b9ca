"""The reference solution of at_the_root.py; `LookaheadScheduler` in
lr/spec/scheduler.py keeps such books for every node of its tree.
"""

from __future__ import annotations

from root_kit import (
    Accept,
    Ask,
    Correct,
    DraftWritten,
    Judged,
    TargetWritten,
    WrittenStep,
)


class Root:
    """What is known of each alternative: not written yet, written, and its verdict."""

    def __init__(self, width: int) -> None:
        self.drafts: dict[int, WrittenStep] = {}
        self.target: WrittenStep | None = None
        self.verdicts: list[bool | None] = [None] * width
        self.over = False

    def on(
        self, event: DraftWritten | TargetWritten | Judged
    ) -> list[Ask | Accept | Correct]:
        """Write it down, compare what can be compared now, then see whether it is
        decided."""
        if self.over:
            return []
        ready: list[int] = []
        match event:
            case DraftWritten(number, None):
                self.verdicts[number] = False
            case DraftWritten(number, step) if step is not None:
                self.drafts[number] = step
                ready = [number] if self.target else []
            case TargetWritten(step):
                self.target = step
                ready = sorted(self.drafts)
            case Judged(number, aligned):
                self.verdicts[number] = aligned
        asked: list[Ask | Accept | Correct] = []
        for number in ready:
            draft, target = self.drafts[number], self.target
            assert target is not None
            if draft.ends != target.ends or draft.cut or target.cut:
                self.verdicts[number] = False
            else:
                asked.append(Ask(number))
        for number, aligned in enumerate(self.verdicts):
            if aligned is None:
                return asked
            if aligned:
                self.over = True
                return [Accept(number)]
        if self.target is None:
            return asked
        self.over = True
        return [Correct()]
