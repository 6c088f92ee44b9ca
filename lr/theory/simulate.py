"""The scheduler on a simulated clock: how long does an answer take, given the times of
steps?

This is the same scheduler that runs on models. Here its commands go to three workers:
draft, target and verifier. How long they work and which drafts are accepted is drawn
from distributions. With constant times and independent acceptance the results equal the
closed forms; other cases may have no closed form.

    world = World(Bernoulli(0.6), draft=Constant(0.2))
    simulate(SchedulerConfig(ENDLESS, Schedule.PAPER, depth=3), world, steps=10_000).rate

By default one draft model writes the alternatives of one node at a time, all target
rows progress in parallel, and verdicts are immediate. Every step has one token. The
unit of time is that of `World`, usually one target step. This module knows no model and
no closed form."""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lr.rng import Stream
from lr.spec import protocol as messages
from lr.spec.protocol import Emit, Limits, NodeId, SchedulerConfig, Work, WorkKind
from lr.spec.scheduler import LookaheadScheduler
from lr.theory.distributions import Acceptance, Constant, Duration, JudgeErrors
from lr.types import Finish, Origin, Step, Verdict, require

ENDLESS = Limits(max_tokens=10**15)  # no simulated chain reaches it
TIE = 1e-9  # closer completions are simultaneous, so that rounding does not decide their order
STEP = Step((0,), Finish.BOUNDARY)
RIGHTLY = Verdict(aligned=True, why="equivalent")
WRONGLY = Verdict(aligned=True, why="not equivalent, but the judge erred")
REJECTED = Verdict(aligned=False, why="rejected")
NO_ERRORS = JudgeErrors()
TARGET_STEP = Constant(1.0)
DRAFT_STEP = Constant(0.1)
AT_ONCE = Constant(0.0)


class _RunningRow(NamedTuple):
    """A running row. `end`: the progress of the rows at which it completes."""

    end: float
    job: int


class Workers:
    """A model with a batch, or a verifier, on the simulated clock.

    At most `slots` jobs run; other jobs wait in order. All n running rows progress at
    the rate 1 / (1 + overhead (n - 1)), so n equal rows take 1 + overhead (n - 1) times
    as long as one.

    Example, overhead 0.5: row x of length 1 begins at 0, row y of length 1 at 0.4. By
    0.4, x alone has progressed 0.4. Then both run at rate 1 / 1.5, so x ends at 0.4 +
    0.6 * 1.5 = 1.3. By then y has progressed 0.6; alone again, it ends at 1.3 + 0.4 =
    1.7.

    `peak`: most rows at a time; `busy`: total time of the rows; `occupied`: time with
    at least one row."""

    def __init__(self, slots: int | None = None, overhead: float = 0.0) -> None:
        assert slots is None or slots >= 1
        assert 0 <= overhead < math.inf
        self.peak = 0  # the most rows at a time
        self.busy = 0.0  # rows times time
        self.occupied = 0.0  # time with at least one row
        self._time = 0.0
        self._progress = 0.0  # of a row that has run all the time
        self._slots = math.inf if slots is None else slots
        self._overhead = overhead
        self._queue: deque[dict[Work, float]] = deque()  # waiting jobs: rows, lengths
        self._rows: dict[Work, _RunningRow] = {}  # in the order in which they began
        self._jobs = 0

    def submit(self, now: float, job: dict[Work, float]) -> None:
        """Add a job: its rows, each with its length."""
        self._queue.append(job)
        self._fill(now)

    def remove(self, now: float, work: Work) -> None:
        """End a row, whether it runs or waits."""
        self.advance(now)
        self._rows.pop(work, None)
        for job in self._queue:
            job.pop(work, None)
        self._fill(now)

    def next_time(self) -> float:
        """When the next row will complete if nothing else happens; infinity without
        rows."""
        if not self._rows:
            return math.inf
        # progress until the first row ends
        left = min(row.end for row in self._rows.values()) - self._progress
        return self._time + max(0.0, left) * self._slowness()  # progress to time

    def complete(self, now: float) -> Work:
        """Complete the next row; `now` is its time."""
        work = min(self._rows, key=lambda work: self._rows[work].end)
        self.remove(now, work)
        return work

    def _slowness(self) -> float:
        """Time per unit of progress of the running rows."""
        # each further row slows all down
        return 1 + self._overhead * (len(self._rows) - 1)

    def advance(self, now: float) -> None:
        """Bring the progress up to `now`, before the number of rows changes."""
        if self._rows and now > self._time:
            passed = now - self._time
            self._progress += passed / self._slowness()
            self.occupied += passed
            self.busy += passed * len(self._rows)
        self._time = now

    def _fill(self, now: float) -> None:
        """Give free slots to waiting jobs."""
        self.advance(now)
        while (
            self._queue and len({row.job for row in self._rows.values()}) < self._slots
        ):
            self._jobs += 1
            for work, length in self._queue.popleft().items():
                self._rows[work] = _RunningRow(self._progress + length, self._jobs)
            self.peak = max(self.peak, len(self._rows))


