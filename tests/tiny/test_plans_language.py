"""Plans: problems that are right and held out, and a grammar and an oracle that are
inverse to each other.
"""

from __future__ import annotations

import random
import re

import pytest
from tiny_training.drills import PRACTICE

from lr.tiny.grammar import Style, glue
from lr.tiny.language import Split, StepKind, split_of
from lr.tiny.languages import LANGUAGES, PLANS, QUANTITIES
from lr.tiny.plans import (
    DIRECTIONS,
    HOUSE,
    NUMBERS,
    PIECES,
    ROOMS,
    THINGS,
    Deed,
    neighbour,
    parse,
    plan,
    render,
    slots,
)


@pytest.fixture(scope="module")
def deeds() -> list[Deed]:
    """Every step of many plans."""
    return [step for i in range(300) for step in plan(Split.TEST, i).steps]


def test_a_plan_stays_what_it_was() -> None:
    """Published numbers name problems by index; they must not change with a library or
    a refactoring.
    """
    what = plan(Split.TEST, 2)
    assert what.question == (
        "The robot starts in the kitchen. Order one: go north. Order two: go north. "
        "Order three: go east. Where is the robot?"
    )
    assert what.answer == "tower"
    assert plan(Split.TEST, 2, seed=1) != what


def test_held_out_plans_are_never_trained_on() -> None:
    train = {plan(Split.TRAIN, i, seed).question for i in range(400) for seed in (0, 1)}
    test = {plan(Split.TEST, i, seed).question for i in range(400) for seed in (0, 1)}
    assert len(train) > 720 and len(test) > 720, (
        "short plans without a thing are few enough to come twice"
    )
    assert not train & test
    assert {split_of(question) for question in test} == {Split.TEST}


def test_the_house_is_a_square_without_a_way_out() -> None:
    assert len(ROOMS) == len(set(ROOMS)) == 16
    assert neighbour("hall", "north") == "tower" and neighbour("tower", "north") is None
    for room in ROOMS:
        for there, back in (("north", "south"), ("east", "west")):
            found = neighbour(room, there)
            assert found is None or neighbour(found, back) == room
    assert sum(
        neighbour(room, side) is None for room in ROOMS for side in DIRECTIONS
    ) == 4 * len(HOUSE)


def test_every_solution_is_right() -> None:
    """An independent walk through the house: orders in the question against the steps
    of the solution.
    """
    for i in range(300):
        what = plan(Split.TRAIN, i)
        goal, given, *orders, answer = what.steps
        said = re.findall(r"Order (\w+): (\w+) (?:the )?(\w+)\.", what.question)
        assert [deed.number for deed in orders] == list(
            NUMBERS[: len(orders)]
        ) and 3 <= len(orders) <= 6
        room, held, lying = (
            re.findall(r"starts in the (\w+)\.", what.question)[0],
            "",
            {},
        )
        assert given.room == room
        for deed, (number, verb, word) in zip(orders, said, strict=True):
            assert (deed.kind, deed.number, deed.operation) == (
                StepKind.OPERATION,
                number,
                verb,
            )
            if verb == "go":
                assert (deed.origin, deed.direction) == (room, word)
                room = str(neighbour(room, word))
            elif verb == "take":
                assert not held
                held = word
            else:
                assert held == word
                held, lying[word] = "", room
            assert deed.room == room and (verb == "go" or deed.thing == word)
        true = {"robot": room, "held": held, "thing": lying.get(goal.thing, "")}[
            goal.operation
        ]
        assert what.answer == true and true
        assert answer.operation == goal.operation and true in (
            answer.room,
            answer.thing,
        )


@pytest.mark.parametrize("style", list(Style))
def test_round_trip(deeds: list[Deed], style: Style) -> None:
    rng = random.Random(0)
    for deed in deeds:
        text = render(deed, style, rng)
        assert parse(text) == deed, text


