"""The grader of verifier.py: pairs that the answer has not seen, beside the package's
`EmbeddingVerifier` at its best threshold.
"""

from __future__ import annotations

from functools import cache, partial
from types import ModuleType

from exercise_kit import Examples, Wrong, check, expect, outcome_of
from pairs_kit import LABELLED, LabelledPair, bag_of_words, labelled

from lr.spec.verifiers.base import Pair
from lr.spec.verifiers.named import EmbeddingVerifier
from lr.types import Finish, Step

PRAISE = "Better than similarity at any threshold: it reads what is stated, and who is meant."
NEXT = None
HELD_OUT = labelled(400, seed=2)
ENOUGH, MOST_ACCEPTED = 0.9, 0.05


@cache
def best_embedding() -> tuple[float, float]:
    """The share of held-out pairs that `embedding` gets right, and its best
    threshold."""
    texts = [text for pair in HELD_OUT for text in (pair.draft, pair.target)]
    steps = [Step((number,), Finish.BOUNDARY) for number in range(len(texts))]
    verifier = EmbeddingVerifier(
        bag_of_words, lambda tokens: texts[tokens[0]], threshold=0
    )
    pairs = [Pair((), a, b) for a, b in zip(steps[::2], steps[1::2], strict=True)]
    scores = [verdict.score or 0.0 for verdict in verifier.judge(pairs)]
    labels = [pair.same for pair in HELD_OUT]

    def right(threshold: float) -> float:
        hits = [(score >= threshold) == label for score, label in zip(scores, labels)]
        return sum(hits) / len(hits)

    best = max(sorted({*scores, 2.0}), key=right)
    return right(best), best


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
def beats_the_embedding(answer: ModuleType) -> None:
    missed = [
        pair
        for pair in HELD_OUT
        if aligned(answer, pair.draft, pair.target) != pair.same
    ]
    right = 1 - len(missed) / len(HELD_OUT)
    embedding, threshold = best_embedding()
    if right < max(ENOUGH, embedding):
        raise Wrong(
            f"aligned is right on {right:.0%} of the pairs; embedding:{threshold:.2f} on "
            f"{embedding:.0%}, and {ENOUGH:.0%} is asked for. One that it gets wrong: "
            f"{example(missed[0])}."
        )


def examples(answer: ModuleType) -> Examples:
    """Its verdicts on pairs with the right answer beside them."""
    for number, pair in enumerate(HELD_OUT[:200]):
        yield str(number), outcome_of(partial(answer.aligned, pair.draft, pair.target))