@dataclass(frozen=True)
class World:
    """What the scheduler runs on. Durations are for a row that is alone in its batch.

    `judge`: a verdict, or the target's prefill where the verifier needs no target step.
    `target_overhead`: n rows of the target together take 1 + overhead (n - 1) times as
    long. `draft_workers`: nodes whose alternatives are written at the same time (None:
    no limit). `errors`: those of the verifier.
    `reading`: extra time of a target step after a draft step, which the target must
    read first. `reading_before`: extra time for each further draft step since the last
    correction, if rows begin one after another. The same `seed` gives the same run."""

    acceptance: Acceptance
    target: Duration = TARGET_STEP
    draft: Duration = DRAFT_STEP
    judge: Duration = AT_ONCE
    errors: JudgeErrors = NO_ERRORS
    target_overhead: float = 0.0
    draft_workers: int | None = 1
    reading: float = 0.0  # of the draft step before
    reading_before: float = 0.0  # of each step before that, in a sync batch
    seed: int = 0


class Stage(NamedTuple):
    """From one emitted target step to the next: a synchronous cycle, or up to the next
    rejection.

    It emits `accepted` + 1 steps."""

    accepted: int
    seconds: float


@dataclass
class SimulationOutcome:
    """The result. `seconds`: time of the last step. `wrong`: accepted, but not
    equivalent."""

    seconds: float = 0.0
    origins: Counter[Origin] = field(default_factory=Counter)
    judged: int = 0
    wrong: int = 0
    stages: list[Stage] = field(default_factory=list)
    workers: dict[WorkKind, Workers] = field(default_factory=dict)
    """DRAFT, TARGET (it also judges if no target step is needed) and JUDGE."""

    @property
    def steps(self) -> int:
        return self.origins.total()

    @property
    def rate(self) -> float:
        """Steps per unit of time. This is the speedup if a target step takes one
        unit."""
        return self.steps / self.seconds

    @property
    def acceptance(self) -> float | None:
        """Accepted / judged draft steps. Only verdicts that decided a step count."""
        return self.origins[Origin.ACCEPTED] / self.judged if self.judged else None


def simulate(config: SchedulerConfig, world: World, steps: int) -> SimulationOutcome:
    """Emit `steps` steps, or fewer if the limits of `config` end the chain. Raises
    `SettingError` for steps < 1."""
    require(steps >= 1, "steps", steps, "a whole number >= 1")
    return _Simulation(config, world).run(steps)