def test_every_template_can_be_read_with_every_alternative(deeds: list[Deed]) -> None:
    """Not sampled: every template with every alternative of every place, the others at
    their first.
    """
    examples = {(deed.kind, deed.operation): deed for deed in deeds}
    assert examples.keys() == PIECES.keys()
    for key, templates in PIECES.items():
        values = slots(examples[key])
        for template in templates:
            for place, alternatives in enumerate(template):
                for alternative in alternatives:
                    words = [
                        alternative if i == place else one[0]
                        for i, one in enumerate(template)
                    ]
                    text = glue(values.get(word, word) for word in words)
                    assert parse(text) == examples[key], text


def test_paraphrases_mean_the_same_and_other_words_do_not_in_either_order() -> None:
    one = (
        "By order three the robot goes north from the kitchen and reaches the library."
    )
    same = [
        "Order three means north, so our helper exits the kitchen and finds the library.",
        "Heeding order three, the machine heads north, out of the kitchen towards the library.\n\n",
    ]
    others = [
        one.replace("library", "attic"),
        one.replace("kitchen", "hall"),
        one.replace("north", "south"),
        one.replace("three", "two"),
        "By order three the robot takes the lamp that is in the library.",
    ]
    for text in same:
        assert PLANS.same_meaning(one, text) and PLANS.same_meaning(text, one)
    for text in others:
        assert parse(text) is not None
        assert not PLANS.same_meaning(one, text) and not PLANS.same_meaning(text, one)


def test_minimal_changes_are_told_apart(deeds: list[Deed]) -> None:
    """One word that carries meaning changed for another of its kind, wherever it
    stands: never the same meaning, never an error.
    """
    rng = random.Random(2)
    kinds = (ROOMS, THINGS, tuple(DIRECTIONS), NUMBERS)
    changed = 0
    for deed in deeds:
        text = render(deed, rng.choice(list(Style)), rng)
        places = [
            match
            for match in re.finditer(r"[a-z]+", text)
            if any(match.group() in kind for kind in kinds)
        ]
        if not places:
            continue
        place = rng.choice(places)
        (kind,) = (kind for kind in kinds if place.group() in kind)
        other = rng.choice([word for word in kind if word != place.group()])
        edited = text[: place.start()] + other + text[place.end() :]
        assert not PLANS.same_meaning(text, edited) and not PLANS.same_meaning(
            edited, text
        ), edited
        changed += 1
    assert changed > 1500


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The robot sings.",
        "By order three the robot goes north from the kitchen and reaches the castle.",
        "By order seven the robot goes north from the kitchen and reaches the library.",
        "So the robot holds the \\boxed{hall} in the end.",  # a room cannot be held
        "So the robot is in the \\boxed{lamp} in the end.",
        "At first Ann has 7 coins.",
    ],
)
def test_what_is_not_in_the_language_equals_nothing(text: str) -> None:
    assert parse(text) is None
    assert not PLANS.same_meaning(text, text)


def test_the_languages_do_not_understand_each_other(deeds: list[Deed]) -> None:
    rng = random.Random(3)
    for step in deeds[:100]:
        assert QUANTITIES.parse(render(step, Style.TARGET, rng)) is None
    for step in QUANTITIES.problem(Split.TEST, 0, 0).steps:
        assert PLANS.parse(QUANTITIES.render(step, Style.TARGET, rng)) is None
    assert (
        [one.family for one in LANGUAGES.values()]
        == list(LANGUAGES)
        == ["tiny", "plans"]
    )


def test_drills_are_true() -> None:
    rng, drill = random.Random(4), PRACTICE["plans"].drill
    for _ in range(100):
        fact, room = drill(rng, True)
        side, origin, found = re.fullmatch(
            r" (\w+) of the (\w+) is the (\w+),", fact
        ).groups()
        assert found == room == neighbour(origin, side)
        step, room = drill(rng, False)
        deed = parse(step)
        assert isinstance(deed, Deed) and deed.room == room == neighbour(
            deed.origin, deed.direction
        )
