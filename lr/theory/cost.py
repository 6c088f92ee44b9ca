"""One cost line per model: fit it to traces, predict a speedup with it, compare.

A pass over n rows (branches) that adds m tokens beyond the first of each row takes about

    first + row (n - 1) + token m    seconds

`PassCost.fit` fits this line to the passes of real runs. `calibrate` collects what else
the formulas need: acceptance, lengths, the time of a verdict. `seconds_per_step` then
runs the scheduler on a simulated clock at these costs. Anything that this leaves out
shows as a difference from the measurement.

On one thread (driver lockstep) the time between two passes counts towards the pass that
ends it, and only verdicts are counted apart, so the parts add up to the whole.

Example: a target pass takes 4 ms for one row and 0.5 ms per further row. With steps of
20 tokens and three rows in flight on average, a step takes 20 (4 + 2 * 0.5) = 100 ms."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from lr.errors import LRError
from lr.spec.protocol import Emit, Limits, Schedule, SchedulerConfig, WorkKind
from lr.theory.asynchronous import Window, lr_async_speedup
from lr.theory.distributions import Bernoulli, Constant, Resampled
from lr.theory.domain import geometric
from lr.theory.simulate import ENDLESS, World, simulate
from lr.theory.synchronous import lr_sync_cycle_speedup, sd_speedup
from lr.trace import (
    ForwardPass,
    RunEvent,
    StepWritten,
    TokenRound,
    TokenRounds,
    VerifierCall,
)
from lr.types import Role

DRAFT_FORWARDS = 8  # draft passes per target pass, the default of driver lockstep
SIMULATED_STEPS = 2000  # of each prediction
VERSION = 4
Timed = tuple[float, RunEvent]
"""(time of the event in seconds, event)."""
Passes = dict[tuple[int, int], tuple[int, float]]
"""(rows, tokens beyond the first of each row) -> (number of passes, their seconds)."""


class CalibrationError(LRError):
    """A calibration file is missing, broken or of another version."""


# ---- fit


@dataclass(frozen=True)
class PassCost:
    """Seconds: `first` for one row of one token, `row` per extra row, `token` per extra
    token."""

    first: float
    row: float = 0.0
    token: float = 0.0

    @classmethod
    def fit(cls, runs: Iterable[Passes]) -> PassCost:
        """Non-negative least squares over all passes; a part that does not vary costs
        0."""
        groups = [(*key, *value) for passes in runs for key, value in passes.items()]
        if not groups:
            return cls(0.0)
        rows, extra, count, total = np.array(groups, dtype=float).T
        weight = np.sqrt(count)
        columns = np.stack([np.ones_like(rows), rows - 1, extra], axis=1)
        columns = columns * weight[:, None]
        seconds = total / count * weight
        # The best non-negative fit is the plain fit of some of the three parts. All
        # choices are tried, small ones first. (scipy.optimize.nnls computes the same,
        # but scripts/gpu_check.py must run without scipy.)
        best, smallest = np.zeros(3), np.inf
        tolerance = 1e-9 * float(np.linalg.norm(seconds))
        for parts in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
            line = np.zeros(3)
            line[parts] = np.linalg.lstsq(columns[:, parts], seconds, rcond=None)[0]
            error = float(np.linalg.norm(columns @ line - seconds))
            if (line >= 0).all() and error < smallest - tolerance:
                best, smallest = line, error
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
    pass; `draft_passes`: passes of the draft model that propose them (0: prompt
    lookup). A draft pass that writes a step reads `looked_up` drafted tokens and adds
    `draft_tokens`. `verdict`: seconds per pair; `start`: seconds for both prompts."""

    acceptance: float
    target_passes: Sequence[float]
    draft_lengths: Sequence[int]
    chain_lengths: Sequence[int] = ()
    proposed: float = 0.0
    draft_passes: float = 0.0
    looked_up: float = 0.0
    draft_tokens: float = 1.0
    verdict: float = 0.0
    start: float = 0.0