class _Simulation:
    def __init__(self, config: SchedulerConfig, world: World) -> None:
        self.scheduler = LookaheadScheduler(config)
        self.width = config.width
        self.world = world
        self.stream = Stream.root(world.seed)
        self.now = 0.0
        self.stage_began = 0.0
        self.stage_accepted = 0
        draft = Workers(world.draft_workers)
        target = Workers(None, world.target_overhead)  # all rows in one batch
        judge = Workers()
        # among simultaneous completions, those that make room for others come first
        self.outcome = SimulationOutcome(
            workers={
                WorkKind.JUDGE: judge,
                WorkKind.TARGET: target,
                WorkKind.DRAFT: draft,
            }
        )
        # a draft step alone is a row of the target
        judging = judge if config.needs_target_step else target
        self.kinds = {
            WorkKind.DRAFT: (draft, world.draft),
            WorkKind.TARGET: (target, world.target),
            WorkKind.JUDGE: (judging, world.judge),
        }

    def run(self, steps: int) -> SimulationOutcome:
        self._obey(self.scheduler.start(), steps)
        while self.outcome.steps < steps and not self.scheduler.done:
            # move the clock to the next completion, the first of those at one time
            workers = list(self.outcome.workers.values())
            times = [worker.next_time() for worker in workers]
            first = next(i for i, time in enumerate(times) if time <= min(times) + TIE)
            self.now = max(self.now, times[first])
            event = self._event(workers[first].complete(self.now))
            self._obey(self.scheduler.handle(event), steps)
        for worker in self.outcome.workers.values():
            worker.advance(self.now)
        return self.outcome

    def _obey(self, commands: Sequence[messages.Command], steps: int) -> None:
        for command in commands:
            match command:
                case messages.Draft(_, children):
                    self._submit(WorkKind.DRAFT, *children)
                case messages.Target(node):
                    self._submit(WorkKind.TARGET, node)
                case messages.Judge(node):
                    self._submit(WorkKind.JUDGE, node)
                case messages.Cancel(work):
                    self.kinds[work.kind][0].remove(self.now, work)
                case Emit() if self.outcome.steps < steps:
                    # one event can emit more steps than requested
                    self._note(command)

    def _submit(self, kind: WorkKind, *nodes: NodeId) -> None:
        worker, duration = self.kinds[kind]
        rows = {}
        for node in nodes:
            if isinstance(duration, Constant):  # needs no key, which takes time
                length = duration.value
            else:
                length = duration.draw(self._key(kind.value, node))
            level = node.index - node.stem  # draft steps since the last correction
            if kind is WorkKind.TARGET and level:
                length += self.world.reading + self.world.reading_before * (level - 1)
            rows[Work(kind, node)] = length
        worker.submit(self.now, rows)

    def _event(self, work: Work) -> messages.Event:
        node = work.node
        if work.kind is WorkKind.DRAFT:
            return messages.Drafted(node, STEP)
        if work.kind is WorkKind.TARGET:
            return messages.Targeted(node, STEP)
        parent = node.parent(self.width)
        position = self._key("position", parent)
        sibling = self._key("sibling", node)
        equivalent = self.world.acceptance.equivalent(parent.index, position, sibling)
        error = self._key("judge's error", node)
        aligned = self.world.errors.says_aligned(equivalent, error)
        accepted = RIGHTLY if equivalent else WRONGLY
        return messages.Judged(node, accepted if aligned else REJECTED)

    def _key(self, purpose: str, node: NodeId) -> int:
        # any order of events draws the same
        return self.stream.fold_in(purpose, node.stem, node.index).key(node.number)

    def _note(self, emit: Emit) -> None:
        outcome = self.outcome
        origin = emit.emitted.origin
        outcome.seconds = self.now
        outcome.origins[origin] += 1
        outcome.judged += len(emit.verdicts)
        outcome.wrong += emit.emitted.verdict is WRONGLY
        if origin is Origin.ACCEPTED:
            self.stage_accepted += 1
        else:
            seconds = self.now - self.stage_began
            # a stage ends with a step of the target
            outcome.stages.append(Stage(self.stage_accepted, seconds))
            self.stage_began = self.now
            self.stage_accepted = 0
