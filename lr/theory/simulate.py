"""Runs a scheduler on a simulated clock: how long would it take, if steps took so long and drafts
were accepted so often?

The scheduler is the one that runs on models. Here its commands go to three workers, draft, target
and judge, whose work takes the time that a law says and whose outcomes are chance. With constant
times, no overhead and independent acceptance the times are those of the closed forms (Theorems 1
and 2 of the paper and their variants); with anything else there may be no closed form, and this is
the way.

    simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, depth=3), World(Bernoulli(0.6),
    draft=Constant(0.2)), steps=10_000).rate

By default one draft model writes one batch at a time, the alternatives of one node; all target rows
make progress side by side; judges are as many as needed and take no time. Every step has one token.
Times are in the unit of `World`, usually one target step.

This module knows no model and no closed form. Read next: `workers.py`, `chance.py`; `scripted.py`
for any order of events at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lr.rng import Stream
from lr.spec.protocol import (
    Cancel,
    Command,
    Draft,
    Drafted,
    Emit,
    Event,
    Judge,
    Judged,
    Kind,
    Limits,
    NodeId,
    SchedulerConfig,
    Target,
    Targeted,
    Work,
)
from lr.spec.scheduler import LookaheadScheduler
from lr.theory.chance import Acceptance, ByPlace, Constant, Duration, JudgeErrors
from lr.theory.workers import Span, Workers
from lr.trace import Draw, StepWritten, Trace, WorkSpan
from lr.types import EmittedStep, Finish, Origin, Role, Step, Verdict, require

ENDLESS = Limits(max_tokens=10**15)
"""No chain of a simulation gets that long."""
TIE = 1e-9
"""Completions that are less than this apart count as simultaneous: rounding must not decide what
comes first.
"""
STEP = Step((0,), Finish.BOUNDARY)
RIGHTLY, WRONGLY = (
    Verdict(aligned=True, why="equivalent"),
    Verdict(aligned=True, why="not equivalent, but the judge erred"),
)
NO_ERRORS = JudgeErrors()
POSITION, SIBLING, ERROR = "position", "sibling", "judge's error"
"""What draws are for, beside the durations."""
REJECTED = Verdict(aligned=False, why="rejected")


TARGET_STEP, DRAFT_STEP, AT_ONCE = Constant(1.0), Constant(0.1), Constant(0.0)


@dataclass(frozen=True)
class World:
    """What the scheduler runs on. Durations are those of a row that has the machine to itself.

    `target_overhead`, `draft_overhead`: n rows at a time make each 1 + overhead (n - 1) times as
    slow. `draft_workers`: nodes whose alternatives are written at a time (None: no limit);
    `judge_workers`: pairs judged at a time. `score`: a prefill of a target row, for verifiers that
    need no target step. `errors`: of the judge. `draft_turns`: draft and target share one machine
    on which, while both have work, the draft gets so many units of time for each of the target's
    (of a single row), and `change` is lost; None: one each. `reading`: before the target writes
    behind a draft step it reads it, for so long, while its other rows (and the draft, on the same
    machine) wait. The same `seed` gives the same simulation.
    """

    acceptance: Acceptance
    target: Duration | ByPlace = TARGET_STEP
    draft: Duration | ByPlace = DRAFT_STEP
    judge: Duration = AT_ONCE
    score: Duration = AT_ONCE
    errors: JudgeErrors = NO_ERRORS
    target_overhead: float = 0.0
    draft_overhead: float = 0.0
    draft_workers: int | None = 1
    judge_workers: int | None = None
    draft_turns: float | None = None
    change: float = 0.0
    reading: float = 0.0
    seed: int = 0


class Stage(NamedTuple):
    """From one step of the target to the next: a synchronous cycle, or an asynchronous stage up to
    its first reject.
    """

    accepted: int
    """Draft steps accepted; the stage emits one step more."""
    seconds: float


@dataclass
class Outcome:
    """What came of a simulation. `seconds`: the time of the last step emitted; `wrong`: accepted
    draft steps that were not equivalent.
    """

    seconds: float = 0.0
    origins: Counter[Origin] = field(default_factory=Counter)
    judged: int = 0
    wrong: int = 0
    stages: list[Stage] = field(default_factory=list)
    emissions: list[tuple[float, EmittedStep]] = field(default_factory=list)
    """(time, step), where the history was asked for."""
    spans: list[Span] = field(default_factory=list)
    """All work in the order in which it ended, where the history was asked for."""
    workers: dict[Kind, Workers] = field(default_factory=dict)
    """By DRAFT, TARGET (judgements without target step included) and JUDGE: `peak` rows, `busy` time, rows `begun` and
    `completed`.
    """

    @property
    def steps(self) -> int:
        """Steps emitted."""
        return self.origins.total()

    @property
    def rate(self) -> float:
        """Steps per unit of time: the speedup, where a target step takes one unit."""
        return self.steps / self.seconds

    @property
    def acceptance(self) -> float | None:
        """Accepted draft steps / judged draft steps; a verdict counts where a step was decided by
        it.
        """
        return self.origins[Origin.ACCEPTED] / self.judged if self.judged else None


def simulate(
    config: SchedulerConfig,
    world: World,
    steps: int,
    *,
    history: bool = False,
    trace: Trace | None = None,
) -> Outcome:
    """Emit `steps` steps, or fewer where the limits of `config` end the chain before. `trace` hears
    of everything, by the clock of the simulation."""
    require(steps >= 1, "steps", steps, "a whole number >= 1")
    return _Simulation(config, world, history, trace).run(steps)


def record_event(trace: Trace, event: Event) -> None:
    """Record what a scheduler without models is told, and before it the finished step, which a
    model would have recorded itself.
    """
    match event:
        case Drafted(node, Step() as step):
            trace.record(StepWritten(Role.DRAFT, node.index - 1, step, node))
        case Targeted(node, step):
            trace.record(StepWritten(Role.TARGET, node.index, step, node))
    trace.record(event)


class _Simulation:
    def __init__(
        self, config: SchedulerConfig, world: World, history: bool, trace: Trace | None
    ) -> None:
        self.scheduler = LookaheadScheduler(config)
        self.world, self.width, self.history, self.trace = world, config.width, history, trace
        if trace is not None:
            trace.clock, trace.start = lambda: self.now, 0.0
        self.now = self.stage_began = 0.0
        self.stage_accepted = 0
        draft = Workers(world.draft_workers, world.draft_overhead)
        target = Workers(None, world.target_overhead)
        judge = Workers(world.judge_workers)
        if world.draft_turns is not None:
            Workers.share_machine(draft, target, world.draft_turns, world.change)
        self.in_turn = (
            judge,
            target,
            draft,
        )  # simultaneous completions: what makes room comes before what asks for it
        self.by_kind = {
            Kind.DRAFT: draft,
            Kind.TARGET: target,
            Kind.JUDGE: judge if config.needs_target_step else target,
        }
        self.laws = {
            Kind.DRAFT: world.draft,
            Kind.TARGET: world.target,
            Kind.JUDGE: world.judge if config.needs_target_step else world.score,
        }
        self.outcome = Outcome(workers={Kind.DRAFT: draft, Kind.TARGET: target, Kind.JUDGE: judge})
        purposes = (POSITION, SIBLING, ERROR, *(kind.value for kind in Kind))
        self.streams = {purpose: Stream.root(world.seed).child(purpose) for purpose in purposes}

    def run(self, steps: int) -> Outcome:
        self._obey(self.scheduler.start(), steps)
        while self.outcome.steps < steps and not self.scheduler.done:
            span = self._next()
            self._keep(span)
            event = self._event(span.work)
            if self.trace is not None:
                record_event(self.trace, event)
            self._obey(self.scheduler.handle(event), steps)
        for worker in self.in_turn:
            for span in worker.stop(self.now):
                self._keep(span)
        return self.outcome

    def _next(self) -> Span:
        """Move the clock to the next completion."""
        worker, time = self.in_turn[0], self.in_turn[0].next_time()
        for later in self.in_turn[1:]:
            if (soon := later.next_time()) < time - TIE:
                worker, time = later, soon
        self.now = max(self.now, time)
        return worker.complete(self.now)

    def _obey(self, commands: Sequence[Command], steps: int) -> None:
        for command in commands:
            if self.trace is not None and not (
                isinstance(command, Emit) and self.outcome.steps >= steps
            ):
                self.trace.record(command)
            match command:
                case Draft(_, children):
                    self._submit(*(Work(Kind.DRAFT, child) for child in children))
                case Target(node):
                    read = node.index > node.stem  # a draft step leads there
                    self._submit(Work(Kind.TARGET, node), stall=self.world.reading if read else 0.0)
                case Judge(node):
                    self._submit(Work(Kind.JUDGE, node))
                case Cancel(work):
                    self._keep(self.by_kind[work.kind].cancel(self.now, work))
                case Emit() if self.outcome.steps < steps:
                    self._note(command)

    def _submit(self, *rows: Work, stall: float = 0.0) -> None:
        kind = rows[0].kind
        law = self.laws[kind]
        drawn = [(row, self._length(law, row.node, kind)) for row in rows]
        self.by_kind[kind].submit(self.now, drawn, stall)

    def _length(self, law: Duration | ByPlace, node: NodeId, kind: Kind) -> float:
        if isinstance(law, Constant):
            return law.value
        if isinstance(law, ByPlace):
            return law.at(
                node.index - (kind is Kind.DRAFT)
            )  # a draft step leads to its node, a target step follows it
        key = self._key(kind.value, node)
        drawn = law.draw(key)
        if self.trace is not None:
            self.trace.record(Draw(f"time of {kind.value}", node, key, drawn))
        return drawn

    def _event(self, work: Work) -> Event:
        match work.kind:
            case Kind.DRAFT:
                return Drafted(work.node, STEP)
            case Kind.TARGET:
                return Targeted(work.node, STEP)
            case Kind.JUDGE:
                return Judged(work.node, self._verdict(work.node))

    def _verdict(self, node: NodeId) -> Verdict:
        parent = node.parent(self.width)
        keys = self._key(POSITION, parent), self._key(SIBLING, node)
        equivalent = self.world.acceptance.equivalent(parent.index, *keys)
        if self.trace is not None:
            self.trace.record(Draw("equivalent", node, keys[1], float(equivalent)))
        aligned = equivalent
        if self.world.errors is not NO_ERRORS:
            aligned = self.world.errors.says_aligned(equivalent, self._key(ERROR, node))
        return (RIGHTLY if equivalent else WRONGLY) if aligned else REJECTED

    def _key(self, purpose: str, node: NodeId) -> int:
        return self.streams[purpose].child(node.stem, node.index).key(node.number)

    def _note(self, emit: Emit) -> None:
        outcome, origin = self.outcome, emit.emitted.origin
        outcome.seconds = self.now
        outcome.origins[origin] += 1
        outcome.judged += len(emit.verdicts)
        outcome.wrong += emit.emitted.verdict is WRONGLY
        if origin is Origin.ACCEPTED:
            self.stage_accepted += 1
        else:
            outcome.stages.append(Stage(self.stage_accepted, self.now - self.stage_began))
            self.stage_began, self.stage_accepted = self.now, 0
        if self.history:
            outcome.emissions.append((self.now, emit.emitted))

    def _keep(self, span: Span | None) -> None:
        if self.history and span is not None:
            self.outcome.spans.append(span)
        if self.trace is not None and span is not None:
            self.trace.record(WorkSpan(span.work, span.start, span.completed))
