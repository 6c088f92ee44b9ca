"""The ways to answer that `lr bench step` compares: plain decoding, token-level speculation,
Lookahead Reasoning, and both.

`alone` names what one change does to the **naive loop**: Algorithm 1 as it is printed, draft first,
then the target, on one thread. Each way with an `alone` differs from the naive loop by that change
only; the ways without one are those that a user would choose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SHARED = {"coupling": "shared", "acceptance": "match"}
SYNC: dict[str, Any] = {"schedule": "sync"}
OVERLAPPED = {"driver": "overlapped"}


@dataclass(frozen=True)
class Way:
    """`settings` are those of `Reasoner.generate`, over the benchmark's own; `alone`: the only
    difference from the naive loop.
    """

    name: str
    mode: str
    settings: dict[str, Any] = field(default_factory=dict)
    alone: str | None = None

    @property
    def overlapped(self) -> bool:
        return self.settings.get("driver") == "overlapped"


def ways(k: int, step_k: int) -> list[Way]:
    """All rows, plain decoding first. `k`: tokens a draft model guesses ahead; `step_k`: the same
    where the draft step is the guess.
    """
    chain = {"drafter": "draft", "num_speculative_tokens": k}
    step = {"drafter": "step", "num_speculative_tokens": step_k}
    return [
        Way("ar", "ar"),
        Way("sd, n-gram", "sd", {"drafter": "ngram"}),
        Way("sd", "sd", chain),
        Way("sd, shared noise", "sd", chain | SHARED),
        Way("lr, naive loop", "lr", SYNC),
        Way("lr, naive + overlapped", "lr", SYNC | OVERLAPPED, alone="draft in a second process"),
        Way("lr, naive + rolling window", "lr", alone="rolling window, no barrier"),
        Way(
            "lr, naive + shared noise",
            "lr",
            SYNC | {"coupling": "shared"},
            alone="shared-noise coupling",
        ),
        Way("lr, paper window, overlapped", "lr", {"schedule": "paper"} | OVERLAPPED),
        Way("lr, overlapped", "lr", OVERLAPPED),
        Way(
            "lr+sd, naive + step as draft",
            "lr+sd",
            SYNC | step,
            alone="the draft step as token draft",
        ),
        Way(
            "lr+sd, naive + step, shared noise",
            "lr+sd",
            SYNC | step | SHARED,
            alone="the same under shared noise",
        ),
        Way(
            "lr+sd, naive + draft model",
            "lr+sd",
            SYNC | chain,
            alone="token drafts by the draft model",
        ),
        Way("lr+sd, lockstep", "lr+sd", chain),
        Way("lr+sd, n-gram, overlapped", "lr+sd", {"drafter": "ngram"} | OVERLAPPED),
        Way("lr+sd, step, overlapped", "lr+sd", step | SHARED | OVERLAPPED),
        Way("lr+sd, sync, overlapped", "lr+sd", SYNC | chain | OVERLAPPED),
        Way("lr+sd, overlapped", "lr+sd", chain | OVERLAPPED),
    ]
