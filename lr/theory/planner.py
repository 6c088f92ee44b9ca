"""Which schedule, depth, width and token k? Every choice that fits the budget is predicted by
closed forms; the best are simulated.

The prediction takes what the formulas can take: acceptance, speed ratio, judge latency, reading of
draft steps, width with correlated siblings, and batches that are not free. For the asynchronous
windows the last has no closed form; there every row is taken to be as slow as the fullest batch
makes it, which is too pessimistic, so ranks between schedules within a few percent mean nothing:
look at the simulated figures. Token-level speculation is inside the target's steps only, so it
makes c1 grow (`hybrid.py`).

Rows: sync 1 + W + ... + W^g; paper and depth the levels that the draft can keep open, at most
ceil(1/c) of them. With k2 = k + 1 positions per row, rows * k2 <= M. This module knows no model.
Read next: `calibration.py`, `gpus.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lr.spec.protocol import Schedule, SchedulerConfig
from lr.theory.asynchronous import lr_async_speedup
from lr.theory.calibration import Calibration
from lr.theory.chance import BetaSiblings, Constant
from lr.theory.domain import whole
from lr.theory.simulate import ENDLESS, World, simulate
from lr.theory.synchronous import lr_sync_cycle_speedup
from lr.theory.token_level import sd_tokens
from lr.theory.width import beta_width_acceptance, tree_cycle_time, tree_rows

WIDTHS = (1, 2, 3, 4)
MOST_TOKENS, DEEPEST = 16, 32
WORTH_IT = 1.02
"""A predicted speedup below this is not worth a draft model: the prediction is no better than
that.
"""


@dataclass(frozen=True)
class Plan:
    """A way to decode and its predicted speedup over plain decoding. `depth` 0: no lookahead;
    `tokens` 0: no token-level speculation.
    """

    schedule: Schedule
    depth: int
    width: int
    tokens: int
    rows: int
    """Target rows at a time, at most."""
    speedup: float

    @property
    def positions(self) -> int:
        """Token positions per target pass: what counts against M."""
        return self.rows * (self.tokens + 1)

    @property
    def name(self) -> str:
        """For people."""
        steps = (
            f"{self.schedule.value}, depth {self.depth}, width {self.width}" if self.depth else ""
        )
        tokens = f"{self.tokens} draft tokens" if self.tokens else ""
        return " + ".join(part for part in (steps, tokens) if part) or "plain decoding"


PLAIN = Plan(Schedule.SYNC, 0, 1, 0, 1, 1.0)


@dataclass(frozen=True)
class Advice:
    """The answer for one budget. `plans` are all that fit, best first."""

    plans: tuple[Plan, ...]

    @property
    def best(self) -> Plan:
        """The best plan, plain decoding where nothing is worth it."""
        return self.plans[0] if self.plans[0].speedup >= WORTH_IT else PLAIN

    @property
    def runner_up(self) -> Plan:
        """The best of another kind: another schedule or width, with or without lookahead, with or
        without tokens.
        """
        first = self.plans[0]
        return next((plan for plan in self.plans if _kind(plan) != _kind(first)), first)

    def best_of(self, *, lookahead: bool, tokens: bool, width: int | None = None) -> Plan | None:
        """The best plan with or without these; None if none fits."""
        kept = (p for p in self.plans if (p.depth > 0) == lookahead and (p.tokens > 0) == tokens)
        return next((p for p in kept if width is None or p.width == width), None)

    @property
    def width_gain(self) -> float:
        """Best plan with more than one alternative over the best with one: above 1, W > 1 pays."""
        wide = max((p.speedup for p in self.plans if p.width > 1), default=0.0)
        return wide / max(p.speedup for p in self.plans if p.width == 1)


def plan(found: Calibration, budget: int) -> Advice:
    """All ways to use `budget` >= 1 token positions per target pass. Raises `DomainError`."""
    most = int(whole("budget", budget, 1))
    plans = sorted(_plans(found, most), key=lambda p: (-p.speedup, p.positions))
    return Advice(tuple(plans))


def siblings(found: Calibration) -> tuple[float, float]:
    """Beta(p, q) with mean alpha1 under which a second alternative is accepted as often as was
    measured.

    P(second | first not) = p / (p + q + 1) = alpha1 s / (s + 1) with s = p + q, kept within 10^-3
    (all alike) and 10^6 (independent).
    """
    a = min(max(found.alpha1.value, 1e-6), 1 - 1e-6)
    again = found.second_chance.value
    s = again / (a - again) if again < a else 1e6
    s = min(max(s, 1e-3), 1e6)
    return a * s, (1 - a) * s


def token_gain(found: Calibration, tokens: int) -> float:
    """G_{k+1} / (1 + turn + k c2 + k b_positions): the speedup of one row by token-level
    speculation, step ends not counted.
    """
    cost = (
        1
        + (found.turn.value if tokens else 0.0)
        + tokens * (found.c2.value + found.b_positions.value)
    )
    return float(sd_tokens(found.alpha2.value, tokens)) / cost


def simulated(found: Calibration, plan: Plan, steps: int = 2000, seed: int = 0) -> float:
    """The same world on the clock, where batches are as full as they are: for plans with lookahead;
    others as predicted.
    """
    if not plan.depth:
        return plan.speedup
    gain = token_gain(found, plan.tokens)
    world = World(
        BetaSiblings(*siblings(found)),
        target=Constant(1 / gain),
        draft=Constant(found.c1.value + _reading(found, plan)),
        judge=Constant(found.v.value),
        target_overhead=found.b.value,
        draft_overhead=found.b_draft.value,
        draft_workers=None if plan.width > 1 else 1,
        seed=seed,
    )
    return simulate(
        SchedulerConfig(ENDLESS, plan.schedule, plan.depth, plan.width), world, steps
    ).rate


def _plans(found: Calibration, budget: int) -> Iterator[Plan]:
    p, q = siblings(found)
    rates = {width: float(beta_width_acceptance(p, q, width)) for width in WIDTHS}
    for tokens in range(min(budget, MOST_TOKENS + 1)):
        gain = token_gain(found, tokens)
        yield Plan(Schedule.SYNC, 0, 1, tokens, 1, gain)
        rows_left = budget // (tokens + 1)
        for width in WIDTHS:
            for depth in range(1, min(DEEPEST, rows_left) + 1):
                if width > 1 and width**depth > 4 * rows_left:
                    break
                for schedule in Schedule:
                    made = _lookahead(
                        found, Plan(schedule, depth, width, tokens, 0, gain), rates[width]
                    )
                    if made is not None and made.rows <= rows_left:
                        yield made


def _lookahead(found: Calibration, plan: Plan, alpha: float) -> Plan | None:
    """`plan`, whose speedup is that of its tokens alone, with that of its lookahead; None where the
    formulas do not reach.
    """
    gain = plan.speedup
    c, v, b = (found.c1.value + _reading(found, plan)) * gain, found.v.value * gain, found.b.value
    if plan.schedule is Schedule.SYNC:
        rows = int(tree_rows(plan.width, plan.depth))
        time = float(tree_cycle_time(plan.width, plan.depth, c, b)) + v
        steps = float(lr_sync_cycle_speedup(alpha, plan.depth, 0.0))
        return Plan(plan.schedule, plan.depth, plan.width, plan.tokens, rows, gain * steps / time)
    levels = plan.depth + (plan.schedule is Schedule.DEPTH)
    if c > 0:
        levels = min(levels, math.ceil((1 + v) / c - 1e-9))
    rows = sum(plan.width**level for level in range(levels))
    crowd = 1 + b * (rows - 1)
    if c >= crowd:
        return None
    window = plan.schedule.value
    assert window == "paper" or window == "depth"
    f = (
        float(lr_async_speedup(min(alpha, 0.9997), plan.depth, c / crowd, window, v / crowd))
        / crowd
    )
    return Plan(plan.schedule, plan.depth, plan.width, plan.tokens, rows, gain * f)


def _reading(found: Calibration, plan: Plan) -> float:
    return found.reading_of(plan.depth, barrier=plan.schedule is Schedule.SYNC)


def _kind(plan: Plan) -> tuple[object, ...]:
    return plan.depth > 0 and plan.schedule, plan.width, plan.tokens > 0
