"""How plans are worded: templates with synonyms, in the notation and with the two styles of the
first language (`lr/tiny/grammar.py`).

Slots: {n} the order's number, {d} a direction, {A} the room that is left, {B} the room of the step,
{t} a thing, {z} the word in the box.
"""

from __future__ import annotations

import random

from lr.tiny.grammar import Style, pieces, say
from lr.tiny.language import Kind
from lr.tiny.plans.language import NUMBERS, ROOMS, Deed, walk

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


def _templates() -> dict[tuple[Kind, str], tuple[str, ...]]:
    """All templates of every (kind, operation), the target's favourite first."""
    table: dict[tuple[Kind, str], tuple[str, ...]] = {}
    for query, (clause, noun) in ASKED.items():
        table[Kind.GOAL, query] = (
            f"[We|You|I] [need|want|have] to [find|learn|say] {clause} @END .",
            f"The [question|task|puzzle] [asks|says] to [find|learn|say] {noun} @END .",
            f"[Our|My|One] [goal|task|aim] is to [find|learn|say] {clause} @END .",
        )
    table[Kind.GIVEN, ""] = (
        "[Initially|Originally|First] the robot @IS in the {B} .",
        "The [question|task|puzzle] [says|states] that @BOT [starts|begins] in the {B} .",
        "[We|You|I] [know|see|read] that @BOT [starts|begins|appears] in the {B} .",
    )
    table[Kind.OPERATION, "go"] = (
        "@BY @BOT [goes|moves|walks] {d} from the {A} and [reaches|enters|finds] the {B} .",
        "@SAYS {d} , so @BOT [leaves|quits|exits] the {A} and [reaches|enters|finds] the {B} .",
        "@OBEYING , @BOT [turns|heads|steps] {d} , out of the {A} [into|towards] the {B} .",
    )
    table[Kind.OPERATION, "take"] = (
        "@BY @BOT [takes|grabs|lifts] the {t} that [is|lies|rests] in the {B} .",
        "@SAYS [take|grab|lift] , so @BOT [holds|has|keeps] the {t} , still in the {B} .",
        "@OBEYING , @BOT , @STAYING , [takes|grabs|lifts] the {t} .",
    )
    table[Kind.OPERATION, "drop"] = (
        "@BY @BOT [drops|leaves|releases] the {t} [here|there] in the {B} .",
        "@SAYS [drop|leave|release] , so the {t} [is|lies|rests] in the {B} from now on .",
        "@OBEYING , @BOT , @STAYING , [drops|leaves|releases] the {t} .",
    )
    for query, found in FOUND.items():
        table[Kind.ANSWER, query] = (
            f"[So|Thus|Hence] {found} @END .",
            f"[Finally|Therefore|Lastly] , [we|you|I] [know|see|read] that {found} .",
        )
    return table


PIECES = {
    key: tuple(pieces(one, PHRASES) for one in templates) for key, templates in _templates().items()
}


def render(deed: Deed, style: Style, rng: random.Random) -> str:
    """Say `deed` in random words of a style (without the blank line that ends a step)."""
    return say(PIECES[deed.kind, deed.operation], slots(deed), style, rng)


def slots(deed: Deed) -> dict[str, str]:
    """What stands in the slots of a template."""
    box = deed.thing if deed.operation == "held" else deed.room
    values = {
        "{n}": deed.number,
        "{d}": deed.direction,
        "{A}": deed.origin,
        "{B}": deed.room,
        "{t}": deed.thing,
    }
    return values | {"{z}": box}


def drill_text(rng: random.Random, bare: bool) -> tuple[str, str]:
    """Practice in the map of the house: a fact (" north of the hall is the tower,") or a whole
    step, and the room it is about.
    """
    deed = walk(rng, rng.choice(ROOMS))._replace(number=rng.choice(NUMBERS))
    if bare:
        return f" {deed.direction} of the {deed.origin} is the {deed.room},", deed.room
    return render(deed, rng.choice(list(Style)), rng) + "\n\n", deed.room
