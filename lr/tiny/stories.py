"""The long problems of the tiny language: what happened to two or three people, in notes from A to
Z.

    Finn has 36 shells and Nora has 12 shells. Note A: Finn gives 7 shells to Nora. Note B: Nora
    now has half as many shells. ... Note T, the last: Nora finds as many shells as in note C. How
    many shells does Nora have in the end?

A solution says what is asked and what everybody starts with, then for each note what it says and
what follows from it: one step per person whose things change, one more where a note refers to an
earlier note. That is 40 to 70 steps. What a person has is where the solution last said so; what a
note says is in the question; so a long problem asks for many copies, look-ups over short and long
distances and small sums, and its answer depends on nearly all of them.

Words and oracle are those of the short problems (`grammar.py`, `oracle.py`): one family of models
speaks both. A pure function of (split, index, seed); all quantities lie in 2..99. Standard library
only. Read next: `grammar.py`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from lr.tiny.language import (
    HIGHEST,
    ITEMS,
    LOWEST,
    NAMES,
    NOTES,
    Kind,
    Meaning,
    Problem,
    Split,
    calculate,
    first_in,
    query,
)

FEWEST_NOTES, MOST_NOTES = 18, len(NOTES)
MOST_CHANGED = 40  # things that one note adds or takes
WHAT_HAPPENS = {
    "find": 0.22,
    "lose": 0.18,
    "give": 0.28,
    "doubles": 0.06,
    "halves": 0.06,
    "match": 0.1,
    "count": 0.1,
}
"""What a note tells, with its share where it is possible."""
LAST = ", the last,"
"""What follows the letter of the last note."""


def story(split: Split, index: int, seed: int = 0) -> Problem[Meaning]:
    """Long problem number `index` of a split. Deterministic."""
    rng = random.Random(f"story/{split.value}/{seed}/{index}")
    return first_in(split, lambda: _draw(rng))


def _draw(rng: random.Random) -> Problem[Meaning] | None:
    """One random long problem, or None where its query has no answer within the bounds."""
    item = rng.choice(ITEMS)
    has = {name: rng.randrange(3, 51) for name in rng.sample(NAMES, rng.choice((2, 2, 3)))}
    given = [
        Meaning(Kind.GIVEN, "", entity=name, result=count, item=item) for name, count in has.items()
    ]
    notes, steps = list[Meaning](), list[Meaning]()
    count = rng.randrange(FEWEST_NOTES, MOST_NOTES + 1)
    for letter in NOTES[:count]:
        note = _note(rng, letter, has, notes, item)
        if letter == NOTES[count - 1]:
            note = note._replace(note=letter + LAST)
        notes.append(note)
        steps += [note, *consequences(note, has, notes)]
    pair = rng.sample(sorted(has.items()), 2)
    asked = query(rng, pair, item)
    if asked is None:
        return None
    goal, answer = asked
    assert answer.result is not None
    who, what = goal.references, answer.operation
    named = sorted(who, key=lambda name: -has[name]) if what == "difference" else who
    final = "final" if what == "value" else f"final {what}"
    answer = answer._replace(operation=final, references=tuple(named), item=item)
    solution = (goal, *given, *steps, answer)
    return Problem(_question(given, notes, goal), solution, answer.result)


def _note(
    rng: random.Random, letter: str, has: dict[str, int], notes: list[Meaning], item: str
) -> Meaning:
    """A random note that leaves everybody's quantity within the bounds."""
    while True:
        what = rng.choices(list(WHAT_HAPPENS), list(WHAT_HAPPENS.values()))[0]
        person, other = rng.sample(list(has), 2)
        note = Meaning(Kind.NOTE, what, person, item=item, note=letter)
        if what in ("find", "lose", "give"):
            note = note._replace(operands=(rng.randrange(LOWEST, MOST_CHANGED + 1),))
        if what in ("give", "count"):
            note = note._replace(references=(other,))
        if what == "match":
            earlier = [one.note for one in notes if one.operands]
            if not earlier:
                continue
            note = note._replace(references=(rng.choice(earlier),))
        if what == "halves" and has[person] % 2:
            continue
        results = [one.result for one in consequences(note, dict(has), notes)]
        if all(one is None or LOWEST <= one <= HIGHEST for one in results):
            return note


