"""What the tests of theory share: expectations by plain enumeration, and statistical
bounds whose false-alarm probability is known.

SIGMAS: every Monte-Carlo check of this folder fails beyond so many standard errors. A
normal variable goes there with probability 2e-9; there are fewer than 500 such checks,
so one of them fails by chance with probability below 1e-6 (Bonferroni). Seeds are
fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np

from lr.spec.protocol import Emit, WorkKind
from lr.theory.simulate import SimulationOutcome, WorkSpan
from lr.trace import Trace
from lr.types import EmittedStep

SIGMAS = 6.0
ACCEPTED = np.arange(2000)
"""X = 0, 1, 2, ...: drafts accepted."""


def expected(alpha: float, values: np.ndarray) -> float:
    """E values[X] for P(X >= i) = alpha^i, term by term; `values` belongs to
    `ACCEPTED`, alpha <= 0.95.
    """
    return float(np.sum((1 - alpha) * alpha**ACCEPTED * values))


def mean_is(values: Sequence[float], mean: float) -> None:
    """The mean of these independent values is `mean`, as far as can be told."""
    assert len(values) >= 100
    assert (
        abs(fmean(values) - mean)
        < SIGMAS * stdev(values) / math.sqrt(len(values)) + 1e-12
    )


def rate_is(outcome: SimulationOutcome, rate: float) -> None:
    """Steps per time: over independent stages, steps - rate * time has mean 0 exactly
    if `rate` is right.
    """
    mean_is(
        [stage.accepted + 1 - rate * stage.seconds for stage in outcome.stages], 0.0
    )


def share_is(hits: int, trials: int, share: float) -> None:
    """A binomial share."""
    assert trials >= 100
    assert (
        abs(hits - trials * share)
        <= SIGMAS * math.sqrt(trials * share * (1 - share)) + 1e-9
    )


def spans_of(trace: Trace, kind: WorkKind) -> list[tuple[float, float, bool]]:
    """All work of a kind in the order in which it ended: start, end, and whether it was
    completed.
    """
    found = ((end, one) for end, one in trace.events if isinstance(one, WorkSpan))
    return [
        (one.start, end, one.completed) for end, one in found if one.work.kind is kind
    ]


def emitted_steps(trace: Trace) -> list[EmittedStep]:
    """The steps in order."""
    return [event.emitted for _, event in trace.events if isinstance(event, Emit)]
