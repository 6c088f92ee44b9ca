"""The long problems of the tiny language: people take turns to put things into a jar or
take some.

The jar has 36 shells. Finn puts 7 shells in, then Nora takes 12 shells out, then Eva
puts 4
    shells in, and so on in turn. Turn F: Jo doubles the shells. ... Turn T, the last: Nora puts 9
    shells in. How many shells are in the jar in the end?

A solution states the goal and the jar's start, then for each turn what happens and what
the jar has afterwards. These are 40 to 55 steps, and each has to be right. The content
of the jar is in the step before, and the last regular turn tells whose turn it is. But
whether the question makes an exception for this turn has to be looked up far back. So a
long problem needs many copies, some long-range look-ups, and sums.

Words and oracle are those of the short problems (`grammar.py`, `oracle.py`), and the
same models speak both. Every problem is a pure function of (split, index, seed). All
quantities lie in 2..99. Standard library only. Read next: `grammar.py`."""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from lr.tiny.language import (
    AMOUNTS,
    HIGHEST,
    ITEMS,
    LOWEST,
    NAMES,
    NOTES,
    QUESTIONS,
    Meaning,
    Problem,
    Split,
    StepKind,
    calculate,
    first_in,
    problem,
)

FEWEST_TURNS = 19
MOST_TURNS = len(NOTES)
MOST_CHANGED = 40  # things put in or taken out in a special turn
MOST_DRIFT = 4  # things that the jar gains or loses in a round of regular turns
SPECIAL = 0.18  # the share of turns for which the question makes an exception
LAST = ", the last"  # follows the letter of the last turn
CHANGES = {"put": "plus", "take": "minus", "doubles": "doubled", "halves": "halved"}
"""What happens in a turn, and its effect on the jar."""
StoryRules = dict[
    str, tuple[str, int]
]  # by person, in the order of turns: (put or take, how many)


def story(split: Split, index: int, seed: int = 0) -> Problem:
    """Long problem number `index` of a split. Deterministic."""
    rng = random.Random(f"turns/{split.value}/{seed}/{index}")
    return first_in(split, lambda: _draw(rng))


def _draw(rng: random.Random) -> Problem | None:
    """Draw a long problem, or None if the jar leaves the bounds."""
    item = rng.choice(ITEMS)
    rules = _rules(rng)
    start = jar = rng.randrange(10, 71)
    turns = NOTES[: rng.randrange(FEWEST_TURNS, MOST_TURNS + 1)]
    people = list(rules)
    at = 0
    before = ""
    steps = list[Meaning]()
    special = list[Meaning]()
    for letter in turns:
        if letter == turns[-1] or (before and rng.random() < SPECIAL):
            last = LAST if letter == turns[-1] else ""
            step = _special(rng, jar, item)._replace(note=letter + last)
            special.append(step)
        else:
            person = people[at % len(people)]
            move, amount = rules[person]
            operation = f"then {move}" if before else move
            others = (before,) if before else ()
            step = Meaning(
                StepKind.NOTE,
                operation,
                person,
                others,
                (amount,),
                item=item,
                note=letter,
            )
            at = at + 1
            before = person
        after = consequence(step, jar)
        assert after.result is not None
        jar = after.result
        if not LOWEST <= jar <= HIGHEST:
            return None
        steps += [step, after]
    goal = Meaning(StepKind.GOAL, "jar", item=item)
    opening = Meaning(StepKind.GIVEN, "jar", result=start, item=item)
    answer = Meaning(StepKind.ANSWER, "jar", result=jar, item=item)
    question = " ".join(_sentences(start, rules, special, item))
    return Problem(question, (goal, opening, *steps, answer), jar)


def _rules(rng: random.Random) -> StoryRules:
    """Draw the regular turns of three people. A round of them changes the jar only a
    little."""
    names = rng.sample(NAMES, 3)
    while True:
        drawn = [
            (rng.choice(("put", "take")), rng.randrange(LOWEST, 31)) for _ in names
        ]
        drift = sum(amount if move == "put" else -amount for move, amount in drawn)
        if abs(drift) <= MOST_DRIFT:
            return dict(zip(names, drawn, strict=True))


