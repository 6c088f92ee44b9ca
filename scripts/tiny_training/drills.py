"""What is practised beside the problems: sums, or moves through the house; and which
words of a language weigh more in the loss.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from lr.tiny import language, plans
from lr.tiny.grammar import RELATIONS, Style, pieces, render, slots
from lr.tiny.language import HIGHEST, ITEMS, LOWEST, NAMES, Meaning, random_operation


def drill(rng: random.Random) -> Meaning:
    """A single true operation between two random people, for arithmetic practice."""
    names = list(NAMES)
    rng.shuffle(names)
    people = [(name, rng.randrange(LOWEST, HIGHEST + 1)) for name in names[:2]]
    return random_operation(
        rng, names[2], people[-1], people, ITEMS[rng.randrange(len(ITEMS))]
    )


def _sum(rng: random.Random, bare: bool) -> tuple[str, str]:
    """Practice in arithmetic, a bare calculation (" 12 + 5 = 17,") or a whole step, and
    its result in digits."""
    step = drill(rng)
    if not bare:
        return render(step, rng.choice(list(Style)), rng) + "\n\n", str(step.result)
    values = slots(step)
    places = pieces(RELATIONS[step.operation][1])
    words = [values.get(word, word) for word in (rng.choice(place) for place in places)]
    return " " + " ".join(words) + ",", str(step.result)


def _move(rng: random.Random, bare: bool) -> tuple[str, str]:
    """Practice in the map of the house: a fact (" north of the hall is the tower,") or
    a whole step, and the room it is about."""
    deed = plans.walk(rng, rng.choice(plans.ROOMS))._replace(
        number=rng.choice(plans.NUMBERS)
    )
    if bare:
        return f" {deed.direction} of the {deed.origin} is the {deed.room},", deed.room
    return plans.render(deed, rng.choice(list(Style)), rng) + "\n\n", deed.room


@dataclass(frozen=True)
class Practice:
    """`drill(rng, bare)` gives a text of practice and its result. `results` are the
    words that have to be worked out, `names` those that have to be copied."""

    drill: Callable[[random.Random, bool], tuple[str, str]]
    results: frozenset[str]
    names: frozenset[str]


PRACTICE = {
    "tiny": Practice(
        _sum, frozenset("0123456789"), frozenset((*NAMES, *language.NOTES))
    ),
    "plans": Practice(
        _move,
        frozenset(plans.ROOMS),
        frozenset((*plans.THINGS, *plans.DIRECTIONS, *plans.NUMBERS)),
    ),
}
"""By the family of the language."""
