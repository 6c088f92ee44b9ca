"""The grader of at_the_root.py: every order of events at roots with one and two
alternatives, and random orders at roots with three, beside rules that look at the whole
history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from types import ModuleType

from exercise_kit import Check, Examples, Wrong, outcome_of
from root_kit import (
    Accept,
    Ask,
    Correct,
    DraftWritten,
    Judged,
    TargetWritten,
    WrittenStep,
)

PRAISE = "Your books decide the same in every order of events: the heart of the scheduler is yours."
NEXT = "controller"
Event = DraftWritten | TargetWritten | Judged
Action = Ask | Accept | Correct
PLAIN, ENDS, CUT = WrittenStep(), WrittenStep(ends=True), WrittenStep(cut=True)


@dataclass(frozen=True)
class World:
    """What will be written (None: the draft fails), and what the verifier would say."""

    drafts: tuple[WrittenStep | None, ...]
    target: WrittenStep
    aligned: tuple[bool, ...]

    def arrivals(self) -> list[Event]:
        """What happens by itself, in any order."""
        written = [
            DraftWritten(number, step) for number, step in enumerate(self.drafts)
        ]
        return [*written, TargetWritten(self.target)]


@dataclass
class Books:
    """What follows from a history, all of it anew: slow and plain."""

    asked: set[int] = field(default_factory=set)
    decision: Accept | Correct | None = None

    @classmethod
    def of(cls, history: Sequence[Event], width: int) -> Books:
        """The rules of the exercise's text, one after the other."""
        drafts = {
            one.number: one.step for one in history if isinstance(one, DraftWritten)
        }
        targets = [one.step for one in history if isinstance(one, TargetWritten)]
        known = {one.number: one.aligned for one in history if isinstance(one, Judged)}
        found = cls()
        for number, step in drafts.items():
            if step is None:
                known[number] = False
            elif targets:
                fits = (
                    step.ends == targets[0].ends and not step.cut and not targets[0].cut
                )
                if fits:
                    found.asked.add(number)
                else:
                    known[number] = False
        first = next((j for j in range(width) if known.get(j) is not False), None)
        if first is None:
            found.decision = Correct() if targets else None
        elif known.get(first):
            found.decision = Accept(first)
        return found


def due(history: Sequence[Event], width: int) -> list[Action]:
    """What is to be done after the last event of a history."""
    before, now = Books.of(history[:-1], width), Books.of(history, width)
    if before.decision:
        return []
    return (
        [now.decision]
        if now.decision
        else [Ask(j) for j in sorted(now.asked - before.asked)]
    )


def orders(world: World, chance: random.Random | None = None) -> Iterator[list[Event]]:
    """Every order in which things can happen in a world, or a random one: verdicts come
    at any time after they were asked for.
    """
    width = len(world.drafts)

    def go_on(history: list[Event], waiting: list[Event]) -> Iterator[list[Event]]:
        if not waiting:
            yield history
        for event in [chance.choice(waiting)] if chance and waiting else waiting:
            now = [*history, event]
            asked = [Judged(todo.number, world.aligned[todo.number])
                     for todo in due(now, width) if isinstance(todo, Ask)]  # fmt: skip
            yield from go_on(
                now, [*(one for one in waiting if one is not event), *asked]
            )

    yield from go_on([], world.arrivals())


def words(event: object) -> str:
    """An event or an action in a few words."""
    match event:
        case DraftWritten(j, None):
            return f"draft {j} fails"
        case DraftWritten(j, step) if step is not None:
            how = " (cut)" if step.cut else " (ends the text)" if step.ends else ""
            return f"draft {j} is written{how}"
        case TargetWritten(step):
            how = " (cut)" if step.cut else " (ends the text)" if step.ends else ""
            return f"the target's step is written{how}"
        case Judged(j, aligned):
            return f"{j} is {'aligned' if aligned else 'not aligned'}"
    return repr(event)


def replayed(answer: ModuleType, history: Sequence[Event], width: int) -> None:
    """`Wrong` at the first event after which the answer does something else than is
    due."""
    root = answer.Root(width)
    for n in range(1, len(history) + 1):
        said, right = root.on(history[n - 1]), due(history[:n], width)
        if not isinstance(said, list):
            raise Wrong(
                f"Root.on returned {said!r}: a list is expected, [] for nothing."
            )
        if sorted(said, key=repr) != sorted(right, key=repr):
            happened = "; ".join(map(words, history[:n]))
            raise Wrong(
                f"Width {width}. {happened}. Now {right or 'nothing'} is right, and your Root says "
                f"{said or 'nothing'}."
            )


@cache
def histories(width: int, forms: bool) -> list[tuple[Event, ...]]:
    """All orders of all worlds of a width; `forms`: those with ends, cuts and
    failures."""
    found = []
    steps = (PLAIN, ENDS, CUT, None) if forms else (PLAIN,)
    for target in (PLAIN, ENDS, CUT) if forms else (PLAIN,):
        for drafts in product(steps, repeat=width):
            for aligned in product([True, False], repeat=width):
                found += [tuple(one) for one in orders(World(drafts, target, aligned))]
    return list(dict.fromkeys(found))


def one_alternative(answer: ModuleType) -> None:
    for history in histories(1, forms=False):
        replayed(answer, history, 1)


def two_alternatives(answer: ModuleType) -> None:
    for history in histories(2, forms=False):
        replayed(answer, history, 2)


def forms(answer: ModuleType) -> None:
    for width in (1, 2):
        for history in histories(width, forms=True):
            replayed(answer, history, width)


@cache
def random_histories(seeds: int) -> list[tuple[Event, ...]]:
    """One random order of a random world of width 3 for each seed."""
    found = []
    for seed in range(seeds):
        chance = random.Random(seed)
        drafts = tuple(
            chance.choice((PLAIN, PLAIN, PLAIN, ENDS, CUT, None)) for _ in range(3)
        )
        aligned = tuple(chance.random() < 0.5 for _ in range(3))
        world = World(drafts, chance.choice((PLAIN, PLAIN, ENDS)), aligned)
        found += [tuple(one) for one in orders(world, chance)]
    return found


def three_alternatives(answer: ModuleType) -> None:
    for history in random_histories(500):
        replayed(answer, history, 3)


CHECKS = (
    Check("one alternative: draft, target and verdict in every order",
          "A comparison is due when the *second* of the two steps is there, whichever that is; and "
          "remember that you have decided.", one_alternative),
    Check("two alternatives in every order",
          "After every event go through the verdicts in order: None waits, True accepts, and only "
          "after the last False comes the correction.", two_alternatives),
    Check("steps that end the text, were cut, or could not be written",
          "Such an alternative is rejected at once, and whatever waited for it may be decided now.",
          forms),
    Check("three alternatives in 500 random orders", "Look at what you do after the decision.",
          three_alternatives),
)  # fmt: skip


def examples(answer: ModuleType) -> Examples:
    """Its actions after every event of some histories."""
    some = [
        *histories(2, forms=False),
        *histories(1, forms=True),
        *random_histories(150),
    ]
    for number, history in enumerate(some):
        width = 1 + max(one.number for one in history if isinstance(one, DraftWritten))
        root = answer.Root(width)
        for n, event in enumerate(history):
            said = outcome_of(lambda root=root, event=event: root.on(event))
            yield (
                f"{number} {n}",
                sorted(map(repr, said)) if isinstance(said, list) else said,
            )
