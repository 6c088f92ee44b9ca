"""What the trace of a run says about time and acceptance: sums per problem, from which
`estimate.py` makes the parameters.

Every moment between two forwards belongs to the forward that ends it: sampling, forks, verdicts and
the scheduler's work included. So the parts add up to the whole, and nothing is counted as free. The
runs must be driven in turns on one thread (lockstep), where one forward follows the other. This
module knows nothing of models or of theory. Read next: `estimate.py`.

Worked example, a synchronous cycle of two drafts: draft, draft, ... | target reads draft step 1 (1
row, many tokens) | target reads step 2 with the first tokens of all rows (3 rows, more tokens than
rows) | target, target, ... (a token per row, "plain").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lr.spec.protocol import Emit
from lr.trace import Event, ForwardPass, StepWritten, TokenRound, VerifierCall
from lr.types import Role

Timed = tuple[float, Event]
"""(time of the event in seconds, event)."""


@dataclass
class Seconds:
    """A sum of times and how many they were."""

    total: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        self.total += seconds
        self.count += 1


@dataclass
class PlainRun:
    """Decoding without speculation, by one model."""

    first: float = 0.0
    """Until the first forward was over: the prompt, and a token."""
    token: Seconds = field(default_factory=Seconds)
    """Every further forward."""
    lengths: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Timed]) -> PlainRun:
        seen, last = cls(), None
        for time, event in events:
            if isinstance(event, ForwardPass):
                if last is None:
                    seen.first = time
                else:
                    seen.token.add(time - last)
                last = time
            elif isinstance(event, Emit):
                seen.lengths.append(len(event.emitted.step.tokens))
        return seen


@dataclass
class LookaheadRun:
    """Synchronous Lookahead Reasoning, lockstep."""

    accepted: int = 0
    judged: int = 0
    rows: dict[int, Seconds] = field(default_factory=dict)
    """Plain target forwards by the number of rows."""
    reading_alone: Seconds = field(default_factory=Seconds)
    """Target forwards of one row that read a draft step, the prompt's excepted."""
    reading_along: dict[int, Seconds] = field(default_factory=dict)
    """Target forwards of several rows that also read, by the number of rows."""
    drafting: float = 0.0
    """All time of the draft, its reading of corrections included, the prompt excepted."""
    start: float = 0.0
    """The prompt, for both models."""
    draft_lengths: list[int] = field(default_factory=list)
    verdicts: list[float] = field(default_factory=list)
    """Seconds per verdict."""

    @classmethod
    def of(cls, events: Iterable[Timed]) -> LookaheadRun:
        seen, last, met = cls(), 0.0, set[Role]()
        for time, event in events:
            match event:
                case ForwardPass():
                    if event.role in met:
                        seen._forward(event, time - last)
                    else:
                        seen.start += time - last
                    met.add(event.role)
                    last = time
                case StepWritten(Role.DRAFT, _, step):
                    seen.draft_lengths.append(len(step.tokens))
                case Emit(_, verdicts):
                    seen.judged += len(verdicts)
                    seen.accepted += sum(verdict.aligned for verdict in verdicts)
                case VerifierCall(pairs, seconds):
                    seen.verdicts += [seconds / pairs] * pairs
        return seen

    def _forward(self, forward: ForwardPass, seconds: float) -> None:
        if forward.role is Role.DRAFT:
            self.drafting += seconds
        elif forward.tokens == forward.branches:
            self.rows.setdefault(forward.branches, Seconds()).add(seconds)
        elif forward.branches == 1:
            self.reading_alone.add(seconds)
        else:
            self.reading_along.setdefault(forward.branches, Seconds()).add(seconds)


@dataclass
class TokenRun:
    """Token-level speculation with the draft model, no lookahead."""

    tried: int = 0
    accepted: int = 0
    drafts: Seconds = field(default_factory=Seconds)
    """Draft forwards."""
    again: Seconds = field(default_factory=Seconds)
    """Those of them right behind another."""
    passes: Seconds = field(default_factory=Seconds)
    """Target passes over all positions of a round, acceptance included."""
    positions: int = 0
    """Over all those passes."""

    @classmethod
    def of(cls, events: Iterable[Timed]) -> TokenRun:
        seen, last, met, before = cls(), 0.0, set[Role](), Role.TARGET
        for time, event in events:
            if isinstance(event, ForwardPass):
                if event.role in met:
                    (seen.drafts if event.role is Role.DRAFT else seen.passes).add(time - last)
                    seen.positions += event.tokens if event.role is Role.TARGET else 0
                    if event.role is before is Role.DRAFT:
                        seen.again.add(time - last)
                met.add(event.role)
                last, before = time, event.role
            elif isinstance(event, TokenRound) and event.proposed:
                seen.tried += min(event.accepted + 1, event.depth)
                seen.accepted += event.accepted
        return seen


