"""The grader of verifier.py: pairs that the answer has not seen."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from exercise_kit import Examples, Wrong, check, expect, outcome_of
from pairs_kit import LABELLED, LabelledPair, labelled

PRAISE = "No similarity can do that: it reads what is stated, and who is meant."
NEXT = "fit"
HELD_OUT = labelled(400, seed=2)
ENOUGH, MOST_ACCEPTED = 0.9, 0.05


def aligned(answer: ModuleType, draft: str, target: str) -> bool:
    """The answer's verdict on a pair."""
    verdict = answer.aligned(draft, target)
    says = f"aligned returned {verdict!r}: True or False is expected."
    expect(isinstance(verdict, bool), says)
    return bool(verdict)


def example(pair: LabelledPair) -> str:
    """A pair in print."""
    return f"“{pair.draft}” and “{pair.target}”"


@check("a step beside itself", "The very same words mean the same.")
def the_same_step(answer: ModuleType) -> None:
    for pair in LABELLED:
        says = f"aligned rejects a step beside itself: “{pair.draft}”."
        expect(aligned(answer, pair.draft, pair.draft), says)


@check(
    "400 pairs that you have not seen: what is accepted wrongly",
    "Compare names and numbers first. Then find a pair with the same names and numbers "
    "that means something else: who is giver, who is more?",
)
def accepts_little_that_is_wrong(answer: ModuleType) -> None:
    different = [pair for pair in HELD_OUT if not pair.same]
    wrong = [pair for pair in different if aligned(answer, pair.draft, pair.target)]
    allowed = MOST_ACCEPTED * len(different)
    if len(wrong) > allowed:
        raise Wrong(
            f"Of {len(different)} pairs that do not mean the same, aligned accepts "
            f"{len(wrong)}; at most {allowed:.0f} are allowed. One of them: "
            f"{example(wrong[0])}."
        )


@check(
    "400 pairs that you have not seen: how many are right",
    "Bring both steps into one form, for example (who, whom, numbers): “gets … from” "
    "turns “gives … to” round.",
)
def most_are_right(answer: ModuleType) -> None:
    missed = [
        pair
        for pair in HELD_OUT
        if aligned(answer, pair.draft, pair.target) != pair.same
    ]
    right = 1 - len(missed) / len(HELD_OUT)
    if right < ENOUGH:
        raise Wrong(
            f"aligned is right on {right:.0%} of the pairs, and {ENOUGH:.0%} is asked "
            f"for. One that it gets wrong: {example(missed[0])}."
        )


def examples(answer: ModuleType) -> Examples:
    """Its verdicts on pairs with the right answer beside them."""
    for number, pair in enumerate(HELD_OUT[:200]):
        yield str(number), outcome_of(partial(answer.aligned, pair.draft, pair.target))