def _special(rng: random.Random, jar: int, item: str) -> Meaning:
    """Draw a special turn that leaves the jar within bounds."""
    while True:
        move = rng.choice(("put", "put", "take", "take", "doubles", "halves"))
        step = Meaning(StepKind.NOTE, move, rng.choice(NAMES), item=item)
        if move in ("put", "take"):
            step = step._replace(operands=(rng.randrange(LOWEST, MOST_CHANGED + 1),))
        if move == "halves" and jar % 2:
            continue
        result = consequence(step, jar).result
        if result is not None and LOWEST <= result <= HIGHEST:
            return step


def consequence(turn: Meaning, jar: int) -> Meaning:
    """The effect of a turn on a jar with `jar` things in it."""
    operation = CHANGES[turn.operation.removeprefix("then ")]
    operands = (jar, turn.operands[0] if turn.operands else 2)
    result = calculate(operation, operands)
    return Meaning(StepKind.OPERATION, operation, "", (), operands, result, turn.item)


STORY_MOVES = {
    "put": "{person} puts {n} {item} in",
    "take": "{person} takes {n} {item} out",
    "doubles": "{person} doubles the {item}",
    "halves": "{person} takes half of the {item} out",
}


def _sentences(
    start: int,
    rules: Mapping[str, tuple[str, int]],
    special: Sequence[Meaning],
    item: str,
) -> Iterator[str]:
    """The question in plain words: the start, the rules, the special turns, the
    query."""

    def say(person: str, move: str, amount: int = 0) -> str:
        return STORY_MOVES[move].format(person=person, n=amount, item=item)

    yield f"The jar has {start} {item}."
    yield f"{', then '.join(say(who, *rule) for who, rule in rules.items())}, and so on in turn."
    for turn in special:
        yield f"Turn {turn.note}: {say(turn.entity, turn.operation, *turn.operands)}."
    yield f"How many {item} are in the jar in the end?"


DATASETS: Mapping[str, Callable[[Split, int, int], Problem]] = {
    "tiny": problem,
    "stories": story,
}
"""The problems of a data set, as a function of (split, index, seed): short and long."""


EXAMPLES = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. Then Eva gets half as "
    "many coins as Ben. How many coins does Eva have?",
    "At first Leo has 4 shells. Then Mia gets 2 times as many shells as Leo. By how many "
    "shells do Leo and Mia differ?",
    "The jar has 20 buttons. Finn puts 5 buttons in, then Nora takes 6 buttons out, and so on in "
    "turn. Turn D, the last: Jo doubles the buttons. How many buttons are in the jar in the end?",
)
RULE = (
    "It knows one small language: people who have or get things, or put them into a jar, "
    f"and whole numbers up to {HIGHEST}. Choose another model, or ask like this:"
)


@cache
def _words() -> set[str]:
    """All words and numbers of the language."""
    templates = " ".join(
        [*AMOUNTS.values(), *QUESTIONS.values(), *STORY_MOVES.values()]
    )
    numbers = map(str, range(HIGHEST + 1))
    words = re.findall(r"\w+", re.sub(r"{\w+}", "", " ".join([templates, *EXAMPLES])))
    return {*words, *numbers, *NAMES, *ITEMS, *NOTES}


def unreadable(text: str) -> str:
    """Why a text is no question of the language, with its rule and examples; "" if it is
    one, as far as beginning, end, words and numbers tell."""
    unknown = [word for word in re.findall(r"\w+", text) if word not in _words()]
    if not re.fullmatch(r"\s*(At first|The jar has) .*\?\s*", text, re.DOTALL):
        reason = "a question begins with “At first” or “The jar has” and ends with “?”"
    elif unknown:
        reason = f"the language has no {unknown[0]!r}"
    else:
        return ""
    return "\n    ".join([f"{reason}. {RULE}", *EXAMPLES])
