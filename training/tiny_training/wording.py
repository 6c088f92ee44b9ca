"""Words the meanings of the tiny language, in one of two styles, for the rows of
training."""

from __future__ import annotations

import random
from enum import Enum

from lr.tiny.grammar import PIECES, ROLES, glue
from lr.tiny.language import Meaning

RATIO = 0.65  # weight of an alternative relative to the alternative preferred just before it


class Style(Enum):
    """Whose words are preferred: the target's (from the front) or the draft's (from the
    back)."""

    TARGET = "target"
    DRAFT = "draft"

    @property
    def other(self) -> Style:
        return Style.DRAFT if self is Style.TARGET else Style.TARGET


def weights(style: Style, count: int) -> tuple[float, ...]:
    """The probabilities of `count` alternatives. Example: (0.61, 0.39) for the target
    and two."""
    raw = [RATIO**i for i in range(count)]
    total = sum(raw)
    ordered = raw if style is Style.TARGET else raw[::-1]
    return tuple(w / total for w in ordered)


def render(meaning: Meaning, style: Style, rng: random.Random) -> str:
    """Word `meaning` at random in a style, without the blank line that ends a step."""
    templates = PIECES[meaning.kind, meaning.operation]
    template = templates[_pick(rng, style, len(templates))]
    values = slots(meaning)
    words = (choices[_pick(rng, style, len(choices))] for choices in template)
    return glue(values.get(word, word) for word in words)


def _pick(rng: random.Random, style: Style, count: int) -> int:
    return 0 if count == 1 else rng.choices(range(count), weights(style, count))[0]


def slots(meaning: Meaning) -> dict[str, str]:
    """The values of slots: people (`ROLES`), operands {n} {x} {y}, result {z}, {item},
    turn {k}. `oracle.parse` reads them back."""
    entity, references = ROLES[meaning.kind]
    values = {"item": meaning.item, "z": str(meaning.result), "k": meaning.note}
    values |= {entity: meaning.entity} | dict(
        zip(references, meaning.references, strict=False)
    )
    if meaning.operands:
        values |= {"x": str(meaning.operands[0])} | dict.fromkeys(
            "ny", str(meaning.operands[-1])
        )
    return {f"{{{slot}}}": value for slot, value in values.items()}
