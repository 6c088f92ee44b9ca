"""Pairs of steps for the judge, from the grammar: the same meaning in other words, or a
meaning in which one thing is changed; and how far a step agrees with a meaning.

The oracle labels every pair, so a pair is "same" for no other reason than that both
steps are read and say the same. The changes are the mistakes that models make: a digit
of an operand or a result, a person, the item, the operation, the letter of a turn,
another step of the solution, a word that is lost or doubled. Some pairs of equal
meaning are wrong in the same way on both sides: the judge is to compare, not to
calculate.

Standard library only. Read next: `judge.py`, which makes training rows of pairs.
"""

from __future__ import annotations

import random
from os.path import commonprefix
from typing import NamedTuple

from lr.tiny.grammar import PIECES, unglue
from lr.tiny.language import (
    HIGHEST,
    ITEMS,
    LOWEST,
    NAMES,
    NOTES,
    Meaning,
    Problem,
    Split,
    calculate,
    problem,
)
from lr.tiny.oracle import parse, same_meaning
from lr.tiny.stories import story
from tiny_training.wording import Style, render, slots

SHARED_MISTAKES = (
    0.3  # of the pairs of equal meaning say something that the solution does not
)
SAME_STYLE = 0.3  # of the pairs are two steps of one style
DIFFERENCES = (("changed", 0.8), ("elsewhere", 0.12), ("broken", 0.08))
CHANGES = (
    ("person", 0.3),
    ("result", 0.2),
    ("operand", 0.2),
    ("operation", 0.1),
    ("item", 0.15),
    ("note", 0.05),
)
"""How steps come to differ, and what is changed, each with its share. A change that a
step does not have is drawn again.
"""
SHAPES = {
    **dict.fromkeys(("add", "subtract", "times"), ("add", "subtract", "times")),
    **dict.fromkeys(("total", "difference"), ("total", "difference")),
    **dict.fromkeys(("put", "take"), ("put", "take")),
    **dict.fromkeys(("then put", "then take"), ("then put", "then take")),
    **dict.fromkeys(("doubles", "halves"), ("doubles", "halves")),
    **dict.fromkeys(("plus", "minus"), ("plus", "minus")),
    **dict.fromkeys(("doubled", "halved"), ("doubled", "halved")),
}
"""Operations of the same slots, which can take each other's place."""


class TextPair(NamedTuple):
    """Two steps as text, without the blank line that ends them, and whether they mean
    the same by the oracle."""

    first: str
    second: str
    same: bool


def grammar_pair(index: int, seed: int, split: Split = Split.TRAIN) -> TextPair:
    """Pair number `index`: of equal meaning where `index` is even, of different meaning
    where it is odd; never equal texts."""
    rng = random.Random(f"pair/{split.value}/{seed}/{index}")
    wanted = index % 2 == 0
    while True:
        task = rng.choice((problem, story))(split, rng.randrange(1 << 40), seed)
        step = rng.choice(task.steps)
        style = rng.choice(list(Style))
        styles = (style, style if rng.random() < SAME_STYLE else style.other)
        first, second = (
            _same(step, styles, rng) if wanted else _different(task, step, styles, rng)
        )
        if rng.random() < 0.5:
            first, second = second, first
        if first != second and same_meaning(first, second) == wanted:
            return TextPair(first, second, wanted)


def _same(
    step: Meaning, styles: tuple[Style, Style], rng: random.Random
) -> tuple[str, str]:
    if rng.random() < SHARED_MISTAKES:
        step = change(step, rng)
    return render(step, styles[0], rng), render(step, styles[1], rng)


def _different(
    task: Problem,
    step: Meaning,
    styles: tuple[Style, Style],
    rng: random.Random,
) -> tuple[str, str]:
    difference = _drawn(DIFFERENCES, rng)
    first = render(step, styles[0], rng)
    if difference == "changed":
        return first, render(change(step, rng), styles[1], rng)
    if difference == "elsewhere":
        elsewhere = rng.choice(
            [elsewhere for elsewhere in task.steps if elsewhere != step]
        )
        return first, render(elsewhere, styles[1], rng)
    return first, _break(render(step, styles[1], rng), rng)


