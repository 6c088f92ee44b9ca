"""One cost line per model: fit it to traces, and predict the time of a step with it.

A pass over n rows (branches) that adds m tokens beyond the first of each row takes about

    first + row (n - 1) + token m    seconds

`PassCost.fit` fits this line to the passes of real runs. `seconds_per_step` runs the
scheduler on a simulated clock at these costs. Anything that this leaves out shows as a
difference from the measurement.

On one thread (driver lockstep) the time between two passes counts towards the pass that
ends it, and only verdicts are counted apart, so the parts add up to the whole.

Example: a target pass takes 4 ms for one row and 0.5 ms per further row. With steps of
20 tokens and three rows in flight on average, a step takes 20 (4 + 2 * 0.5) = 100 ms.
Read next: `calibration.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from statistics import fmean

import numpy as np

from lr.options import GenerateOptions
from lr.spec.protocol import Emit, Limits, Schedule, SchedulerConfig, WorkKind
from lr.theory.distributions import Bernoulli, Constant, Resampled
from lr.theory.simulate import ENDLESS, World, simulate
from lr.trace import (
    ForwardPass,
    RunEvent,
    SourceCall,
    Stats,
    StepWritten,
    VerifierCall,
    stats_of,
)
from lr.types import Role

DRAFT_FORWARDS = 8  # draft passes per target pass, the default of driver lockstep
SIMULATED_STEPS = 2000  # of each prediction
Timed = tuple[float, RunEvent]
"""(time of the event in seconds, event)."""
Passes = dict[tuple[int, int], tuple[int, float]]
"""(rows, tokens beyond the first of each row) -> (number of passes, their seconds)."""


@dataclass(frozen=True)
class PassCost:
    """Seconds: `first` for one row of one token, `row` per extra row, `token` per extra
    token."""

    first: float  # one row, one token
    row: float = 0.0  # each further row
    token: float = 0.0  # each further token of a row

    @classmethod
    def fit(cls, runs: Iterable[Passes]) -> PassCost:
        """Non-negative least squares over all passes; a part that does not vary costs
        0."""
        from scipy.optimize import nnls  # only fits need it

        groups = [(*key, *value) for passes in runs for key, value in passes.items()]
        if not groups:
            return cls(0.0)
        rows, extra, count, total = np.array(groups, dtype=float).T
        weight = np.sqrt(count)  # many equal passes count as many
        columns = np.stack([np.ones_like(rows), rows - 1, extra], axis=1)  # [passes, 3]
        columns = columns * weight[:, None]
        seconds = total / count * weight
        best, _ = nnls(columns, seconds)
        return cls(*map(float, best))

    def seconds(self, rows: float, extra: float = 0.0) -> float:
        """The time of a pass over `rows` rows with `extra` tokens beyond the first of
        each."""
        return self.first + self.row * (rows - 1) + self.token * extra


@dataclass(frozen=True)
class Load:
    """The work of answers in one way of decoding, independent of what a pass costs.

    `target_passes`: passes of the target for each step. `chain_lengths`: steps of each
    answer (empty: an endless chain). `proposed`: drafted tokens per row of a target
    pass, each from a pass of the draft model. `verdict`: seconds per pair; `start`:
    seconds for both prompts."""

    acceptance: float
    target_passes: Sequence[float]
    draft_lengths: Sequence[int]
    chain_lengths: Sequence[int] = ()
    proposed: float = 0.0
    verdict: float = 0.0
    start: float = 0.0

    @property
    def steps_per_chain(self) -> float:
        return fmean(self.chain_lengths) if self.chain_lengths else math.inf


@dataclass
class Answers:
    """What traces show of one way of decoding, added up over its answers.

    `stats`: with one alternative per position. `pairs`: judged, also those that decided
    nothing. `start`: seconds for the prompts; `passes`: all later passes, by answer and
    model."""

    stats: Stats = field(default_factory=Stats)
    pairs: int = 0
    start: float = 0.0
    passes: list[dict[Role, Passes]] = field(default_factory=list)
    chain_lengths: list[int] = field(default_factory=list)
    draft_lengths: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)

    def add(self, events: Sequence[Timed]) -> None:
        """Add one answer in which only one model runs at a time, so a pass takes the
        time since the previous pass ended."""
        passes: dict[Role, Passes] = {role: {} for role in Role}
        steps_before = len(self.emitted)
        last_end = 0.0
        started: set[Role] = set()
        for time, event in events:
            match event:
                case ForwardPass(role, rows, tokens):
                    seconds = time - last_end  # with what lies between passes
                    last_end = time
                    if role in started:
                        # tokens beyond the first of each row
                        shape = rows, tokens - rows
                        count, total = passes[role].get(shape, (0, 0.0))
                        passes[role][shape] = count + 1, total + seconds
                    else:  # the prompt, which counts as no pass
                        self.start += seconds
                    started.add(role)
                case StepWritten(Role.DRAFT, _, step):
                    self.draft_lengths.append(len(step.tokens))
                case VerifierCall(pairs, seconds):
                    last_end += seconds
                    self.pairs += pairs
                case SourceCall(seconds):
                    last_end += seconds
                case Emit(emitted):
                    self.emitted.append(len(emitted.step.tokens))
        self.stats += stats_of(events)
        self.chain_lengths.append(len(self.emitted) - steps_before)
        self.passes.append(passes)


def ratio_or(above: float, below: float, otherwise: float = 0.0) -> float:
    """above / below, or `otherwise` where nothing is below."""
    return above / below if below else otherwise


def drafted_tokens(options: GenerateOptions) -> int:
    """Tokens that are drafted ahead inside the target's steps."""
    return options.num_speculative_tokens if options.speculates else 0


