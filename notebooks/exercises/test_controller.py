"""The grader of controller.py: the package's scheduler in worlds of known acceptance, against the
best constant depth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType

import pytest

from lr.lab.scripted import Prefix, ScriptedRun, step_of
from lr.rng import Stream, uniform
from lr.spec.protocol import Drafted, Emit, Limits, Schedule, SchedulerConfig
from lr.trace import Stats
from lr.types import Origin, Step, Verdict

STEPS = 200
COST, MOST = 0.2, 6
COINS = Stream.root(0).fold_in("a world")
STEADY = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class World:
    """A script whose draft step number i is accepted with probability `rates[i]`. Everybody says
    the same word.
    """

    rates: tuple[float, ...] = field(repr=False)

    def draft(self, prefix: Prefix, sibling: int) -> Step:
        """The draft's next step."""
        return step_of("A.")

    def target(self, prefix: Prefix) -> Step:
        """The target's next step."""
        return step_of("a." if len(prefix) < STEPS - 1 else "a$")

    def judge(self, prefix: Prefix, draft: Step, target: Step | None) -> Verdict:
        """A coin of its own for every step of the answer."""
        place = min(len(prefix), STEPS - 1)
        return Verdict(uniform(COINS.key(place)) < self.rates[place], "a coin")


class Always:
    """A constant depth."""

    def __init__(self, depth: int) -> None:
        self.constant = depth

    def depth(self, stats: Stats) -> int:
        """Always the same."""
        return self.constant


def time_of(controller: object, world: World) -> float:
    """Run the scheduler to the end under a controller; the time is COST per draft step and one unit
    per cycle.
    """
    config = SchedulerConfig(Limits(max_tokens=10 * STEPS), Schedule.SYNC, depth=MOST)
    run, stats, cycles = ScriptedRun(config, world), Stats(), 0
    while not run.done:
        turn = run.step()
        if isinstance(turn.event, Drafted):
            stats = replace(stats, drafted=stats.drafted + 1)
        for command in turn.commands:
            if isinstance(command, Emit):
                kept = command.emitted.origin is Origin.ACCEPTED
                cycles += not kept
                judged = stats.judged + len(command.verdicts)
                stats = replace(
                    stats, steps=stats.steps + 1, judged=judged, accepted=stats.accepted + kept
                )
                depth = controller.depth(stats)  # type: ignore[attr-defined]
                assert isinstance(depth, int) and 0 <= depth <= MOST, f"a depth of {depth!r}"
                run.scheduler.set_depth(depth)
    return cycles + COST * stats.drafted


@cache
def best_constant(world: World) -> float:
    """The time of the best constant depth."""
    return min(time_of(Always(depth), world) for depth in range(MOST + 1))


@pytest.mark.parametrize("rate", STEADY)
def test_near_the_best_constant_depth(answer: ModuleType, rate: float) -> None:
    """In a world of constant acceptance: at most an eighth slower than the best depth, which you
    are not told.
    """
    world = World((rate,) * STEPS)
    assert time_of(answer.Controller(), world) <= 1.125 * best_constant(world)


@pytest.mark.parametrize("bad", [0.0, 0.05])
def test_things_get_better(answer: ModuleType, bad: float) -> None:
    """For 100 steps next to nothing is accepted, then nearly all: at most a quarter slower than if
    you had known.
    """
    first, second = (bad,) * (STEPS // 2), (0.95,) * (STEPS // 2)
    known = sum(best_constant(World(half * 2)) / 2 for half in (first, second))
    assert time_of(answer.Controller(), World(first + second)) <= 1.25 * known


def test_counts_alone_decide(answer: ModuleType) -> None:
    """The same counts, other seconds: the same depths."""
    one, other = answer.Controller(), answer.Controller()
    for n in range(1, 60):
        stats = Stats(steps=n, judged=n, accepted=(2 * n) // 3, drafted=2 * n)
        assert one.depth(stats) == other.depth(
            replace(stats, seconds=n * 0.7, draft_seconds=n * 0.3, target_seconds=3.0)
        )