def _drawn(shares: tuple[tuple[str, float], ...], rng: random.Random) -> str:
    names, weights = zip(*shares, strict=True)
    return rng.choices(names, weights)[0]


def change(step: Meaning, rng: random.Random) -> Meaning:
    """`step` with one thing changed: a number, a person, the item or the operation.
    Still a sentence of the language."""
    while True:
        changed = _change(step, _drawn(CHANGES, rng), rng)
        if changed != step and parse(render(changed, Style.TARGET, rng)) == changed:
            return changed


def _change(step: Meaning, part: str, rng: random.Random) -> Meaning:
    """One try at a change; the step itself where it has no such thing."""
    if part == "result" and step.result is not None:
        return step._replace(result=_other_number(step.result, rng))
    if part == "operand" and step.operands:
        index = rng.randrange(len(step.operands))
        operands = list(step.operands)
        operands[index] = _other_number(operands[index], rng)
        return _recalculated(step._replace(operands=tuple(operands)), rng)
    if part == "person":
        people = [step.entity, *step.references]
        index = rng.randrange(len(people))
        people[index] = rng.choice(NAMES) if people[index] else ""
        if len(people) == 3 and rng.random() < 0.2:
            people[1:] = step.references[::-1]
        return step._replace(entity=people[0], references=tuple(people[1:]))
    if part == "item" and step.item:
        return step._replace(item=rng.choice(ITEMS))
    if part == "note" and step.note:
        return step._replace(note=rng.choice(NOTES) + step.note[1:])
    if part == "operation" and step.operation in SHAPES:
        return _recalculated(
            step._replace(operation=rng.choice(SHAPES[step.operation])), rng
        )
    return step


def _recalculated(step: Meaning, rng: random.Random) -> Meaning:
    """Half of the changes go on to the right result, where there is one; in the others
    the result stays as it was."""
    if step.result is None or rng.random() < 0.5:
        return step
    result = calculate(step.operation, step.operands)
    return step._replace(result=result) if LOWEST <= result <= HIGHEST else step


def _other_number(number: int, rng: random.Random) -> int:
    """A number that is easily taken for `number`: one digit other, one or ten more or
    less; or any."""
    tens, ones = divmod(number, 10)
    near = (
        10 * tens + rng.randrange(10),
        10 * rng.randrange(10) + ones,
        number + rng.choice((-10, -1, 1, 10)),
    )
    confusable = rng.choice((*near, rng.randrange(LOWEST, HIGHEST + 1)))
    return confusable if confusable >= LOWEST else number


def _break(text: str, rng: random.Random) -> str:
    """`text` with one word lost, doubled, or replaced by another word of it."""
    words = text.split(" ")
    index = rng.randrange(len(words))
    accident = rng.randrange(3)
    words[index : index + 1] = [[], [words[index]] * 2, [rng.choice(words)]][accident]
    return " ".join(words)


def agreeing_prefix(meaning: Meaning, text: str) -> int:
    """The length of the longest beginning of `unglue(text)` that begins some sentence
    saying `meaning`: all paths of all its templates are followed through the text at
    once, an alternative at each place.

    Example: the meaning is "Ann has 7 coins". "First Ann has 17 coins." agrees for the
    14 characters "First Ann has "; the "1" is too much. "First Ann has 72 coins."
    agrees for one character more: 7 may still become 7."""
    spaced = unglue(text)
    values = slots(meaning)
    longest = 0
    for template in PIECES[meaning.kind, meaning.operation]:
        ends = {0}  # where in the text the places so far may end
        for alternatives in template:
            ends_next: set[int] = set()
            for alternative in alternatives:
                words = unglue(values.get(alternative, alternative)).strip()
                words += " " if words else ""
                for end in ends:
                    matched = len(commonprefix([spaced[end:], words]))  # noqa: RUF071  # letters
                    longest = max(longest, end + matched)
                    if matched == len(words):
                        ends_next.add(end + matched)
            ends = ends_next
    return longest