@dataclass
class PairRun:
    """Two alternatives per position: how often the second is accepted where the first was not, and
    what writing both costs the draft.
    """

    asked: int = 0
    accepted: int = 0
    drafts: dict[int, Seconds] = field(default_factory=dict)
    """Plain draft forwards right behind another draft forward, by the number of rows."""

    @classmethod
    def of(cls, events: Iterable[Timed]) -> PairRun:
        seen, last, before, verdicts = cls(), 0.0, Role.TARGET, dict[int, list[bool]]()
        for time, event in events:
            if isinstance(event, Emit):
                verdicts[event.emitted.index] = [one.aligned for one in event.verdicts]
            elif isinstance(event, ForwardPass):
                if event.role is before is Role.DRAFT and event.tokens == event.branches:
                    seen.drafts.setdefault(event.branches, Seconds()).add(time - last)
                last, before = time, event.role
        second = [aligned[1] for aligned in verdicts.values() if len(aligned) > 1]
        seen.asked, seen.accepted = len(second), sum(second)
        return seen


@dataclass(frozen=True)
class Answered:
    """What is known of an answer once it is there, place by place: all but the time it took.

    `accepted`: whether a draft step was accepted there; where nothing was judged (a bonus step, an
    end of both) False, which no run of the same schedule looks at. `target_lengths`,
    `draft_lengths`: tokens of the steps that were written there, the last of each if several were;
    where none was, of the one that was emitted. `rounds` of the target, with so many drafted tokens
    accepted in all.
    """

    accepted: tuple[bool, ...]
    target_lengths: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    rounds: int = 0
    tokens_accepted: int = 0

    @property
    def steps(self) -> int:
        return len(self.accepted)

    @classmethod
    def of(cls, events: Iterable[Timed]) -> Answered:
        lengths: dict[Role, dict[int, int]] = {Role.TARGET: {}, Role.DRAFT: {}}
        emitted, accepted, rounds = dict[int, int](), set[int](), list[TokenRound]()
        for _, event in events:
            match event:
                case StepWritten(role, index, step):
                    lengths[role][index] = len(step.tokens)
                case Emit(step, verdicts):
                    emitted[step.index] = len(step.step.tokens)
                    if verdicts and verdicts[-1].aligned:
                        accepted.add(step.index)
                case TokenRound(Role.TARGET) if event.proposed:
                    rounds.append(event)
        places = range(len(emitted))
        return cls(
            tuple(place in accepted for place in places),
            tuple(lengths[Role.TARGET].get(place, emitted[place]) for place in places),
            tuple(lengths[Role.DRAFT].get(place, emitted[place]) for place in places),
            len(rounds),
            sum(round_.accepted for round_ in rounds),
        )


def outcomes(events: Iterable[Timed]) -> tuple[bool, ...]:
    """Whether a draft step was accepted at each place of a chain that has a verdict, in order: what
    `chance.Replay` takes.

    With several alternatives: whether any was.
    """
    accepted: dict[int, bool] = {}
    for _, event in events:
        if isinstance(event, Emit) and event.verdicts:
            accepted[event.emitted.index] = event.verdicts[-1].aligned
    return tuple(accepted[index] for index in sorted(accepted))


def step_lengths(events: Iterable[Timed], role: Role) -> tuple[int, ...]:
    """Tokens of the steps that `role` finished, in order: times the time of a token, what
    `chance.Resampled` takes.
    """
    written = (event for _, event in events if isinstance(event, StepWritten))
    return tuple(len(event.step.tokens) for event in written if event.role is role)


@dataclass
class Seen:
    """All runs of one problem."""

    target: PlainRun
    lookahead: LookaheadRun
    tokens: TokenRun
    single: TokenRun
    """The same with one drafted token per round."""
    pairs: PairRun
