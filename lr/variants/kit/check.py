"""`lr check`: does a variant keep to what the package relies on?

Three questions, in this order. Does every part keep its contract, asked alone
(`steps.py`, `tokens.py`)? Is an answer the same alone, beside others and once more? And
which parts did nothing in these answers? `make` makes the variant anew each time, best
from its file, so that a part can hide nothing in a global.

A check never stops at the first fault: `Findings` collects what holds and what does
not. An exception of the variant's own code is raised as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.result import Result
from lr.spec.checks import VariantError
from lr.spec.variant import Part, Variant
from lr.trace import Stats
from lr.types import Finish
from lr.variants.kit import steps, tokens
from lr.variants.kit.findings import Findings

CHECK_QUESTIONS = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?",
    "At first Cleo has 12 coins. Then Dan gets 5 fewer coins than Cleo. How many coins does Dan have?",
    "At first Ben has 4 coins. Then Ann gets 2 times as many coins as Ben. How many coins does Ann have?",
)
"""Questions for the tiny models."""

CHECKS: dict[str, Callable[[Findings, Callable[[], Any]], None]] = {
    "verifier": steps.check_verifier,
    "controller": steps.check_controller,
    "segmenter": steps.check_segmenter,
    "step_source": steps.check_step_source,
    "drafter": tokens.check_drafter,
    "rule": tokens.check_rule,
}


def check_parts(make: Callable[[], Variant]) -> Iterator[Findings]:
    """Ask every part of the variant for its contract, alone."""
    for part in make().replaced:
        findings = Findings(part.field)
        try:
            CHECKS[part.field](findings, partial(part_anew, make, part))
        except (VariantError, SettingError) as error:
            findings.must(False, "every value is of the kind that is expected", error)
        yield findings


def part_anew(make: Callable[[], Variant], part: Part) -> Any:
    """The part of a new variant: its object, or what makes it."""
    variant = make()
    if part.made:
        return partial(variant.make, part.field)
    return getattr(variant, part.field)


def check_answers(
    make: Callable[[], Variant],
    reasoner: Reasoner,
    questions: Sequence[str] = CHECK_QUESTIONS,
    **options: Any,
) -> tuple[Findings, list[Result]]:
    """Whole answers: alone, beside others, and generated again.

    `reasoner` must be in float64, where a batch does not change the rounding of its
    rows."""
    assert reasoner.engine.target_model.dtype is torch.float64
    findings = Findings("answers")
    options = {"seed": 1, "max_tokens": 100, **options}
    variant = make()
    # 1. All questions in one batch, with one variant.
    together = [reasoner.run(q, variant=variant, **options) for q in questions]
    for _ in reasoner.engine.serve(together, len(together)):
        pass
    results = []
    for run in together:
        # 2. Each one alone, twice, with variants of their own.
        ask = partial(reasoner.generate, run.question.text, **options)
        alone = ask(variant=make())
        again = ask(variant=make())
        results.append(again)
        findings.equal(
            [step.text for step in alone.steps],
            [step.text for step in run.steps],
            "an answer has the same steps alone and beside others",
        )
        findings.equal(
            alone.tokens,
            again.tokens,
            "generated again, an answer has the same tokens",
        )
    return findings, results


def idle_parts(variant: Variant, results: Sequence[Result]) -> list[str]:
    """One line for every part that did nothing in these answers, if they show it."""
    steps = [step for result in results for step in result.steps]
    # a segmenter that finds no end leaves steps that are cut
    cut = sum(step.finish is Finish.LENGTH for step in steps)
    stats = sum((result.stats for result in results), Stats())
    kept = f"{stats.accepted} of {stats.judged} draft steps accepted"
    rounds = stats.rounds
    tokens = f"{rounds.accepted} of {rounds.drafted} proposed tokens kept"

    cuts = f"{cut} of {len(steps)} steps were cut"
    idle = {
        "verifier": kept if stats.accepted in (0, stats.judged) else None,
        "segmenter": cuts if 2 * cut > len(steps) else None,
        "step_source": None if stats.accepted else kept,
        "drafter": None if rounds.accepted else tokens,
        "rule": None if rounds.accepted else tokens,
    }
    return [
        f"{part.field}: {idle[part.field]}"
        for part in variant.replaced
        if idle.get(part.field)
    ]
