"""The long problems of the tiny language: what people put into a jar and take out of it, in notes
from A to Z.

    The jar has 36 shells. Note A: Finn puts 7 shells into the jar. Note B: Nora takes 5 shells out
    and Eva puts 9 shells in. ... Note T, the last: Nora puts as many shells into the jar as in note
    A. How many shells are in the jar in the end?

A solution says what is asked and what the jar has, then for each note what it says and what follows
from it: one step per change, one more where a note refers to an earlier note. That is 40 to 75
steps, each of which has to be right. What the jar has is where the solution last said so; what a
note says is far back in the question; so a long problem asks for many copies, look-ups over short
and long distances and small sums.

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
)

FEWEST_NOTES, MOST_NOTES = 18, len(NOTES)
MOST_CHANGED = 40  # things that one note adds or takes
PEOPLE = 3
WHAT_HAPPENS = {
    "put": 0.22,
    "take": 0.2,
    "trade": 0.28,
    "doubles": 0.06,
    "halves": 0.06,
    "match": 0.18,
}
"""What a note tells, with its share where it is possible."""
LAST = ", the last,"
"""What follows the letter of the last note."""


def story(split: Split, index: int, seed: int = 0) -> Problem[Meaning]:
    """Long problem number `index` of a split. Deterministic."""
    rng = random.Random(f"jar/{split.value}/{seed}/{index}")
    return first_in(split, lambda: _draw(rng))


def _draw(rng: random.Random) -> Problem[Meaning]:
    """One random long problem."""
    item, people = rng.choice(ITEMS), rng.sample(NAMES, PEOPLE)
    start = jar = rng.randrange(3, 51)
    notes, steps = list[Meaning](), list[Meaning]()
    count = rng.randrange(FEWEST_NOTES, MOST_NOTES + 1)
    for letter in NOTES[:count]:
        note, after = _note(rng, letter, jar, people, notes, item)
        if letter == NOTES[count - 1]:
            note = note._replace(note=letter + LAST)
        notes.append(note)
        steps += [note, *after]
        assert after[-1].result is not None
        jar = after[-1].result
    goal = Meaning(Kind.GOAL, "jar", item=item)
    given = Meaning(Kind.GIVEN, "jar", result=start, item=item)
    answer = Meaning(Kind.ANSWER, "jar", result=jar, item=item)
    return Problem(" ".join(_sentences(start, notes, item)), (goal, given, *steps, answer), jar)


def _note(
    rng: random.Random, letter: str, jar: int, people: list[str], notes: list[Meaning], item: str
) -> tuple[Meaning, list[Meaning]]:
    """A random note that leaves the jar within the bounds, and the steps that follow from it."""
    while True:
        what = rng.choices(list(WHAT_HAPPENS), list(WHAT_HAPPENS.values()))[0]
        person, other = rng.sample(people, 2)
        note = Meaning(Kind.NOTE, what, person, item=item, note=letter)
        amounts = rng.randrange(LOWEST, MOST_CHANGED + 1), rng.randrange(LOWEST, MOST_CHANGED + 1)
        if what in ("put", "take"):
            note = note._replace(operands=amounts[:1])
        elif what == "trade":
            note = note._replace(operands=amounts, references=(other,))
        elif what == "match":
            earlier = [one.note for one in notes if len(one.operands) == 1]
            if not earlier:
                continue
            note = note._replace(references=(rng.choice(earlier),))
        if what == "halves" and jar % 2:
            continue
        after = consequences(note, jar, notes)
        if all(step.result is None or LOWEST <= step.result <= HIGHEST for step in after):
            return note, after


def consequences(note: Meaning, jar: int, notes: list[Meaning]) -> list[Meaning]:
    """The steps that follow from a note, given what the jar has and the notes before it."""
    steps, changes = list[Meaning](), list[tuple[str, int]]()
    if note.operation == "match":
        [letter] = note.references
        [amount] = next(one.operands for one in notes if one.note == letter)
        steps.append(
            Meaning(Kind.OPERATION, "recall", operands=(amount,), item=note.item, note=letter)
        )
        changes.append(("plus", amount))
    elif note.operation in ("doubles", "halves"):
        changes.append(("doubled" if note.operation == "doubles" else "halved", 2))
    else:  # put, take, or both
        first = "minus" if note.operation == "take" else "plus"
        changes += zip((first, "minus"), note.operands, strict=False)
    for operation, by in changes:
        operands, jar = (jar, by), calculate(operation, (jar, by))
        steps.append(Meaning(Kind.OPERATION, operation, "", (), operands, jar, note.item))
    return steps


_PERSON, _ITEM = (f"(?:{'|'.join(words)})" for words in (NAMES, ITEMS))
_WHAT = (
    rf"{_PERSON} (?:puts \d+ {_ITEM} into the jar|takes \d+ {_ITEM} out of the jar"
    rf"|puts \d+ {_ITEM} in and {_PERSON} takes \d+ {_ITEM} out|doubles the {_ITEM} in the jar"
    rf"|takes half of the {_ITEM} out|puts as many {_ITEM} in as in note [A-Z])"
)
QUESTION = re.compile(
    rf"The jar has \d+ {_ITEM}\.(?: Note [A-Z](?:, the last)?: {_WHAT}\.)* "
    rf"How many {_ITEM} are in the jar in the end\?"
)
"""What a long question looks like; see `_sentences`."""


def _sentences(start: int, notes: list[Meaning], item: str) -> Iterator[str]:
    """The question in plain words: a sentence for the start, one per note, and what is asked."""
    yield f"The jar has {start} {item}."
    for note in notes:
        amounts = (*note.operands, "", "")
        other = note.references[0] if note.references else ""
        what = {
            "put": f"puts {amounts[0]} {item} into the jar",
            "take": f"takes {amounts[0]} {item} out of the jar",
            "trade": f"puts {amounts[0]} {item} in and {other} takes {amounts[1]} {item} out",
            "doubles": f"doubles the {item} in the jar",
            "halves": f"takes half of the {item} out",
            "match": f"puts as many {item} in as in note {other}",
        }[note.operation]
        yield f"Note {note.note.rstrip(',')}: {note.entity} {what}."
    yield f"How many {item} are in the jar in the end?"