def seconds_per_step(
    options: GenerateOptions,
    load: Load,
    costs: tuple[PassCost, PassCost],
    draft_forwards: int | None = DRAFT_FORWARDS,
) -> float:
    """Seconds per emitted step of answers with these options, from about
    `SIMULATED_STEPS` simulated steps. `costs` is (target, draft).

    `draft_forwards` None: each model has its own machine (driver overlapped), and the
    clock counts seconds. Otherwise they share a thread, and the clock counts ticks: one
    pass of the target, if it has rows, and up to `draft_forwards` passes of the
    draft."""
    target, draft = costs

    # 1. A pass of the target, with the passes that draft its tokens.
    first = target.seconds(1, load.proposed) + load.proposed * draft.first
    row = target.row + target.token * load.proposed + load.proposed * draft.row
    target_pass = PassCost(first, row)
    if not options.looks_ahead:  # no draft steps: passes one after the other
        return fmean(load.target_passes) * first + load.start / load.steps_per_chain

    # 2. The durations of a step on the simulated clock.
    tick = 1.0 if draft_forwards is None else first  # seconds of a unit of the clock
    # a pass of the draft that writes a step
    draft_token = draft.first if draft_forwards is None else 1 / draft_forwards
    draft_lengths = load.draft_lengths or (1,)
    reading = later = 0.0  # seconds a target step reads before it writes
    if load.draft_lengths:
        reading = target.token * fmean(load.draft_lengths)
        # in a synchronous batch each row begins one pass after the row before it
        later = target.first if options.schedule == "sync" else 0.0
    world = World(
        Bernoulli(load.acceptance),
        target=Resampled([passes * first / tick for passes in load.target_passes]),
        draft=Resampled([n * draft_token for n in draft_lengths]),
        judge=Constant(load.verdict if draft_forwards is None else 0.0),
        target_overhead=row / first if draft_forwards is None else 0.0,
        reading=reading / tick,
        reading_before=later / tick,
    )

    # 3. Simulate chains, and convert ticks to seconds.
    seconds = 0.0
    done = 0
    for number, chain in enumerate(cycle(load.chain_lengths or [0])):
        if done >= SIMULATED_STEPS:
            break
        limits = Limits(chain) if chain else ENDLESS  # a simulated step has one token
        config = SchedulerConfig(limits, Schedule(options.schedule), options.depth)
        world = replace(world, seed=number)
        run = simulate(config, world, chain or SIMULATED_STEPS)
        if draft_forwards is None:
            seconds += run.seconds
        else:
            reads = run.workers[WorkKind.TARGET]
            writes = run.workers[WorkKind.DRAFT]
            # one thread: passes add up
            rows = reads.busy / reads.occupied if reads.occupied else 1.0
            seconds += reads.occupied * target_pass.seconds(rows)
            seconds += writes.occupied * draft_forwards * draft.first
            seconds += run.judged * load.verdict
        seconds += load.start if chain else 0.0
        done += run.steps
    return seconds / done
