"""The grader of controller.py: the package's scheduler in worlds of known acceptance,
against the best constant depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType

from exercise_kit import Examples, check, expect

from lr.rng import Stream, uniform
from lr.spec.protocol import Drafted, Emit, Limits, Schedule, SchedulerConfig
from lr.trace import Stats
from lr.types import Origin, Step, Verdict
from lr.watch.scripted import Prefix, ScriptedRun, step_of

PRAISE = "Near the best depth in worlds that you were not told, and it follows when they change."
NEXT = "verifier"
STEPS = 200
COST, MOST = 0.2, 6
COINS = Stream.root(0).fold_in("a world")


@dataclass(frozen=True)
class World:
    """A script whose draft step number i is accepted with probability `rates[i]`.
    Everybody says the same word.
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
        index = min(len(prefix), STEPS - 1)
        return Verdict(uniform(COINS.key(index)) < self.rates[index], "a coin")


def time_of(depth_of: Callable[[Stats], int], world: World) -> float:
    """Run the scheduler to the end with the depths of a controller; the time is COST
    per draft step and one unit per cycle.
    """
    config = SchedulerConfig(Limits(max_tokens=10 * STEPS), Schedule.SYNC, depth=MOST)
    run = ScriptedRun(config, world)
    stats = Stats()
    cycles = 0
    while not run.done:
        turn = run.step()
        if isinstance(turn.event, Drafted):
            stats = replace(stats, drafted=stats.drafted + 1)
        for command in turn.commands:
            if isinstance(command, Emit):
                accepted = command.emitted.origin is Origin.ACCEPTED
                cycles += not accepted
                stats = replace(
                    stats,
                    steps=stats.steps + 1,
                    judged=stats.judged + len(command.verdicts),
                    accepted=stats.accepted + accepted,
                )
                depth = depth_of(stats)
                says = f"depth returned {depth!r}: a whole number from 0 to {MOST}."
                expect(isinstance(depth, int) and 0 <= depth <= MOST, says)
                run.scheduler.set_depth(depth)
    return cycles + COST * stats.drafted


@cache
def best_constant(world: World) -> float:
    """The time of the best constant depth."""
    return min(time_of(lambda _, d=depth: d, world) for depth in range(MOST + 1))


def in_time(
    answer: ModuleType, world: World, best: float, allowed: float, where: str
) -> None:
    """`Wrong` if the controller takes more than `allowed` times the `best` time."""
    share = time_of(answer.Controller().depth, world) / best
    says = (
        f"{where} your controller takes {share:.2f} times as long as the best constant "
        f"depth; {allowed:g} times is allowed."
    )
    expect(share <= allowed, says)


@check(
    "that counts alone decide", "Use steps, drafted, judged and accepted; no seconds."
)
def counts_alone(answer: ModuleType) -> None:
    for seconds in (0.001, 0.7):
        first, second = answer.Controller(), answer.Controller()
        for n in range(1, 60):
            stats = Stats(steps=n, judged=n, accepted=(2 * n) // 3, drafted=2 * n)
            times = {"seconds": n * seconds, "draft_seconds": n * seconds / 2}
            timed = replace(stats, target_seconds=3.0, **times)
            says = (
                "The same counts with other seconds gave another depth: on another "
                "machine the run would not come again the same."
            )
            expect(first.depth(stats) == second.depth(timed), says)


@check(
    "worlds of constant acceptance",
    "Estimate the rate, accepted / judged, and take `lr.theory.synchronous.sync_best_k("
    "rate, COST)`, which counts the target's own step too: the depth is one less.",
)
def steady(answer: ModuleType) -> None:
    for rate in (0.1, 0.3, 0.5, 0.7, 0.9):
        world = World((rate,) * STEPS)
        where = f"Where {rate:.0%} are accepted,"
        in_time(answer, world, best_constant(world), 1.125, where)


@check(
    "a world that changes in the middle",
    "Let old verdicts fade (an exponential average), and never look 0 steps ahead: who "
    "does not draft learns nothing.",
)
def better_times(answer: ModuleType) -> None:
    for bad in (0.0, 0.05):
        halves = ((bad,) * (STEPS // 2), (0.95,) * (STEPS // 2))
        best = sum(best_constant(World(half * 2)) / 2 for half in halves)
        where = f"Where {bad:.0%} are accepted for 100 steps, then 95%,"
        in_time(answer, World(halves[0] + halves[1]), best, 1.25, where)


def examples(answer: ModuleType) -> Examples:
    """Its depths, for histories of counts."""
    for rate in (0, 1, 5, 9, 10):
        for seconds in (0.0, 9.0):
            controller = answer.Controller()
            for n in range(1, 121):
                accepted = (n * rate) // 10 if n <= 60 else 6 * rate + (n - 60)
                counts = {"steps": n, "judged": n, "drafted": 2 * n}
                stats = Stats(accepted=accepted, seconds=seconds * n, **counts)
                depth = controller.depth(stats)
                if n % 12 == 0:
                    yield f"{rate} {seconds} {n}", depth
