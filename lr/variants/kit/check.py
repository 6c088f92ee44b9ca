"""`lr check`: does a variant keep to what the package relies on?

Three questions, in this order. Does every part keep its contract, asked alone
(`steps.py`, `tokens.py`)? Is an answer the same alone, beside others and once more? And
which parts did nothing in these answers? `make` makes the variant anew each time, best
from its file, so that a part can hide nothing in a global.

A check never stops at the first fault: `Findings` collects what holds and what does
not. An exception of the variant's own code is raised as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.result import Result
from lr.spec.checks import VariantError
from lr.spec.protocol import Emit
from lr.spec.variant import Variant
from lr.trace import Noted, StepWritten, TokenRound
from lr.types import Finish, Origin, require
from lr.variants.kit import steps, tokens
from lr.variants.kit.findings import Findings, Make, Material

QUESTIONS = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?",
    "At first Cleo has 12 coins. Then Cleo gives 5 coins to Dan. How many coins does Cleo have?",
    "At first Ben has 4 coins. Then Ann gets twice as many coins as Ben. How many has Ann?",
)
"""Questions for the tiny models."""


def check_answers(
    make: Make,
    reasoner: Reasoner,
    questions: Sequence[str] = QUESTIONS,
    **options: Any,
) -> tuple[Findings, list[Result]]:
    """Whole answers: alone, beside others, and generated again.

    `reasoner` must be in float64, where a batch does not change the rounding of its
    rows."""
    dtype = reasoner.engine.target.dtype
    require(dtype is torch.float64, "dtype of the reasoner", dtype, "torch.float64")
    findings = Findings("answers")
    options = {"seed": 1, "max_tokens": 100, **options}
    variant = make()
    together = [reasoner.run(q, variant=variant, **options) for q in questions]
    for _ in reasoner.engine.serve(together, len(together)):
        pass
    results = []
    for run in together:
        alone = reasoner.generate(run.question, variant=make(), **options)
        again = reasoner.generate(
            run.question, variant=make(), detailed=True, **options
        )
        results.append(again)
        texts = [[step.text for step in one.steps] for one in (alone, run)]
        statement = "an answer has the same steps alone and beside others"
        findings.must(texts[0] == texts[1], statement, f"{texts[0]} and {texts[1]}")
        statement = "generated again, an answer has the same tokens"
        same = alone.tokens == again.tokens
        findings.must(same, statement, f"{alone.text!r} and {again.text!r}")
    return findings, results


def idle_parts(variant: Variant, results: Sequence[Result]) -> list[str]:
    """One line for every part that did nothing in these (detailed) answers."""
    events = [event for result in results for _, event in result.trace.events]
    emits = [event for event in events if isinstance(event, Emit)]
    verdicts = [verdict.aligned for emit in emits for verdict in emit.verdicts]
    accepted = sum(emit.emitted.origin is Origin.ACCEPTED for emit in emits)
    written = [event for event in events if isinstance(event, StepWritten)]
    cut = sum(event.step.finish is Finish.LENGTH for event in written)
    rounds = [event for event in events if isinstance(event, TokenRound)]
    kept_tokens = sum(event.accepted for event in rounds)
    tokens = f"{kept_tokens} of {sum(event.proposed for event in rounds)} proposed tokens kept"

    def notes(name: str) -> list[dict[str, Any]]:
        return [e.fields for e in events if isinstance(e, Noted) and e.name == name]

    depths = {fields["depth"] for fields in notes("controller")}
    lengths = [length for fields in notes("step_source") for length in fields["tokens"]]
    own = sum(length is not None for length in lengths)
    idle = {
        "verifier": (
            len(set(verdicts)) < 2,
            f"{verdicts.count(True)} of {len(verdicts)} draft steps accepted",
        ),
        "controller": (len(depths) < 2, f"the depth was always {depths}"),
        "corrector": (not notes("corrector"), "kept every first step of the target"),
        "segmenter": (
            2 * cut > len(written),
            f"{cut} of {len(written)} steps were cut",
        ),
        "step_source": (
            own == 0 or accepted == 0,
            f"{own} of {len(lengths)} draft steps are its own, {accepted} accepted",
        ),
        "drafter": (kept_tokens == 0, tokens),
        "rule": (kept_tokens == 0, tokens),
        "draft": (accepted + kept_tokens == 0, f"0 draft steps accepted, {tokens}"),
    }
    return [
        f"{part.field}: {idle[part.field][1]}"
        for part in variant.replaced
        if idle[part.field][0]
    ]


CHECKS: dict[str, Callable[[Findings, Make, Material], None]] = {
    "verifier": steps.check_verifier,
    "controller": steps.check_controller,
    "corrector": steps.check_corrector,
    "segmenter": steps.check_segmenter,
    "step_source": steps.check_step_source,
    "drafter": tokens.check_drafter,
    "rule": tokens.check_rule,
}
"""By part; a draft is a model, which has no contract."""


def check_parts(make: Make, material: Material | None = None) -> list[Findings]:
    """Ask every part of the variant for its contract, alone."""
    found = []
    for part in make().replaced:
        if part.field not in CHECKS:
            continue
        findings = Findings(part.field)
        try:
            CHECKS[part.field](findings, make, material or Material())
        except (VariantError, SettingError) as error:
            findings.must(False, "every value is of the kind that is expected", error)
        found.append(findings)
    return found
