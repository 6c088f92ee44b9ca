"""The events of a run, and the statistics computed from them.

Everything that runs reports to a `Trace`, and every number (acceptance, passes, tokens
per second) is a function of its events. The scheduler's messages (`spec/protocol.py`)
are events as they are; the other events are defined here. A `Statistic` is
always recorded; the rest, the details, only if `Trace.detailed` is set. No torch here.
Events and trace files: `docs/trace.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from lr.spec.protocol import Emit, Message, NodeId
from lr.types import Origin, Role, Step


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """One ragged forward: `branches` rows, `tokens` positions in all rows together, its
    seconds."""

    role: Role
    branches: int  # rows of the batch, one per branch
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepWritten:
    """A model finished step `index`. A draft step leads to `node`; a target step starts
    there."""

    role: Role
    index: int
    step: Step
    node: NodeId | None = None


@dataclass(frozen=True, slots=True)
class VerifierCall:
    """The verifier judged `pairs` pairs. `passes`: forwards of its models, shared by
    requests."""

    pairs: int
    seconds: float
    passes: int = 0


@dataclass(frozen=True, slots=True)
class SourceCall:
    """A variant's step source was asked for a draft step, which took its share of a call
    for several."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TokenRound:
    """One round of token-level speculation on one branch. Of `proposed` draft tokens
    (nodes of a tree `depth` deep) the rule `accepted` some and added one token;
    `emitted` of these stay.
    """

    role: Role
    index: int
    proposed: int
    depth: int  # of its deepest path; of a chain, `proposed`
    accepted: int
    emitted: int
    node: NodeId | None = None
    detail: RoundDetail | None = None


@dataclass(frozen=True, slots=True)
class RoundDetail:
    """A round in full. `offset`: tokens of the step before the round. `token` follows
    the accepted draft tokens. `p` is its probability under the target.
    """

    offset: int
    draft_tokens: tuple[DraftToken, ...]  # parents before their children
    token: int
    p: float


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A draft token and its fate. `p`, `q`: its probability under target and draft (q
    is 1 for a certain draft). `parent`: the draft token before it, -1 at the end of the
    branch. `accept`: the probability that it is kept once it is tried (None: it cannot
    be). `kept` None: it was not tried.
    """

    token: int
    parent: int  # an index into `draft_tokens`
    p: float
    q: float
    accept: float | None  # for a chain under rule reject, min(1, p / q)
    kept: bool | None


@dataclass(frozen=True, slots=True)
class TokenWritten:
    """A token that was not drafted: number `offset` of its step, drawn with probability
    `p`."""

    role: Role
    node: NodeId | None
    index: int
    offset: int
    token: int
    p: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event. `done`: the answer is complete; otherwise `why` says what ended
    the run."""

    done: bool
    why: str = ""


Counts = TypeVar("Counts", "TokenRounds", "Stats")

Statistic = ForwardPass | StepWritten | TokenRound | VerifierCall | SourceCall | Emit
"""Always recorded."""
RunEvent = Message | Statistic | TokenWritten | Ended


@dataclass
class Trace:
    """The events of one run, each with its time in seconds since the start. `detailed`:
    details too. Events are in order of arrival (a worker's arrive late) until the run
    ends, then of time.
    """

    clock: Callable[[], float] = time.perf_counter  # seconds; a test may give its own
    events: list[tuple[float, Any]] = field(default_factory=list)
    start: float = field(init=False)  # on that clock
    detailed: bool = False

    def __post_init__(self) -> None:
        self.start = self.clock()

    def record(self, event: object) -> None:
        self.events.append((self.clock() - self.start, event))


@dataclass(frozen=True)
class TokenRounds:
    """Counts over the `count` rounds that had a proposal. `tried`: positions up to and
    including the first rejection of each round.
    """

    count: int = 0
    drafted: int = 0
    tried: int = 0  # the denominator of alpha 2
    accepted: int = 0
    emitted: int = 0

    @classmethod
    def of(cls, rounds: Iterable[TokenRound]) -> TokenRounds:
        drafted = [r for r in rounds if r.proposed]
        return cls(
            count=len(drafted),
            drafted=sum(r.proposed for r in drafted),  # of a tree, all its nodes
            # + 1: the one that was rejected
            tried=sum(min(r.accepted + 1, r.depth) for r in drafted),
            accepted=sum(r.accepted for r in drafted),
            emitted=sum(r.emitted for r in drafted),
        )

    def __add__(self, rounds: TokenRounds) -> TokenRounds:
        return _sum(self, rounds)

    @property
    def conditional_acceptance(self) -> float | None:
        """accepted / tried: alpha 2 if acceptances are independent and equally
        likely."""
        return _ratio(self.accepted, self.tried)