@dataclass
class Answers:
    """What traces show of one way of decoding, added up over its answers.

    `judged`, `accepted`: by alternative; 1, the second, is judged where 0 was rejected.
    `start`: seconds for the prompts; `passes`: all later passes, by answer and
    model."""

    judged: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    verdict_seconds: float = 0.0
    pairs: int = 0
    start: float = 0.0
    passes: list[dict[Role, Passes]] = field(default_factory=list)
    rounds: dict[Role, TokenRounds] = field(
        default_factory=lambda: {role: TokenRounds() for role in Role}
    )
    chain_lengths: list[int] = field(default_factory=list)
    lengths: dict[Role, list[int]] = field(
        default_factory=lambda: {role: [] for role in Role}
    )
    emitted: list[int] = field(default_factory=list)

    def add(self, events: Sequence[Timed], *, alone: bool = True) -> None:
        """Add one answer. `alone`: only one model runs at a time, so a pass takes the
        time since the previous pass ended. Otherwise only the time of its own forward
        counts."""
        passes: dict[Role, Passes] = {role: {} for role in Role}
        steps_before = len(self.emitted)
        last_end = 0.0
        started: set[Role] = set()
        for time, event in events:
            match event:
                case ForwardPass(role, rows, tokens, own_seconds):
                    seconds = time - last_end if alone else own_seconds
                    last_end = time
                    if role in started:
                        shape = rows, tokens - rows
                        count, total = passes[role].get(shape, (0, 0.0))
                        passes[role][shape] = count + 1, total + seconds
                    else:  # the prompt, which counts as no pass
                        self.start += seconds
                    started.add(role)
                case StepWritten(role, _, step):
                    self.lengths[role].append(len(step.tokens))
                case VerifierCall(pairs, seconds):
                    last_end += seconds
                    self.pairs += pairs
                    self.verdict_seconds += seconds
                case TokenRound(role):
                    self.rounds[role] += TokenRounds.of([event])
                case Emit(emitted, verdicts):
                    for alternative, verdict in enumerate(verdicts):
                        self.judged[alternative] += 1
                        self.accepted[alternative] += verdict.aligned
                    self.emitted.append(len(emitted.step.tokens))
        self.chain_lengths.append(len(self.emitted) - steps_before)
        self.passes.append(passes)

    def load(self, *, lookup: bool) -> Load:
        """The work of these answers. `lookup`: token drafts are looked up, at no
        cost."""
        target, draft = self.rounds[Role.TARGET], self.rounds[Role.DRAFT]
        tokens_per_pass = _ratio(target.emitted, target.count, otherwise=1.0)
        proposed = _ratio(target.drafted, target.count)
        target_lengths = self.lengths[Role.TARGET] or self.emitted
        return Load(
            acceptance=_ratio(self.accepted[0], self.judged[0]),
            target_passes=[length / tokens_per_pass for length in target_lengths],
            draft_lengths=self.lengths[Role.DRAFT],
            chain_lengths=self.chain_lengths,
            proposed=proposed,
            draft_passes=0.0 if lookup else proposed,
            looked_up=_ratio(draft.drafted, draft.count),
            draft_tokens=_ratio(draft.emitted, draft.count, otherwise=1.0),
            verdict=_ratio(self.verdict_seconds, self.pairs),
        )


def _ratio(above: float, below: float, otherwise: float = 0.0) -> float:
    return above / below if below else otherwise


@dataclass
class ProblemRuns:
    """The runs of one problem, on one thread; problems are the independent units of a
    calibration: plain decoding, synchronous lookahead, tokens drafted by the draft
    model, and both."""

    plain: Answers = field(default_factory=Answers)
    lookahead: Answers = field(default_factory=Answers)
    tokens: Answers = field(default_factory=Answers)
    both: Answers = field(default_factory=Answers)


