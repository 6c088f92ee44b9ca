"""Every formula next to a simulation of it, at any parameters: what `lr theory` prints.

A `Formula` has a value at a `Point`, and a way to run the scheduler that should give
the same number. (The functions of `lr.theory` that no schedule obeys, such as N1 and
the product, are not here.) The error of a simulated rate is computed from its stages,
which are independent."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from lr.spec.protocol import Schedule, SchedulerConfig
from lr.theory import acceptance, asynchronous, synchronous
from lr.theory.distributions import Bernoulli, BetaSiblings, Constant, JudgeErrors
from lr.theory.domain import Reals
from lr.theory.simulate import ENDLESS, SimulationOutcome, World, simulate
from lr.types import Origin


@dataclass(frozen=True)
class Point:
    """Where the formulas are evaluated. Times are in target steps."""

    alpha: float = 0.6
    """Acceptance rate of draft steps (of tokens in sd_...; p in judged_acceptance,
    wrong_share)."""
    c: float = 0.1  # Time of a draft step.
    k: int = 4  # Draft steps per cycle, pairs in flight, unverified drafts or drafted tokens.
    v: float = 0.0  # Time of a verdict.
    b: float = 0.0  # Time that each further row adds to a synchronous batch.
    width: int = 2  # Alternatives per position.
    beta: float = 0.6
    """p + q of the siblings' Beta(p, q). Small: alike, large: independent."""
    false_reject: float = 0.1  # How often the verifier rejects an equivalent step.
    false_accept: float = 0.1  # How often the verifier accepts a different step.
    steps: int = 4000  # Steps to simulate.
    seed: int = 0  # Seed of the simulation.


@dataclass(frozen=True)
class Measured:
    """A simulated value and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Formula:
    """A formula's `value` at a point, and the `simulated` value."""

    name: str
    text: str
    value: Callable[[Point], Reals]
    simulated: Callable[[Point], Measured]


def rate(outcome: SimulationOutcome) -> Measured:
    """Steps per time over whole stages, and its standard error."""
    seconds = sum(stage.seconds for stage in outcome.stages)
    if len(outcome.stages) < 2:
        return Measured(outcome.rate, 0.0 if outcome.stages else math.inf)
    # + 1: the target's own step
    value = sum(stage.accepted + 1 for stage in outcome.stages) / seconds
    # stages are independent, and steps - rate * time has mean 0 in each of them
    surplus = [stage.accepted + 1 - value * stage.seconds for stage in outcome.stages]
    mean_time = fmean(stage.seconds for stage in outcome.stages)
    return Measured(value, stdev(surplus) / math.sqrt(len(surplus)) / mean_time)


def share(hits: int, trials: int) -> Measured:
    """hits / trials with its binomial standard error."""
    value = hits / trials
    return Measured(value, math.sqrt(value * (1 - value) / trials))


def simulate_at(
    at: Point, schedule: Schedule, depth: int, width: int = 1, **changes: Any
) -> SimulationOutcome:
    """Run the scheduler in the world of a point, with `changes` to that `World`."""
    world = World(
        Bernoulli(at.alpha),
        draft=Constant(at.c),
        judge=Constant(at.v),
        target_overhead=at.b if schedule is Schedule.SYNC else 0.0,
        draft_workers=None if width > 1 else 1,
        seed=at.seed,
    )
    config = SchedulerConfig(ENDLESS, schedule, depth, width)
    return simulate(config, replace(world, **changes), at.steps)


def erring(at: Point) -> SimulationOutcome:
    """Run with a verifier that errs; drafts are equivalent with probability alpha."""
    errors = JudgeErrors(at.false_reject, at.false_accept)
    return simulate_at(at, Schedule.PAPER, at.k, errors=errors)


def accepted(outcome: SimulationOutcome) -> Measured:
    """The share of positions accepted, for schedules that judge every position."""
    return share(outcome.origins[Origin.ACCEPTED], outcome.steps)


def siblings(at: Point) -> tuple[float, float]:
    """(p, q) of the siblings' Beta distribution."""
    return at.alpha * at.beta, (1 - at.alpha) * at.beta


