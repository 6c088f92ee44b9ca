"""The oracle of plans: reads a step back into its `Deed`. What no pattern reads has no meaning and
equals nothing, itself included.

It does not say whether a step is true: "order two, north: from the hall to the stable" can be read,
and differs from the true step.
"""

from __future__ import annotations

import re

from lr.tiny.language import Kind
from lr.tiny.oracle import pattern, read
from lr.tiny.plans.grammar import PIECES
from lr.tiny.plans.language import DIRECTIONS, NUMBERS, ROOMS, THINGS, Deed

_VALUES = {
    "{n}": NUMBERS,
    "{d}": tuple(DIRECTIONS),
    "{A}": ROOMS,
    "{B}": ROOMS,
    "{t}": THINGS,
    "{z}": (*ROOMS, *THINGS),
}
_READ_AS = {slot: "|".join(words) for slot, words in _VALUES.items()}
_PATTERNS = tuple(
    (key, pattern(one, _READ_AS)) for key, templates in PIECES.items() for one in templates
)


def parse(text: str) -> Deed | None:
    """What a step says, or None if it is not a sentence of the language. White space around it (its
    boundary) is ignored.
    """
    found = read(text, _PATTERNS)
    if found is None:
        return None
    (kind, operation), words = found
    thing, room = words.get("t", ""), words.get("B", "")
    if kind is Kind.ANSWER:
        box = words["z"]
        if (box in THINGS) != (operation == "held"):
            return None
        thing, room = (box, "") if operation == "held" else (thing, box)
    return Deed(
        kind, operation, words.get("n", ""), words.get("d", ""), words.get("A", ""), thing, room
    )


def boxed(text: str) -> str | None:
    """The word in the last box of a solution, or None."""
    found: list[str] = re.findall(r"\\boxed\{([a-z]+)\}", text)
    return found[-1] if found else None