@dataclass(frozen=True)
class Calibration:
    """A pair of models on one machine, with times in seconds.

    `alpha1`, `alpha2`: the share of judged draft steps, and of tried draft tokens, that
    was accepted. `plain_token`: a token of plain decoding; `target`, `draft`: passes in
    runs with speculation. `verdict`: per pair; `start`: the prompt, for both models.
    `lookup`: draft tokens are looked up and cost nothing. Lengths are those of every
    recorded step (in tokens) and chain (in steps); none: one token, an endless chain.
    `errors`: standard errors by name."""

    name: str
    alpha1: float
    alpha2: float
    plain_token: float
    target: PassCost
    draft: PassCost
    verdict: float = 0.0
    start: float = 0.0
    lookup: bool = False
    target_lengths: tuple[int, ...] = ()
    draft_lengths: tuple[int, ...] = ()
    chain_lengths: tuple[int, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    @property
    def step_seconds(self) -> float:
        """T: a step of mean length in plain decoding."""
        return fmean(self.target_lengths or (1,)) * self.plain_token

    @property
    def c1(self) -> float:
        """A draft step, in T."""
        return fmean(self.draft_lengths or (1,)) * self.draft.first / self.step_seconds

    @property
    def c2(self) -> float:
        """A drafted token, in plain target passes."""
        return 0.0 if self.lookup else self.draft.first / self.plain_token

    @property
    def b(self) -> float:
        """A further row in a target batch, in units of a pass with one row."""
        return self.target.row / self.target.first

    @property
    def v(self) -> float:
        """A verdict, in T."""
        return self.verdict / self.step_seconds

    def expected_load(self, tokens: int = 0) -> Load:
        """The work of answers with `tokens` drafted tokens per round inside the
        target's steps. Rounds per step are drawn several times for each recorded
        length, since a batch waits for the row that needs the most rounds."""
        chance = random.Random(0)
        draws = 1 + 400 // (len(self.target_lengths) or 1) if tokens else 1
        rounds = [
            float(draw_rounds(self.alpha2, tokens, length, chance))
            for length in self.target_lengths
            for _ in range(draws)
        ]
        return Load(
            acceptance=self.alpha1,
            target_passes=rounds or [1 / float(geometric(self.alpha2, tokens + 1))],
            draft_lengths=self.draft_lengths,
            chain_lengths=self.chain_lengths,
            proposed=tokens,
            draft_passes=0 if self.lookup else tokens,
            verdict=self.verdict,
            start=self.start,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file. Raises `CalibrationError` with its name and what is wrong."""
        import msgspec

        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            calibration = msgspec.convert(data, cls)
        except (OSError, ValueError) as error:
            hint = "Make it with lr calibrate --output FILE."
            message = f"{path} is not a calibration: {error}. {hint}"
            raise CalibrationError(message) from None
        rates = calibration.alpha1, calibration.alpha2
        if calibration.version != VERSION or not all(0 <= rate <= 1 for rate in rates):
            raise CalibrationError(
                f"{path} has version {calibration.version} and acceptance rates {rates}, "
                f"expected version {VERSION} and probabilities."
            )
        return calibration


def draw_rounds(alpha: float, k: int, length: int, chance: random.Random) -> int:
    """Draw how many rounds of k drafted tokens a step of `length` tokens takes.

    A round writes 1 to k + 1 tokens; tokens beyond the end of the step are dropped.
    Example: ceil(length / 4) for alpha = 1, k = 3."""
    rounds = written = 0
    while written < length:
        accepted = next((i for i in range(k) if chance.random() >= alpha), k)
        rounds += 1
        written += accepted + 1
    return rounds


def calibrate(
    problems: Sequence[ProblemRuns], name: str, conditions: Mapping[str, Any]
) -> Calibration:
    """All parameters, with jackknife errors over at least two problems."""
    assert len(problems) >= 2
    calibration = _estimate(problems, name)
    without = [
        _estimate([*problems[:i], *problems[i + 1 :]], name)
        for i in range(len(problems))
    ]
    errors = {
        name: jackknife([getattr(estimate, name) for estimate in without])
        for name in ("alpha1", "alpha2", "c1", "c2", "b", "v")
    }
    return replace(calibration, errors=errors, conditions=dict(conditions))


def _estimate(problems: Sequence[ProblemRuns], name: str) -> Calibration:
    lookahead = [problem.lookahead for problem in problems]
    plain = [problem.plain for problem in problems]
    speculating = [
        answers for p in problems for answers in (p.lookahead, p.tokens, p.both)
    ]
    fitted = {
        role: PassCost.fit(
            run[role] for answers in speculating for run in answers.passes
        )
        for role in Role
    }
    rounds = [problem.tokens.rounds[Role.TARGET] for problem in problems]
    plain_passes = [
        group
        for answers in plain
        for run in answers.passes
        for group in run[Role.TARGET].values()
    ]
    return Calibration(
        name=name,
        alpha1=_ratio(
            sum(answers.accepted[0] for answers in lookahead),
            sum(answers.judged[0] for answers in lookahead),
        ),
        alpha2=_ratio(sum(r.accepted for r in rounds), sum(r.tried for r in rounds)),
        plain_token=_ratio(
            sum(seconds for _, seconds in plain_passes),
            sum(count for count, _ in plain_passes),
        ),
        target=fitted[Role.TARGET],
        draft=fitted[Role.DRAFT],
        verdict=_ratio(
            sum(answers.verdict_seconds for answers in lookahead),
            sum(answers.pairs for answers in lookahead),
        ),
        start=fmean(answers.start for answers in lookahead),
        target_lengths=tuple(n for answers in plain for n in answers.emitted),
        draft_lengths=tuple(n for a in lookahead for n in a.lengths[Role.DRAFT]),
        chain_lengths=tuple(len(answers.emitted) for answers in plain),
    )


# ---- predict


@dataclass(frozen=True)
class Way:
    """A way of decoding. `depth` 0: no lookahead. `tokens` 0: no token-level
    speculation."""

    schedule: Schedule = Schedule.SYNC
    depth: int = 0
    tokens: int = 0

    @property
    def name(self) -> str:
        """Such as "sync 4", "sd 2" or "sync 4 + sd 2"."""
        parts = [f"{self.schedule.value} {self.depth}"] if self.depth else []
        parts += [f"sd {self.tokens}"] if self.tokens else []
        return " + ".join(parts) or "ar"

    def formula(self, calibration: Calibration) -> float:
        """The closed form at the calibrated values, if only the target speculates on
        tokens: it shortens the target's step and so makes the draft's dearer."""
        alpha = calibration.alpha1
        tokens = float(sd_speedup(calibration.alpha2, self.tokens, calibration.c2))
        c = calibration.c1 * tokens
        if self.depth == 0:
            return tokens
        if self.schedule is Schedule.SYNC:
            return tokens * float(lr_sync_cycle_speedup(alpha, self.depth, c))
        c = min(c, 1 - 1e-9)  # a draft that is no faster than the target gains nothing
        window: Window = "paper" if self.schedule is Schedule.PAPER else "depth"
        return tokens * float(lr_async_speedup(alpha, self.depth, c, window))


def seconds_per_step(
    way: Way,
    load: Load,
    costs: tuple[PassCost, PassCost],
    draft_forwards: int | None = DRAFT_FORWARDS,
    *,
    steps: int | None = None,
) -> float:
    """Seconds per emitted step, from about `steps` simulated steps (None:
    `SIMULATED_STEPS`). `costs` is (target, draft).

    `draft_forwards` None: each model has its own machine (driver overlapped), and the
    clock counts seconds. Otherwise they share a thread, and the clock counts ticks: one
    pass of the target, if it has rows, and up to `draft_forwards` passes of the
    draft."""
    target, draft = costs
    overlapped = draft_forwards is None

    # 1. A pass of the target, with the passes that draft its tokens.
    first = target.seconds(1, load.proposed) + load.draft_passes * draft.first
    row = target.row + target.token * load.proposed + load.draft_passes * draft.row
    target_pass = PassCost(first, row)
    if way.depth == 0:
        chain = fmean(load.chain_lengths) if load.chain_lengths else float("inf")
        return fmean(load.target_passes) * first + load.start / chain

    # 2. The durations of a step on the simulated clock.
    tick = 1.0 if draft_forwards is None else first  # seconds of a unit of the clock
    writing = draft.seconds(1, load.looked_up)  # a pass of the draft that writes a step
    draft_token = writing if draft_forwards is None else 1 / draft_forwards
    draft_lengths = load.draft_lengths or (1,)
    reading = target.token * fmean(load.draft_lengths) if load.draft_lengths else 0.0
    # in a synchronous batch each row begins one pass after the row before it
    later = (
        target.first if way.schedule is Schedule.SYNC and load.draft_lengths else 0.0
    )
    world = World(
        Bernoulli(load.acceptance),
        target=Resampled([passes * first / tick for passes in load.target_passes]),
        draft=Resampled([n * draft_token / load.draft_tokens for n in draft_lengths]),
        judge=Constant(load.verdict if overlapped else 0.0),
        target_overhead=row / first if overlapped else 0.0,
        reading=reading / tick,
        reading_before=later / tick,
    )

    # 3. Simulate chains, and convert ticks to seconds.
    seconds, done, number = 0.0, 0, 0
    steps = steps or SIMULATED_STEPS
    chains = load.chain_lengths or [0]
    while done < steps:
        chain = chains[number % len(chains)]
        limits = Limits(chain) if chain else ENDLESS  # a simulated step has one token
        config = SchedulerConfig(limits, way.schedule, way.depth)
        run = simulate(config, replace(world, seed=number), chain or steps)
        if draft_forwards is None:
            seconds += run.seconds
        else:
            reads, writes = run.workers[WorkKind.TARGET], run.workers[WorkKind.DRAFT]
            seconds += reads.occupied * target_pass.seconds(reads.mean_rows)
            seconds += writes.occupied * draft_forwards * writing
            seconds += run.judged * load.verdict
        seconds += load.start if chain else 0.0
        done += run.steps
        number += 1
    return seconds / done


def plain_seconds(calibration: Calibration) -> float:
    """Seconds per step of plain decoding, whose prompt takes about half of both models'
    prompts."""
    load = calibration.expected_load()
    chain = fmean(load.chain_lengths) if load.chain_lengths else float("inf")
    writing = fmean(load.target_passes) * calibration.plain_token
    return writing + calibration.start / 2 / chain


def predicted_speedup(
    way: Way, calibration: Calibration, draft_forwards: int | None = DRAFT_FORWARDS
) -> float:
    """Speedup over plain decoding, from the calibration alone."""
    load = calibration.expected_load(way.tokens)
    costs = calibration.target, calibration.draft
    seconds = seconds_per_step(way, load, costs, draft_forwards)
    return plain_seconds(calibration) / seconds


# ---- compare


@dataclass(frozen=True)
class Compared:
    """One way on other problems than those of the calibration: the closed form, the
    prediction, and the measured speedup with its standard error."""

    way: Way
    formula: float
    expected: float
    measured: float
    error: float

    @property
    def gap(self) -> float:
        """expected / measured - 1."""
        return self.expected / self.measured - 1


def ratio_with_error(
    above: Sequence[float], below: Sequence[float]
) -> tuple[float, float]:
    """sum(above) / sum(below) over at least two problems, and its standard error."""
    total_above, total_below = sum(above), sum(below)
    without = [
        (total_above - x) / (total_below - y) for x, y in zip(above, below, strict=True)
    ]
    return total_above / total_below, jackknife(without)


def jackknife(estimates: Sequence[float]) -> float:
    """The standard error of an estimate, from the `estimates` that each leave out one of
    n independent problems."""
    mean, n = fmean(estimates), len(estimates)
    return sqrt((n - 1) / n * sum((value - mean) ** 2 for value in estimates))