def cycles(at: Point, depth: int) -> SimulationOutcome:
    """Run synchronous cycles of `depth` drafts with a free verifier and free
    batches."""
    return simulate_at(replace(at, v=0.0, b=0.0), Schedule.SYNC, depth)


def wide_window(at: Point) -> SimulationOutcome:
    """Run with a window too wide to block the draft."""
    # more drafts than fit into a target step
    pairs = 1 + math.ceil((1 + at.v) / max(at.c, 0.01))
    return simulate_at(replace(at, steps=at.steps // 4), Schedule.PAPER, pairs)


def tree_speedup(at: Point) -> Reals:
    """The formula for a tree of depth 2 with independent alternatives."""
    alpha_w = acceptance.width_acceptance(at.alpha, at.width)
    return acceptance.tree_sync_speedup(alpha_w, at.width, 2, at.c, at.b)


FORMULAS = (
    Formula(
        "sd_speedup",
        "G_(k+1) / (1 + k c)",
        lambda p: synchronous.sd_speedup(p.alpha, p.k, p.c),
        lambda p: rate(cycles(p, p.k)),
    ),
    Formula(
        "lr_sync_speedup",
        "printed f_sync(k): k - 1 drafts",
        lambda p: synchronous.lr_sync_speedup(p.alpha, p.k, p.c),
        lambda p: rate(cycles(p, p.k - 1)),
    ),
    Formula(
        "lr_sync_cycle_speedup B",
        "G_(k+1) / (1 + k c + k b + v)",
        lambda p: synchronous.lr_sync_cycle_speedup(
            p.alpha, p.k, p.c, batch_overhead=p.b, verifier_latency=p.v
        ),
        lambda p: rate(simulate_at(p, Schedule.SYNC, p.k)),
    ),
    Formula(
        "lr_async_speedup paper",
        "S2(k), k pairs in flight",
        lambda p: asynchronous.lr_async_speedup(p.alpha, p.k, p.c, "paper", p.v),
        lambda p: rate(simulate_at(p, Schedule.PAPER, p.k)),
    ),
    Formula(
        "lr_async_speedup depth",
        "S_D, k unverified drafts",
        lambda p: asynchronous.lr_async_speedup(p.alpha, p.k, p.c, "depth", p.v),
        lambda p: rate(simulate_at(p, Schedule.DEPTH, p.k)),
    ),
    Formula(
        "lr_async_limit",
        "1 / ((1+v)(1-alpha) + c alpha), no window",
        lambda p: asynchronous.lr_async_limit(p.alpha, p.c, p.v),
        lambda p: rate(wide_window(p)),
    ),
    Formula(
        "width_acceptance",
        "1 - (1 - alpha)^W",
        lambda p: acceptance.width_acceptance(p.alpha, p.width),
        lambda p: accepted(simulate_at(p, Schedule.PAPER, 1, p.width)),
    ),
    Formula(
        "beta_width_acceptance",
        "1 - prod (q+i)/(p+q+i)",
        lambda p: acceptance.beta_width_acceptance(*siblings(p), p.width),
        lambda p: accepted(  # alternatives share the rate of their position
            simulate_at(
                p, Schedule.PAPER, 1, p.width, acceptance=BetaSiblings(*siblings(p))
            )
        ),
    ),
    Formula(
        "tree_sync_speedup",
        "G_3(alpha_W) over a cycle of depth 2",
        tree_speedup,
        lambda p: rate(  # synchronous cycles of depth 2, a free verifier
            simulate_at(
                replace(p, v=0.0, steps=p.steps // 4), Schedule.SYNC, 2, p.width
            )
        ),
    ),
    Formula(
        "judged_acceptance",
        "p (1-fr) + (1-p) fa, p = alpha",
        lambda p: acceptance.judged_acceptance(p.alpha, p.false_reject, p.false_accept),
        lambda p: accepted(erring(p)),
    ),
    Formula(
        "wrong_share",
        "(1-p) fa, p = alpha",
        lambda p: acceptance.wrong_share(p.alpha, p.false_accept),
        lambda p: share(erring(p).wrong, p.steps),
    ),
)
"""The formulas of `lr theory`."""
