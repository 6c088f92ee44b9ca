"""What is practised beside the problems: sums; and which words weigh more in the loss."""

from __future__ import annotations

import random

from lr.tiny.grammar import RELATIONS, template_pieces
from lr.tiny.language import (
    HIGHEST,
    ITEMS,
    LOWEST,
    NAMES,
    NOTES,
    Meaning,
    random_operation,
)
from tiny_training.wording import Style, render, slots

RESULT_WORDS = frozenset("0123456789")
"""Words that have to be worked out."""
NAME_WORDS = frozenset((*NAMES, *NOTES))
"""Words that have to be copied."""


def operation(rng: random.Random) -> Meaning:
    """A single true operation between two random people, for arithmetic practice."""
    names = list(NAMES)
    rng.shuffle(names)
    people = [(name, rng.randrange(LOWEST, HIGHEST + 1)) for name in names[:2]]
    item = ITEMS[rng.randrange(len(ITEMS))]
    return random_operation(rng, names[2], people[-1], people, item)


def drill(rng: random.Random, bare: bool) -> tuple[str, str]:
    """Practice in arithmetic, a bare calculation (" 12 + 5 = 17,") or a whole step, and
    its result in digits."""
    step = operation(rng)
    if not bare:
        return render(step, rng.choice(list(Style)), rng) + "\n\n", str(step.result)
    values = slots(step)
    expression = template_pieces(RELATIONS[step.operation][1])
    words = [rng.choice(alternatives) for alternatives in expression]
    return f" {' '.join(values.get(word, word) for word in words)},", str(step.result)
