"""The language of plans: what can be said. How it is worded is in `grammar.py`, how it is read back
in `oracle.py`.

A problem puts a robot into a room of a house that is always the same, gives it three to six
numbered orders (go to a neighbouring room, take a thing, drop it), and asks where the robot is,
where a thing is, or what the robot holds. Its solution is a list of `Deed`: the goal, the start,
one per order, the answer. Which room lies where the question never says: that is learnt by heart,
as sums are in the first language, and a step that goes wrong goes wrong there.

Everything is a pure function of (split, index, seed); training and test problems are told apart by
a hash of the question (the same as in the first language), so they are disjoint whatever the seeds.
Standard library only. Read next: `grammar.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from lr.tiny.language import Kind, Split, split_of

HOUSE = (
    ("attic", "tower", "study", "gallery"),
    ("library", "hall", "office", "chapel"),
    ("kitchen", "pantry", "parlour", "studio"),
    ("cellar", "garden", "garage", "stable"),
)
"""The rooms from north to south and, within a row, from west to east."""
ROOMS = tuple(room for row in HOUSE for room in row)
THINGS = tuple("lamp key book cup ball rope map bell kite mug".split())
DIRECTIONS = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}
"""How row and column change."""
NUMBERS = tuple("one two three four five six".split())
FEWEST_ORDERS, MOST_ORDERS = 3, len(NUMBERS)
GO_SHARE = 0.6


class Deed(NamedTuple):
    """What a step says, whatever its words. Two steps mean the same iff both can be read and their
    meanings are equal.

    `operation`: go, take, drop for an order; robot, thing, held for goal and answer; "" for the
    start. `number` is the order's. `direction` and `origin` belong to go. `thing` is what is taken,
    dropped, asked about or held. `room`: where it happens, or where that leads, right or wrong; a
    goal has none.
    """

    kind: Kind
    operation: str
    number: str = ""
    direction: str = ""
    origin: str = ""
    thing: str = ""
    room: str = ""


@dataclass(frozen=True)
class Plan:
    """A question with its solution. `steps` runs goal, start, orders, answer; `answer` is the word
    in the box.
    """

    question: str
    steps: tuple[Deed, ...]
    answer: str


def neighbour(room: str, direction: str) -> str | None:
    """The room on that side of a room, or None where the house ends: north of the hall is the
    tower, north of the tower nothing.
    """
    place = ROOMS.index(room)
    row, column = place // 4 + DIRECTIONS[direction][0], place % 4 + DIRECTIONS[direction][1]
    return HOUSE[row][column] if 0 <= row < 4 and 0 <= column < 4 else None


def plan(split: Split, index: int, seed: int = 0) -> Plan:
    """Problem number `index` of a split. Deterministic; candidates of the other split are
    skipped.
    """
    rng = random.Random(f"plan/{split.value}/{seed}/{index}")
    while True:
        candidate = _draw(rng)
        if split_of(candidate.question) is split:
            return candidate


def _draw(rng: random.Random) -> Plan:
    """One random problem."""
    start = room = ROOMS[rng.randrange(len(ROOMS))]
    things = list(THINGS)
    rng.shuffle(things)
    held, lying, orders = "", dict[str, str](), list[Deed]()
    for number in NUMBERS[: rng.randrange(FEWEST_ORDERS, MOST_ORDERS + 1)]:
        if rng.random() < GO_SHARE:
            deed = walk(rng, room)._replace(number=number)
            room = deed.room
        elif held:
            deed = Deed(Kind.OPERATION, "drop", number, thing=held, room=room)
            lying[held], held = room, ""
        else:
            held = things.pop()
            deed = Deed(Kind.OPERATION, "take", number, thing=held, room=room)
        orders.append(deed)
    goal, answer = _query(rng, room, held, lying)
    given = Deed(Kind.GIVEN, "", room=start)
    return Plan(
        _question(given, orders, goal), (goal, given, *orders, answer), answer.room or answer.thing
    )


def walk(rng: random.Random, room: str) -> Deed:
    """A true step from a room to a neighbouring one, without a number."""
    open_sides = {
        side: found for side in DIRECTIONS if (found := neighbour(room, side)) is not None
    }
    direction = rng.choice(sorted(open_sides))
    return Deed(Kind.OPERATION, "go", direction=direction, origin=room, room=open_sides[direction])


def _query(rng: random.Random, room: str, held: str, lying: dict[str, str]) -> tuple[Deed, Deed]:
    """Goal and answer: where the robot is, where the thing is that was dropped last, or what the
    robot holds.
    """
    possible = ["robot", *(["thing"] if lying else []), *(["held"] if held else [])]
    operation = rng.choice(possible)
    if operation == "thing":
        thing = list(lying)[-1]
        return Deed(Kind.GOAL, operation, thing=thing), Deed(
            Kind.ANSWER, operation, thing=thing, room=lying[thing]
        )
    answer = {"thing": held} if operation == "held" else {"room": room}
    return Deed(Kind.GOAL, operation), Deed(Kind.ANSWER, operation, **answer)


def _question(given: Deed, orders: list[Deed], goal: Deed) -> str:
    """The question in plain words: one sentence per fact, then what is asked."""
    sentences = [f"The robot starts in the {given.room}."]
    for order in orders:
        said = (
            f"go {order.direction}"
            if order.operation == "go"
            else f"{order.operation} the {order.thing}"
        )
        sentences.append(f"Order {order.number}: {said}.")
    asked = {
        "robot": "Where is the robot?",
        "thing": f"Where is the {goal.thing}?",
        "held": "What does the robot hold?",
    }
    return " ".join([*sentences, asked[goal.operation]])
