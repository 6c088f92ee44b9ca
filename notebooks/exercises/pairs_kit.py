"""Labelled pairs of reasoning steps for verifier.py: facts about people and coins, said
in some ways, and facts that are nearly the same. Everything is made from seeds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

NAMES = "Ann Ben Cleo Dan Eva Finn Gus Hana Ivo Kim Leo Mia Nora Omar Pia Quinn".split()
THINGS = "coins shells pencils apples stamps".split()
WAYS = {
    "sum": (
        "{who} now has {a} + {b} = {c} {thing}.",
        "So {who} holds {a} plus {b}, which makes {c} {thing}.",
        "Adding {b} to {a}, we find {c} {thing} for {who}.",
    ),
    "difference": (
        "{who} now has {a} - {b} = {c} {thing}.",
        "So {who} holds {a} minus {b}, which makes {c} {thing}.",
        "Taking {b} from {a} leaves {c} {thing} for {who}.",
    ),
    "gift": (
        "{who} gives {a} {thing} to {whom}.",
        "Then {whom} gets {a} {thing} from {who}.",
        "From {who} to {whom} go {a} {thing}.",
    ),
    "more": (
        "{who} has {a} more {thing} than {whom}.",
        "{whom} has {a} fewer {thing} than {who}.",
        "Compared with {whom}, {who} has {a} {thing} more.",
    ),
}
"""Ways to say a fact, by its kind."""


@dataclass(frozen=True)
class Fact:
    """What a step states."""

    kind: str
    who: str
    whom: str
    a: int
    b: int
    c: int
    thing: str

    def sentence(self, chance: random.Random) -> str:
        """One of the ways to say it."""
        return chance.choice(WAYS[self.kind]).format(**vars(self))


@dataclass(frozen=True)
class LabelledPair:
    """Two steps, and whether they mean the same."""

    draft: str
    target: str
    same: bool


def labelled(count: int, seed: int) -> list[LabelledPair]:
    """Pairs, half of them with the same meaning; a same one is never word for word the
    same."""
    chance = random.Random(seed)
    pairs: list[LabelledPair] = []
    while len(pairs) < count:
        fact = _fact(chance)
        same = len(pairs) % 2 == 0
        target = fact.sentence(chance)
        draft = (fact if same else _nearly(fact, chance)).sentence(chance)
        if draft != target:
            pairs.append(LabelledPair(draft, target, same))
    return pairs


def _fact(chance: random.Random) -> Fact:
    kind = chance.choice(list(WAYS))
    who, whom = chance.sample(NAMES, 2)
    a, b = chance.randint(25, 60), chance.randint(5, 20)
    c = a + b if kind == "sum" else a - b
    return Fact(kind, who, whom, a, b, c, chance.choice(THINGS))


def _nearly(fact: Fact, chance: random.Random) -> Fact:
    """Another fact that looks much the same: one mistake of those that models make."""
    somebody = chance.choice([n for n in NAMES if n not in (fact.who, fact.whom)])
    slip = chance.randint(1, 3)
    changes = [{"who": somebody}]
    if fact.kind in ("sum", "difference"):
        b = fact.b - slip if fact.kind == "sum" else fact.b + slip
        changes += [{"c": fact.c + slip}, {"a": fact.a + slip, "b": b}]
    else:
        changes += [{"a": fact.a + slip}, {"who": fact.whom, "whom": fact.who}]
    return replace(fact, **chance.choice(changes))


LABELLED = labelled(60, seed=1)
