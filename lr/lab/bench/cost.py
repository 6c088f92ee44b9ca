"""What a pass costs, fitted to the passes of a run, and the time that a schedule would take at that
cost.

A pass over n rows with m tokens more than one per row takes about `first + row (n - 1) + token m`
seconds: one line through all passes of a model. The prediction puts these costs, the measured
acceptance rate and the measured lengths of steps into the simulator, in which the scheduler is the
real one (`theory/simulate.py`). So it says what the algorithm would do on this machine if nothing
cost time but passes and verdicts, and acceptance were independent of place and length; what it
leaves out shows as a difference.

Example: target passes of 4 ms for one row and 0.5 ms per row more, steps of 20 tokens, three rows
in flight on average: a step takes 20 * (4 + 2 * 0.5) = 100 ms from its begin to its end.

- lockstep: the clock counts ticks. A tick is one pass of the target, if it has rows, and up to
  `draft_ticks` of the draft, so a draft step of l tokens takes l / draft_ticks ticks; afterwards
  ticks are turned into seconds.
- overlapped: the clock counts seconds; draft and target work side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from lr.spec.protocol import Kind, Schedule, SchedulerConfig
from lr.theory.chance import Bernoulli, Constant, Resampled
from lr.theory.simulate import ENDLESS, World, simulate
from lr.theory.workers import Span
from lr.trace import ForwardPass

CHAINS = 400
"""Simulated answers of a prediction."""


@dataclass(frozen=True)
class PassCost:
    """Seconds of a pass: `first` for one row of one token, `row` for each row more, `token` for
    each token more than one per row.
    """

    first: float
    row: float = 0.0
    token: float = 0.0

    @classmethod
    def fit(cls, passes: Iterable[ForwardPass]) -> PassCost:
        """Least squares over passes (at least one). What does not vary among them costs nothing; no
        part is negative.
        """
        seen = list(passes)
        seconds = torch.tensor([p.seconds for p in seen], dtype=torch.float64)
        columns = torch.tensor(
            [[1.0, p.branches - 1, p.tokens - p.branches] for p in seen], dtype=torch.float64
        )
        used = [0, *(i for i in (1, 2) if float(columns[:, i].max()) > 0)]
        while True:
            found = (
                torch.linalg.lstsq(columns[:, used], seconds[:, None], driver="gelsd")
                .solution[:, 0]
                .tolist()
            )
            negative = [i for i, value in zip(used, found, strict=True) if i and value < 0]
            if not negative:
                parts = dict(zip(used, found, strict=True))
                return cls(*(parts.get(i, 0.0) for i in range(3)))
            used = [i for i in used if i not in negative]

    def seconds(self, rows: float, more: float = 0.0) -> float:
        """Of a pass over `rows` rows with `more` tokens beyond one per row; averages are as good as
        counts.
        """
        return self.first + self.row * (rows - 1) + self.token * more


@dataclass(frozen=True)
class Load:
    """What a way of looking ahead had to do: the measured rate of accepted steps, steps per answer,
    the lengths of steps in tokens, tokens of a target row per pass (1 without token-level
    speculation), tokens that a row's pass covers beyond the first, seconds of the verifier per
    pair."""

    acceptance: float
    chain_lengths: Sequence[int]
    target_lengths: Sequence[int]
    draft_lengths: Sequence[int]
    tokens_per_pass: float = 1.0
    guessed: float = 0.0
    verdict: float = 0.0


def predicted_rate(
    config: tuple[Schedule, int],
    load: Load,
    costs: tuple[PassCost, PassCost],
    draft_ticks: int | None,
) -> float:
    """Tokens per second of schedule and depth `config` at the costs of (target, draft).
    `draft_ticks` None: overlapped.

    Simulates `CHAINS` answers that have as many steps as those that were measured.
    """
    seconds, steps = 0.0, 0
    for number in range(CHAINS):
        length = load.chain_lengths[number % len(load.chain_lengths)]
        run = (SchedulerConfig(ENDLESS, *config), length, number)
        seconds += (
            _overlapped(run, load, *costs)
            if draft_ticks is None
            else _lockstep(run, load, *costs, draft_ticks)
        )
        steps += length
    return steps * sum(load.target_lengths) / len(load.target_lengths) / seconds


_Run = tuple[SchedulerConfig, int, int]
"""A schedule, steps to emit, and a seed."""


def _overlapped(run: _Run, load: Load, target: PassCost, draft: PassCost) -> float:
    """Seconds of one chain with draft and target side by side."""
    config, steps, seed = run
    alone = target.seconds(1, load.guessed)
    world = World(
        Bernoulli(load.acceptance),
        Resampled([length / load.tokens_per_pass * alone for length in load.target_lengths]),
        Resampled([length * draft.first for length in load.draft_lengths]),
        Constant(load.verdict),
        target_overhead=(target.seconds(2, 2 * load.guessed) - alone) / alone,
        judge_workers=1,
        seed=seed,
    )
    return simulate(config, world, steps).seconds


def _lockstep(run: _Run, load: Load, target: PassCost, draft: PassCost, draft_ticks: int) -> float:
    """Seconds of one chain with draft and target in turns."""
    config, steps, seed = run
    world = World(
        Bernoulli(load.acceptance),
        Resampled([length / load.tokens_per_pass for length in load.target_lengths]),
        Resampled([length / draft_ticks for length in load.draft_lengths]),
        seed=seed,
    )
    outcome = simulate(config, world, steps, history=True)
    ticks, rows = _at_work(outcome.spans, Kind.TARGET)
    drafting, _ = _at_work(outcome.spans, Kind.DRAFT)
    seconds = (
        ticks * target.seconds(rows, rows * load.guessed) + drafting * draft_ticks * draft.first
    )
    return seconds + outcome.judged * load.verdict


def _at_work(spans: Iterable[Span], kind: Kind) -> tuple[float, float]:
    """How long at least one row of a kind was in work, and how many were on average of that
    time.
    """
    edges = sorted(
        edge
        for span in spans
        if span.work.kind is kind
        for edge in ((span.start, 1), (span.end, -1))
    )
    busy = total = since = 0.0
    rows = 0
    for time, change in edges:
        if rows:
            busy += time - since
            total += rows * (time - since)
        rows, since = rows + change, time
    return busy, total / busy if busy else 0.0
