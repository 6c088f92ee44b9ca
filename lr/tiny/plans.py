"""The second tiny language: a robot carries out orders in a house. Meanings, wording
and oracle.

The first language has one file for each of them (`language.py`, `grammar.py`,
`oracle.py`).

A problem puts the robot into a room of a house that is always the same, gives it three
to six numbered orders (go to a neighbouring room, take a thing, drop it), and asks
where the robot is, where a thing is, or what the robot holds. Its solution is a list of
`Deed`: the goal, the start, one per order, the answer. The question never says where
the rooms are. Models learn the map by heart, as they learn sums in the first language,
and this is where their steps go wrong.

Slots of templates: {n} the number of the order, {d} a direction, {A} the room that the
robot leaves, {B} the room of the step, {t} a thing, {z} the word in the box. The oracle
does not know whether a step is true: it can read "order two, north: from the hall to
the stable", which differs from the true step.

Every problem is a pure function of (split, index, seed), and the splits are disjoint.
Standard library only."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

from lr.tiny.grammar import Style, pieces, say
from lr.tiny.language import Problem, Split, StepKind, first_in, one_of
from lr.tiny.oracle import pattern, read

HOUSE = (
    ("attic", "tower", "study", "gallery"),
    ("library", "hall", "office", "chapel"),
    ("kitchen", "pantry", "parlour", "studio"),
    ("cellar", "garden", "garage", "stable"),
)
"""The rooms, rows from north to south, each row from west to east."""
ROOMS = tuple(room for row in HOUSE for room in row)
THINGS = tuple("lamp key book cup ball rope map bell kite mug".split())
DIRECTIONS = {
    "north": (-1, 0),
    "south": (1, 0),
    "east": (0, 1),
    "west": (0, -1),
}  # (row, column)
NUMBERS = tuple("one two three four five six".split())
FEWEST_ORDERS, MOST_ORDERS = 3, len(NUMBERS)
GO_SHARE = 0.6


class Deed(NamedTuple):
    """What a step says, independent of its wording.

    Two steps mean the same iff both can be read and their meanings are equal.

    `operation`: go, take, drop for an order; robot, thing, held for goal and answer; ""
    for the start. `number`: that of the order. `direction` and `origin` belong to go.
    `thing`: what is taken, dropped, asked about or held. `room`: where the step happens
    or leads, right or wrong; empty in a goal."""

    kind: StepKind
    operation: str
    number: str = ""
    direction: str = ""
    origin: str = ""
    thing: str = ""
    room: str = ""


def neighbour(room: str, direction: str) -> str | None:
    """The room on that side of a room, or None if the house ends there.

    Example: the tower is north of the hall, None is north of the tower."""
    place = ROOMS.index(room)
    row, column = (
        place // 4 + DIRECTIONS[direction][0],
        place % 4 + DIRECTIONS[direction][1],
    )
    return HOUSE[row][column] if 0 <= row < 4 and 0 <= column < 4 else None


def plan(split: Split, index: int, seed: int = 0) -> Problem[Deed]:
    """Problem number `index` of a split. Deterministic."""
    rng = random.Random(f"plan/{split.value}/{seed}/{index}")
    return first_in(split, lambda: _draw(rng))


def _draw(rng: random.Random) -> Problem[Deed]:
    start = room = ROOMS[rng.randrange(len(ROOMS))]
    things = list(THINGS)
    rng.shuffle(things)
    held, lying, orders = "", dict[str, str](), list[Deed]()
    for number in NUMBERS[: rng.randrange(FEWEST_ORDERS, MOST_ORDERS + 1)]:
        if rng.random() < GO_SHARE:
            deed = walk(rng, room)._replace(number=number)
            room = deed.room
        elif held:
            deed = Deed(StepKind.OPERATION, "drop", number, thing=held, room=room)
            lying[held], held = room, ""
        else:
            held = things.pop()
            deed = Deed(StepKind.OPERATION, "take", number, thing=held, room=room)
        orders.append(deed)
    goal, answer = _query(rng, room, held, lying)
    given = Deed(StepKind.GIVEN, "", room=start)
    solution = goal, given, *orders, answer
    return Problem(
        _question(given, orders, goal), solution, answer.room or answer.thing
    )


def walk(rng: random.Random, room: str) -> Deed:
    """Draw a true step from a room to a neighbouring room, without a number."""
    open_sides = {
        side: found
        for side in DIRECTIONS
        if (found := neighbour(room, side)) is not None
    }
    direction = rng.choice(sorted(open_sides))
    return Deed(
        StepKind.OPERATION,
        "go",
        direction=direction,
        origin=room,
        room=open_sides[direction],
    )


def _query(
    rng: random.Random, room: str, held: str, lying: dict[str, str]
) -> tuple[Deed, Deed]:
    """Draw goal and answer: where the robot or the last dropped thing is, or what it
    holds."""
    possible = ["robot", *(["thing"] if lying else []), *(["held"] if held else [])]
    operation = rng.choice(possible)
    if operation == "thing":
        thing = list(lying)[-1]
        answer = Deed(StepKind.ANSWER, operation, thing=thing, room=lying[thing])
        return Deed(StepKind.GOAL, operation, thing=thing), answer
    found = {"thing": held} if operation == "held" else {"room": room}
    return Deed(StepKind.GOAL, operation), Deed(StepKind.ANSWER, operation, **found)


THING = one_of(THINGS)
ORDERS = {"go": "go {side}", "take": "take the {thing}", "drop": "drop the {thing}"}
QUESTIONS = {
    "robot": "Where is the robot",
    "thing": "Where is the {thing}",
    "held": "What does the robot hold",
}
QUESTION = re.compile(
    rf"The robot starts in the {one_of(ROOMS)}\.(?: Order {one_of(NUMBERS)}: "
    rf"{one_of(ORDERS.values(), side=one_of(DIRECTIONS), thing=THING)}\.)* "
    rf"{one_of(QUESTIONS.values(), thing=THING)}\?"
)
"""The form of a question; see `_question`."""


def _question(given: Deed, orders: list[Deed], goal: Deed) -> str:
    """The question in plain words: one sentence per fact, then the query."""
    sentences = [f"The robot starts in the {given.room}."]
    for order in orders:
        what = ORDERS[order.operation].format(side=order.direction, thing=order.thing)
        sentences.append(f"Order {order.number}: {what}.")
    return (
        f"{' '.join(sentences)} {QUESTIONS[goal.operation].format(thing=goal.thing)}?"
    )


PHRASES = {
    "BOT": "[the robot|the machine|our helper]",
    "IS": "[is|stands|waits]",
    "BY": "[By|Under|After] order {n}",
    "OBEYING": "[Following|Obeying|Heeding] order {n}",
    "SAYS": "Order {n} [says|reads|means]",
    "STAYING": "[staying|remaining|waiting] in the {B}",
    "END": "[in the end|at last|finally]",
    "BOX": "\\boxed{ {z} }",
}
ASKED = {
    "robot": ("where the robot @IS", "the place of the robot"),
    "thing": ("where the {t} [is|lies|rests]", "the place of the {t}"),
    "held": ("what the robot [holds|has|keeps]", "the load of the robot"),
}
FOUND = {
    "robot": "the robot @IS in the @BOX",
    "thing": "the {t} [is|lies|rests] in the @BOX",
    "held": "the robot [holds|has|keeps] the @BOX",
}


def _templates() -> dict[tuple[StepKind, str], tuple[str, ...]]:
    """The templates of every (kind, operation), the target's favourite first."""
    table: dict[tuple[StepKind, str], tuple[str, ...]] = {}
    for query, (clause, noun) in ASKED.items():
        table[StepKind.GOAL, query] = (
            f"[We|You|I] [need|want|have] to [find|learn|say] {clause} @END .",
            f"The [question|task|puzzle] [asks|says] to [find|learn|say] {noun} @END .",
            f"[Our|My|One] [goal|task|aim] is to [find|learn|say] {clause} @END .",
        )
    table[StepKind.GIVEN, ""] = (
        "[Initially|Originally|First] the robot @IS in the {B} .",
        "The [question|task|puzzle] [says|states] that @BOT [starts|begins] in the {B} .",
        "[We|You|I] [know|see|read] that @BOT [starts|begins|appears] in the {B} .",
    )
    table[StepKind.OPERATION, "go"] = (
        "@BY @BOT [goes|moves|walks] {d} from the {A} and [reaches|enters|finds] the {B} .",
        "@SAYS {d} , so @BOT [leaves|quits|exits] the {A} and [reaches|enters|finds] the {B} .",
        "@OBEYING , @BOT [turns|heads|steps] {d} , out of the {A} [into|towards] the {B} .",
    )
    table[StepKind.OPERATION, "take"] = (
        "@BY @BOT [takes|grabs|lifts] the {t} that [is|lies|rests] in the {B} .",
        "@SAYS [take|grab|lift] , so @BOT [holds|has|keeps] the {t} , still in the {B} .",
        "@OBEYING , @BOT , @STAYING , [takes|grabs|lifts] the {t} .",
    )
    table[StepKind.OPERATION, "drop"] = (
        "@BY @BOT [drops|leaves|releases] the {t} [here|there] in the {B} .",
        "@SAYS [drop|leave|release] , so the {t} [is|lies|rests] in the {B} from now on .",
        "@OBEYING , @BOT , @STAYING , [drops|leaves|releases] the {t} .",
    )
    for query, found in FOUND.items():
        table[StepKind.ANSWER, query] = (
            f"[So|Thus|Hence] {found} @END .",
            f"[Finally|Therefore|Lastly] , [we|you|I] [know|see|read] that {found} .",
        )
    return table


