"""Asks the verifier about every pair, also where one step ends the text and the other
goes on."""

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
    """Nearly right."""

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
            asked.append(Ask(number))  # wrong: the form alone rejects some
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