@dataclass(frozen=True)
class Progress:
    """What a variant's controller may know: counts up to the last emitted step, never
    times, so an answer depends on no clock.

    Of `drafted` draft steps `judged` have a verdict, and `accepted` are emitted.
    `rounds`: of token-level speculation.
    """

    steps: int = 0  # emitted
    tokens: int = 0  # in them
    accepted: int = 0
    judged: int = 0  # draft steps with a verdict: the denominator of alpha 1
    drafted: int = 0
    target_passes: int = 0  # forwards
    draft_passes: int = 0
    rounds: TokenRounds = TokenRounds()

    @classmethod
    def of(cls, stats: Stats) -> Progress:
        """The counts among these statistics."""
        names = (count.name for count in fields(Progress))
        return Progress(**{name: getattr(stats, name) for name in names})


@dataclass(frozen=True)
class Stats(Progress):
    """Counts and times of one run or, summed with `+`, of several. A ratio is None if
    its denominator is 0. `seconds`: the time of the last event that is not a detail.
    `unjudged` of the `judged` draft steps were rejected because the verifier could not
    decide.
    """

    seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    verifier_seconds: float = 0.0
    draft_tokens: int = 0
    target_tokens: int = 0  # in finished steps, also those that are not emitted
    verifier_passes: int = 0
    unjudged: int = 0
    source_seconds: float = 0.0  # of a variant's step source

    def __add__(self, stats: Stats) -> Stats:
        return _sum(self, stats)

    @property
    def step_acceptance(self) -> float | None:
        """Accepted / judged draft steps: the paper's acceptance rate alpha 1."""
        return _ratio(self.accepted, self.judged)

    @property
    def token_acceptance(self) -> float | None:
        """Accepted / drafted tokens of the target's rounds (vLLM's draft acceptance
        rate)."""
        return _ratio(self.rounds.accepted, self.rounds.drafted)

    @property
    def tokens_per_second(self) -> float | None:
        return _ratio(self.tokens, self.seconds)

    @property
    def tokens_per_target_pass(self) -> float | None:
        return _ratio(self.tokens, self.target_passes)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _sum(first: Counts, second: Counts) -> Counts:
    """Field by field. (`vars` of one that msgspec has read lacks what has its
    default.)"""
    names = [field.name for field in fields(first)]
    return type(first)(*(getattr(first, n) + getattr(second, n) for n in names))


def stats_of(timed: Sequence[tuple[float, object]]) -> Stats:
    """The statistics of one run, from its events and their times. Details change
    nothing."""
    # 1. Only what every trace records, so that details change nothing.
    counted = [(when, event) for when, event in timed if isinstance(event, Statistic)]
    events = [event for _, event in counted]

    def all_of(kind: type[object]) -> list[Any]:
        return [event for event in events if isinstance(event, kind)]

    emits = all_of(Emit)
    calls = all_of(VerifierCall)
    # 2. Forwards and finished steps, by role: draft, then target.
    draft, target = (
        [e.seconds for e in all_of(ForwardPass) if e.role is role] for role in Role
    )
    drafted, by_target = (
        [len(e.step.tokens) for e in all_of(StepWritten) if e.role is role]
        for role in Role
    )
    rounds = [e for e in all_of(TokenRound) if e.role is Role.TARGET]
    return Stats(
        seconds=max((when for when, _ in counted), default=0.0),
        steps=len(emits),
        tokens=sum(len(e.emitted.step.tokens) for e in emits),  # of the answer
        accepted=sum(e.emitted.origin is Origin.ACCEPTED for e in emits),
        # one per alternative that was judged
        judged=sum(len(e.verdicts) for e in emits),
        drafted=len(drafted),
        target_passes=len(target),
        draft_passes=len(draft),
        target_seconds=sum(target),
        draft_seconds=sum(draft),
        verifier_seconds=sum(call.seconds for call in calls),
        draft_tokens=sum(drafted),
        target_tokens=sum(by_target),
        rounds=TokenRounds.of(rounds),
        verifier_passes=sum(call.passes for call in calls),
        unjudged=len(failures(events)),
        source_seconds=sum(call.seconds for call in all_of(SourceCall)),
    )


def failures(events: Iterable[object]) -> list[str]:
    """Why draft steps could not be judged, one reason per step; they count as
    rejected."""
    emits = (event for event in events if isinstance(event, Emit))
    return [
        verdict.why for emit in emits for verdict in emit.verdicts if verdict.failed
    ]