PIECES = {
    key: tuple(pieces(one, PHRASES) for one in templates)
    for key, templates in _templates().items()
}


def render(deed: Deed, style: Style, rng: random.Random) -> str:
    """Word `deed` at random in a style, without the blank line that ends a step."""
    return say(PIECES[deed.kind, deed.operation], slots(deed), style, rng)


SLOTS = {"n": NUMBERS, "d": tuple(DIRECTIONS), "A": ROOMS, "t": THINGS, "B": ROOMS}
"""The words for the slots that are fields of a deed, in the order of the fields."""
_VALUES = {f"{{{slot}}}": "|".join(words) for slot, words in SLOTS.items()}
_VALUES["{z}"] = "|".join((*ROOMS, *THINGS))
_PATTERNS = tuple(
    (key, pattern(one, _VALUES))
    for key, templates in PIECES.items()
    for one in templates
)


def slots(deed: Deed) -> dict[str, str]:
    """The values of a template's slots."""
    box = deed.thing if deed.operation == "held" else deed.room
    return dict(zip(_VALUES, (*deed[2:], box), strict=True))


def parse(text: str) -> Deed | None:
    """The meaning of a step, or None if it is not in the language. Ignores outer white
    space."""
    found = read(text, _PATTERNS)
    if found is None:
        return None
    key, words = found
    deed = Deed(*key, *(words.get(slot, "") for slot in SLOTS))
    if deed.kind is not StepKind.ANSWER:
        return deed
    box, held = words["z"], deed.operation == "held"
    if (box in THINGS) != held:
        return None
    return deed._replace(thing=box) if held else deed._replace(room=box)
