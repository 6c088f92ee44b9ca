"""What follows from the events of a run: counts, times, ratios. Every number of the demo, the
reports and the tests is defined here.

Knows no file and no clock: a run that is in the making, one that is over and one that was read from
a file are all the same list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from lr.tracing.events import (
    ForwardPass,
    StepEmitted,
    StepJudged,
    StepWritten,
    TokenRound,
    VerifierCall,
)
from lr.types import Origin, Role

STATISTICS = (ForwardPass, StepWritten, TokenRound, VerifierCall, StepJudged, StepEmitted)
"""The events from which statistics follow."""


@dataclass(frozen=True)
class TokenRounds:
    """Token-level speculation in numbers, under vLLM's names and by its definitions.

    `histogram[n]` counts the rounds that accepted n tokens, up to the deepest proposal; rounds
    without a proposal do not count. `tried`: places at which a round decided about a draft: all up
    to its first rejection. `emitted`: tokens of those rounds that belong to a step, the one after
    the accepted included.
    """

    histogram: tuple[int, ...] = ()
    drafted: int = 0
    tried: int = 0
    accepted: int = 0
    emitted: int = 0

    @classmethod
    def of(cls, rounds: Iterable[TokenRound]) -> TokenRounds:
        """The numbers of some rounds."""
        kept = [r for r in rounds if r.proposed]
        if not kept:
            return cls()
        deepest = max(r.depth for r in kept)
        return cls(
            histogram=tuple(sum(r.accepted == n for r in kept) for n in range(deepest + 1)),
            drafted=sum(r.proposed for r in kept),
            tried=sum(min(r.accepted + 1, r.depth) for r in kept),
            accepted=sum(r.accepted for r in kept),
            emitted=sum(r.emitted for r in kept),
        )

    def __add__(self, other: TokenRounds) -> TokenRounds:
        both = zip_longest(self.histogram, other.histogram, fillvalue=0)
        return TokenRounds(
            tuple(a + b for a, b in both),
            self.drafted + other.drafted,
            self.tried + other.tried,
            self.accepted + other.accepted,
            self.emitted + other.emitted,
        )

    @property
    def count(self) -> int:
        """Rounds that had a proposal (vLLM: drafts)."""
        return sum(self.histogram)

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / rounds: tokens that a round decides on average."""
        return 1 + self.accepted / self.count if self.count else None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """The share of all rounds that accepted more than i tokens, for i = 0, 1, ...
        (unconditional).
        """
        return tuple(
            sum(self.histogram[i + 1 :]) / self.count for i in range(len(self.histogram) - 1)
        )

    @property
    def conditional_acceptance(self) -> float | None:
        """accepted / tried: THEORY's alpha 2, where acceptances are independent of each other and
        of the place.
        """
        return self.accepted / self.tried if self.tried else None


@dataclass(frozen=True)
class Stats:
    """Counts and times of one run or, summed with `+`, of several. Ratios are properties; they are
    None where nothing was counted.
    """

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    accepted: int = 0
    judged: int = 0
    drafted: int = 0
    target_passes: int = 0
    draft_passes: int = 0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    verifier_seconds: float = 0.0
    draft_tokens: int = 0
    target_tokens: int = 0
    rounds: TokenRounds = TokenRounds()

    def __add__(self, other: Stats) -> Stats:
        return Stats(
            **{
                name: getattr(self, name) + getattr(other, name)
                for name in self.__dataclass_fields__
            }
        )

    @property
    def step_acceptance(self) -> float | None:
        """Accepted draft steps / judged draft steps: the paper's acceptance rate alpha 1 (THEORY
        2b).
        """
        return self.accepted / self.judged if self.judged else None

    @property
    def token_acceptance(self) -> float | None:
        """Accepted guessed tokens / guessed tokens of the target's rounds (vLLM's draft acceptance
        rate).
        """
        return self.rounds.acceptance_rate

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.seconds else None

    @property
    def tokens_per_target_pass(self) -> float | None:
        return self.tokens / self.target_passes if self.target_passes else None


def stats_of(timed: Sequence[tuple[float, object]]) -> Stats:
    """The statistics of one run from its events with their times. `seconds` is the time of the last
    event that is no mere detail.

    Details do not count: what is recorded beside the statistics must not change them.
    """
    seconds = next((when for when, event in reversed(timed) if isinstance(event, STATISTICS)), 0.0)
    events = [event for _, event in timed]
    forwards = [e for e in events if isinstance(e, ForwardPass)]
    written = [e for e in events if isinstance(e, StepWritten)]
    judged = [e for e in events if isinstance(e, StepJudged)]
    emitted = [e.emitted for e in events if isinstance(e, StepEmitted)]

    def of(role: Role) -> list[ForwardPass]:
        return [f for f in forwards if f.role is role]

    return Stats(
        seconds=seconds,
        steps=len(emitted),
        tokens=sum(len(e.step.tokens) for e in emitted),
        accepted=sum(e.origin is Origin.ACCEPTED for e in emitted),
        judged=len(judged),
        drafted=sum(w.role is Role.DRAFT for w in written),
        target_passes=len(of(Role.TARGET)),
        draft_passes=len(of(Role.DRAFT)),
        target_seconds=sum(f.seconds for f in of(Role.TARGET)),
        draft_seconds=sum(f.seconds for f in of(Role.DRAFT)),
        verifier_seconds=sum(e.seconds for e in events if isinstance(e, VerifierCall)),
        draft_tokens=sum(len(w.step.tokens) for w in written if w.role is Role.DRAFT),
        target_tokens=sum(len(w.step.tokens) for w in written if w.role is Role.TARGET),
        rounds=TokenRounds.of(
            e for e in events if isinstance(e, TokenRound) and e.role is Role.TARGET
        ),
    )
