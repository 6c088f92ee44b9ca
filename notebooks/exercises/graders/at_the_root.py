"""The grader of at_the_root.py: every order of events at roots with one and two
alternatives, and random orders at roots with three, beside rules that look at the whole
history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import ModuleType

from exercise_kit import Examples, check, expect, outcome_of
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
History = tuple[Event, ...]
PLAIN, ENDS, CUT = WrittenStep(), WrittenStep(ends=True), WrittenStep(cut=True)


@dataclass(frozen=True)
class World:
    """What will be written (None: the draft fails), and what the verifier would say."""

    drafts: tuple[WrittenStep | None, ...]
    target: WrittenStep
    aligned: tuple[bool, ...]


def state(history: Sequence[Event], width: int) -> tuple[set[int], list[Action]]:
    """What has been asked by now, and the decision (an empty list: none yet): the rules
    of the exercise's text, one after the other, slow and plain."""
    verdicts: dict[int, bool] = {}
    targets = [event.step for event in history if isinstance(event, TargetWritten)]
    asked = set()
    for event in history:
        match event:
            case Judged(number, aligned):
                verdicts[number] = aligned
            case DraftWritten(number, None):
                verdicts[number] = False
            case DraftWritten(number, step) if step and targets:
                cut = step.cut or targets[0].cut
                if cut or step.ends != targets[0].ends:
                    verdicts[number] = False
                else:
                    asked.add(number)
    first = next((j for j in range(width) if verdicts.get(j) is not False), None)
    if first is None:
        return asked, [Correct()] if targets else []
    return asked, [Accept(first)] if verdicts.get(first) else []


def due(history: Sequence[Event], width: int) -> list[Action]:
    """What is to be done after the last event of a history."""
    asked_before, decided = state(history[:-1], width)
    asked, decision = state(history, width)
    if decided:
        return []
    return decision or [Ask(j) for j in sorted(asked - asked_before)]


def orders(world: World, chance: random.Random | None = None) -> Iterator[History]:
    """Every order in which things can happen in a world, or a random one: verdicts come
    at any time after they were asked for.
    """
    width = len(world.drafts)

    def go_on(history: History, waiting: list[Event]) -> Iterator[History]:
        if not waiting:
            yield history
        for event in [chance.choice(waiting)] if chance and waiting else waiting:
            longer = (*history, event)
            later = [other for other in waiting if other is not event]
            for action in due(longer, width):
                if isinstance(action, Ask):
                    later.append(Judged(action.number, world.aligned[action.number]))
            yield from go_on(longer, later)

    written = [DraftWritten(number, step) for number, step in enumerate(world.drafts)]
    yield from go_on((), [*written, TargetWritten(world.target)])


def words(event: Event) -> str:
    """An event in a few words."""
    match event:
        case DraftWritten(j, None):
            return f"draft {j} fails"
        case DraftWritten(j, step) if step:
            return f"draft {j} is written{form(step)}"
        case TargetWritten(step):
            return f"the target's step is written{form(step)}"
        case Judged(j, aligned):
            return f"{j} is {'aligned' if aligned else 'not aligned'}"
    raise AssertionError(event)


def form(step: WrittenStep) -> str:
    return " (cut)" if step.cut else " (ends the text)" if step.ends else ""


def replay(answer: ModuleType, history: History, width: int) -> None:
    """`Wrong` at the first event after which the answer does something else than is
    due."""
    root = answer.Root(width)
    for n, event in enumerate(history, start=1):
        actions = root.on(event)
        says = f"Root.on returned {actions!r}: a list is expected, [] for nothing."
        expect(isinstance(actions, list), says)
        right = due(history[:n], width)
        says = (
            f"Width {width}. {'; '.join(map(words, history[:n]))}. Now "
            f"{right or 'nothing'} is right, and your Root says {actions or 'nothing'}."
        )
        expect(sorted(actions, key=repr) == sorted(right, key=repr), says)


@cache
def histories(width: int, forms: bool) -> list[History]:
    """All orders of all worlds of a width; `forms`: those with ends, cuts and
    failures."""
    drafts = product((PLAIN, ENDS, CUT, None) if forms else (PLAIN,), repeat=width)
    targets = (PLAIN, ENDS, CUT) if forms else (PLAIN,)
    verdicts = product((True, False), repeat=width)
    worlds = product(drafts, targets, verdicts)
    found = (history for world in worlds for history in orders(World(*world)))
    return list(dict.fromkeys(found))


@cache
def random_histories(count: int) -> list[History]:
    """One random order of a random world of width 3 for each seed."""
    drawn: list[History] = []
    for seed in range(count):
        chance = random.Random(seed)
        steps = (PLAIN, PLAIN, PLAIN, ENDS, CUT, None)
        drafts = tuple(chance.choice(steps) for _ in range(3))
        aligned = tuple(chance.random() < 0.5 for _ in range(3))
        world = World(drafts, chance.choice((PLAIN, PLAIN, ENDS)), aligned)
        drawn += orders(world, chance)
    return drawn


@check(
    "one alternative: draft, target and verdict in every order",
    "A comparison is due when the *second* of the two steps is there, whichever that is; "
    "and remember that you have decided.",
)
def one_alternative(answer: ModuleType) -> None:
    for history in histories(1, forms=False):
        replay(answer, history, 1)


@check(
    "two alternatives in every order",
    "After every event go through the verdicts in order: None waits, True accepts, and "
    "only after the last False comes the correction.",
)
def two_alternatives(answer: ModuleType) -> None:
    for history in histories(2, forms=False):
        replay(answer, history, 2)


@check(
    "steps that end the text, were cut, or could not be written",
    "Such an alternative is rejected at once, and whatever waited for it may be decided "
    "now.",
)
def forms(answer: ModuleType) -> None:
    for width in (1, 2):
        for history in histories(width, forms=True):
            replay(answer, history, width)


@check(
    "three alternatives in 500 random orders",
    "Look at what you do after the decision.",
)
def three_alternatives(answer: ModuleType) -> None:
    for history in random_histories(500):
        replay(answer, history, 3)


def examples(answer: ModuleType) -> Examples:
    """Its actions after every event of some histories."""
    two, one = histories(2, forms=False), histories(1, forms=True)
    for number, history in enumerate([*two, *one, *random_histories(150)]):
        drafts = [event for event in history if isinstance(event, DraftWritten)]
        root = answer.Root(len(drafts))
        for n, event in enumerate(history):
            actions = outcome_of(lambda root=root, event=event: root.on(event))
            if isinstance(actions, list):
                actions = sorted(map(repr, actions))
            yield f"{number} {n}", actions
