"""How long a chain and its steps may become. Counted in tokens; knows neither models nor schedules.

Whoever writes a step asks `step_limit` how long it may be, so plain decoding, the reference loop
and the scheduler cut at the same places. What follows from a cut step is decided in
`eligibility.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.types import require


@dataclass(frozen=True)
class Limits:
    """How long a chain and its steps may become, in tokens, and what follows from a cut step."""

    max_tokens: int
    max_step_tokens: int = 100
    ignore_half_sentence: bool = True

    def __post_init__(self) -> None:
        require(self.max_tokens > 0, "max_tokens", self.max_tokens, "a whole number > 0")
        require(
            self.max_step_tokens > 0, "max_step_tokens", self.max_step_tokens, "a whole number > 0"
        )

    def step_limit(self, written: int) -> int:
        """The longest next step when the chain already has `written` tokens; 0 when nothing more
        may come.
        """
        return max(0, min(self.max_step_tokens, self.max_tokens - written))