def consequences(note: Meaning, has: dict[str, int], notes: list[Meaning]) -> list[Meaning]:
    """The steps that follow from a note, given what everybody `has` (which is brought up to date)
    and the notes before it."""
    person, item, what = note.entity, note.item, note.operation
    steps = []

    def changed(who: str, operation: str, by: int) -> None:
        operands = (has[who], by)
        has[who] = calculate(operation, operands)
        steps.append(Meaning(Kind.OPERATION, operation, who, (), operands, has[who], item))

    if what == "match":
        [letter] = note.references
        [amount] = next(one.operands for one in notes if one.note == letter)
        recalled = Meaning(Kind.OPERATION, "recall", operands=(amount,), item=item, note=letter)
        steps.append(recalled)
        changed(person, "plus", amount)
    elif what == "count":
        [other] = note.references
        operands = (has[person], has[other])
        both = (person, other)
        steps.append(Meaning(Kind.OPERATION, "both", "", both, operands, sum(operands), item))
    elif what in ("doubles", "halves"):
        changed(person, "doubled" if what == "doubles" else "halved", 2)
    else:
        changed(person, "plus" if what == "find" else "minus", *note.operands)
        for other in note.references:
            changed(other, "plus", *note.operands)
    return steps


_PERSON, _ITEM = (f"(?:{'|'.join(words)})" for words in (NAMES, ITEMS))
_WHAT = (
    rf"{_PERSON} (?:(?:finds|loses) \d+ {_ITEM}|gives \d+ {_ITEM} to {_PERSON}"
    rf"|now has (?:twice|half) as many {_ITEM}|finds as many {_ITEM} as in note [A-Z]"
    rf"|and {_PERSON} count their {_ITEM})"
)
QUESTION = re.compile(
    rf"{_PERSON} has \d+ {_ITEM}(?:, {_PERSON} has \d+ {_ITEM})* and {_PERSON} has \d+ {_ITEM}\."
    rf"(?: Note [A-Z](?:, the last)?: {_WHAT}\.)* "
    rf"(?:How many {_ITEM} (?:does {_PERSON} have|do {_PERSON} and {_PERSON} have together)"
    rf"|By how many {_ITEM} do {_PERSON} and {_PERSON} differ) in the end\?"
)
"""What a long question looks like; see `_question`."""


def _question(given: list[Meaning], notes: list[Meaning], goal: Meaning) -> str:
    """The question in plain words: a sentence for the start, one per note, and what is asked."""
    return " ".join(_sentences(given, notes, goal))


def _sentences(given: list[Meaning], notes: list[Meaning], goal: Meaning) -> Iterator[str]:
    item = goal.item
    *first, last = (f"{one.entity} has {one.result} {item}" for one in given)
    yield f"{', '.join(first)} and {last}."
    for note in notes:
        amount = note.operands[0] if note.operands else ""
        other = note.references[0] if note.references else ""
        what = {
            "find": f"finds {amount} {item}",
            "lose": f"loses {amount} {item}",
            "give": f"gives {amount} {item} to {other}",
            "doubles": f"now has twice as many {item}",
            "halves": f"now has half as many {item}",
            "match": f"finds as many {item} as in note {other}",
            "count": f"and {other} count their {item}",
        }[note.operation]
        yield f"Note {note.note.rstrip(',')}: {note.entity} {what}."
    asked = " and ".join(goal.references)
    yield {
        "value": f"How many {item} does {asked} have in the end?",
        "total": f"How many {item} do {asked} have together in the end?",
        "difference": f"By how many {item} do {asked} differ in the end?",
    }[goal.operation]
