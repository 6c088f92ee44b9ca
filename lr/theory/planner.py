"""Which schedule, depth, width and number of draft tokens fit a budget, and is a draft
worth it?

Closed forms predict every choice within M token positions per target pass; the best
choices can then be simulated. There is no closed form for asynchronous windows if
batches are not free. There every row is assumed as slow as in the fullest batch. That
is pessimistic, so differences of a few percent between schedules mean nothing without a
simulation. Only the target speculates on tokens, so c1 grows (`hybrid.py`).

A target batch has 1 + W + ... + W^g rows in sync. In paper and depth it has the rows of
the levels that the draft can keep open, at most ceil(1/c). With k + 1 positions per
row, rows (k + 1) <= M.

`compare` asks the fair question: would the same GPUs gain more if all of them served
the target (tensor parallelism, `pass_time`)? A faster target makes draft and verifier
relatively slower."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lr.spec.protocol import Schedule
from lr.theory.acceptance import beta_width_acceptance, tree_cycle_time, tree_rows
from lr.theory.asynchronous import lr_async_speedup
from lr.theory.calibration import Calibration
from lr.theory.domain import DomainError, geometric, probability, whole
from lr.theory.predicted import Way, predicted_speedup, siblings

WIDTHS = (1, 2, 3, 4)
MOST_TOKENS, DEEPEST = 16, 32
WORTH_IT = 1.02  # a predicted speedup below this is not worth a draft model
SERIAL = (
    0.1  # the share of a target pass that more GPUs do not speed up, if not measured
)


@dataclass(frozen=True)
class Plan(Way):
    """A way of decoding with the `rows` of its target batch and its speedup over plain
    decoding."""

    rows: int = 1
    speedup: float = 1.0

    @property
    def positions(self) -> int:
        """Token positions per target pass, which count against M."""
        return self.rows * (self.tokens + 1)

    @property
    def name(self) -> str:
        """Such as "depth, depth 4, width 1 + 2 draft tokens"."""
        steps = f"{self.schedule.value}, depth {self.depth}, width {self.width}"
        parts = [steps] if self.depth else []
        parts += [f"{self.tokens} draft tokens"] if self.tokens else []
        return " + ".join(parts) or "plain decoding"

    @property
    def kind(self) -> tuple[object, ...]:
        """Plans of the same kind differ only in numbers."""
        return self.depth > 0 and self.schedule, self.width, self.tokens > 0


PLAIN = Plan()


@dataclass(frozen=True)
class Advice:
    """All plans that fit a budget, best first."""

    plans: tuple[Plan, ...]

    @property
    def best(self) -> Plan:
        """The best plan, or plain decoding if no plan is worth a draft model."""
        return self.plans[0] if self.plans[0].speedup >= WORTH_IT else PLAIN

    @property
    def runner_up(self) -> Plan:
        """The best plan of a different kind."""
        first = self.plans[0]
        return next((plan for plan in self.plans if plan.kind != first.kind), first)

    @property
    def width_gain(self) -> float:
        """Best speedup with W > 1 over best speedup with W = 1. Above 1, alternatives
        pay."""
        wide = max((p.speedup for p in self.plans if p.width > 1), default=0.0)
        return wide / max(p.speedup for p in self.plans if p.width == 1)


def plan(found: Calibration, budget: int) -> Advice:
    """All ways to use `budget` >= 1 token positions per target pass. Raises
    `DomainError`."""
    most = int(whole("budget", budget, 1))
    plans = sorted(_plans(found, most), key=lambda p: (-p.speedup, p.positions))
    return Advice(tuple(plans))


def token_gain(found: Calibration, tokens: int) -> float:
    """G_(k+1) / time of a round: speedup of one row by k draft tokens, without ends of
    steps."""
    if not tokens:
        return 1.0
    drafting = 0.0 if found.lookup else tokens * found.draft.first
    round_seconds = found.target.seconds(1, tokens) + drafting
    decided = float(geometric(found.alpha2.value, tokens + 1))
    return decided * found.plain_token.value / round_seconds


def simulated(found: Calibration, plan: Plan) -> float:
    """The simulated speedup of a plan with lookahead, with separate machines for draft
    and target.

    A plan without lookahead keeps its predicted speedup."""
    return predicted_speedup(plan, found, None) if plan.depth else plan.speedup


def _plans(found: Calibration, budget: int) -> Iterator[Plan]:
    p, q = siblings(found.alpha1.value, found.second_chance.value)
    rates = {width: float(beta_width_acceptance(p, q, width)) for width in WIDTHS}
    for tokens in range(min(budget, MOST_TOKENS + 1)):
        gain = token_gain(found, tokens)
        yield Plan(tokens=tokens, speedup=gain)
        rows_left = budget // (tokens + 1)
        for width in WIDTHS:
            for depth in range(1, min(DEEPEST, rows_left) + 1):
                if width > 1 and width**depth > 4 * rows_left:
                    break
                for schedule in Schedule:
                    way = Way(schedule, depth, tokens, width)
                    made = _lookahead(found, way, gain, rates[width])
                    if made is not None and made.rows <= rows_left:
                        yield made


def _lookahead(found: Calibration, way: Way, gain: float, alpha: float) -> Plan | None:
    """The plan of `way`, whose tokens alone gain `gain`; None if no formula covers
    it."""
    depth, width, v, b = way.depth, way.width, found.v * gain, found.b
    if way.schedule is Schedule.SYNC:
        # each row of a cycle begins one pass after the row before it
        reads = (depth - 1) / depth * found.target_first.value / found.step_seconds
        reading = found.reading + (reads if found.draft_lengths else 0.0)
        rows = int(tree_rows(width, depth))
        time = float(tree_cycle_time(width, depth, (found.c1 + reading) * gain, b)) + v
        speedup = gain * float(geometric(alpha, depth + 1)) / time
        return Plan(way.schedule, depth, way.tokens, width, rows, speedup)
    c = (found.c1 + found.reading) * gain
    levels = depth + (way.schedule is Schedule.DEPTH)
    if c > 0:
        levels = min(levels, math.ceil((1 + v) / c - 1e-9))
    rows = sum(width**level for level in range(levels))
    slow = 1 + b * (rows - 1)
    if c >= slow:
        return None
    window = way.schedule.value
    assert window == "paper" or window == "depth"
    f = float(lr_async_speedup(alpha, depth, c / slow, window, v / slow)) / slow
    return Plan(way.schedule, depth, way.tokens, width, rows, gain * f)


def pass_time(gpus: int, serial: float = SERIAL) -> float:
    """s + (1 - s) / t: time of a target pass on t = `gpus` GPUs, in units of its time
    on one GPU.

    s is the share that more GPUs do not speed up. Example: s = 0.1 gives 0.325 on 4
    GPUs, 0.2125 on 8."""
    s = float(probability("serial", serial))
    return s + (1 - s) / int(whole("gpus", gpus, 1))


def share_from(few: int, many: int, gain: float) -> float:
    """The share s at which `many` GPUs are `gain` times as fast as `few`. Raises
    `DomainError`.

    (s + (1-s)/few) = gain (s + (1-s)/many). Example: 0.1 for a gain of 3.08 from 1 to 4
    GPUs."""
    few, many = int(whole("few", few, 1)), int(whole("many", many, 1))
    above, below = 1 / few - gain / many, gain - 1 + 1 / few - gain / many
    if few >= many or below == 0 or not 0 <= above / below <= 1:
        expected = f"1 to {many / few:g}, from {few} to {many} GPUs, few < many"
        raise DomainError("gain", gain, expected)
    return above / below


@dataclass(frozen=True)
class Comparison:
    """Speedups over plain decoding on `calibrated_on` GPUs.

    `all_for_target`, `left_for_target`: plain decoding on all GPUs, and without those
    of the draft. `with_speculation`: the best plan on the latter. `advice` is relative
    to `left_for_target`."""

    all_for_target: float
    left_for_target: float
    with_speculation: float
    advice: Advice

    @property
    def speculate(self) -> bool:
        """Whether the draft is worth its GPUs."""
        return self.with_speculation > self.all_for_target


def compare(
    found: Calibration,
    budget: int,
    gpus: int,
    calibrated_on: int = 1,
    for_draft: int = 1,
    serial: float = SERIAL,
) -> Comparison:
    """Compare the best plan on `gpus` GPUs with plain decoding on all of them.

    The plan gives `for_draft` GPUs to draft and judge. The target was calibrated on
    `calibrated_on` GPUs. Raises `DomainError` if no GPU is left for the target."""
    least = for_draft + 1
    if gpus < least:
        expected = f"at least {least}: {for_draft} for the draft, one for the target"
        raise DomainError("gpus", gpus, expected)
    base = pass_time(calibrated_on, serial)
    left = base / pass_time(gpus - for_draft, serial)
    advice = plan(found.with_faster_target(left), budget)
    everything, best = base / pass_time(gpus, serial), left * advice.plans[0].speedup
    return Comparison(everything, left, best, advice)
