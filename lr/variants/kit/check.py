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
from lr.spec.verifiers.base import Verifier
from lr.trace import Noted, StepWritten, TokenRound
from lr.types import Finish, Origin, Role, require
from lr.variants.kit import steps, tokens
from lr.variants.kit.findings import Findings, Make, World

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
    emitted = [event for event in events if isinstance(event, Emit)]
    answer = [event.emitted for event in emitted]
    written = [event for event in events if isinstance(event, StepWritten)]
    notes = {name: [e.fields for e in events if isinstance(e, Noted) and e.name == name]
             for name in ("controller", "corrector", "step_source")}  # fmt: skip
    lines = {}
    if variant.verifier is not None:
        verdicts = [verdict.aligned for event in emitted for verdict in event.verdicts]
        if len(set(verdicts)) < 2:
            kept = verdicts.count(True)
            lines["verifier"] = f"{kept} of {len(verdicts)} draft steps accepted"
        overtaken = any(len(e.verdicts) > 1 and e.verdicts[-1].aligned for e in emitted)
        if type(variant.verifier).choose is not Verifier.choose and not overtaken:
            lines["choose"] = "never waited for a second alternative and took one"
    if variant.controller is not None:
        depths = {fields["depth"] for fields in notes["controller"]}
        if len(depths) < 2:
            lines["controller"] = f"the depth was always {depths or 'the run’s'}"
    if variant.corrector is not None and not notes["corrector"]:
        corrections = sum(step.origin is Origin.CORRECTION for step in answer)
        lines["corrector"] = (
            f"kept the first target step at all {corrections} corrections"
        )
    if variant.segmenter is not None:
        cut = sum(event.step.finish is Finish.LENGTH for event in written)
        if cut * 2 > len(written):
            lines["segmenter"] = f"{cut} of {len(written)} steps were cut, not ended"
    if variant.step_source is not None:
        lengths = [n for fields in notes["step_source"] for n in fields["tokens"]]
        proposed = sum(length is not None for length in lengths)
        accepted = sum(step.origin is Origin.ACCEPTED for step in answer)
        if not proposed or not accepted:
            lines["step_source"] = (
                f"{proposed} of {len(lengths)} draft steps are its own, {accepted} accepted"
            )
    rounds = [event for event in events if isinstance(event, TokenRound)]
    proposed = sum(event.proposed for event in rounds)
    kept = sum(event.accepted for event in rounds)
    for name in ("drafter", "rule"):
        if getattr(variant, name) is not None and not kept:
            lines[name] = f"0 of {proposed} proposed tokens kept"
    if variant.draft is not None and not kept:
        drafted = sum(event.role is Role.DRAFT for event in written)
        accepted = sum(step.origin is Origin.ACCEPTED for step in answer)
        if not accepted:
            lines["draft"] = f"0 of {drafted} draft steps and {proposed} tokens kept"
    return [f"{name}: {line}" for name, line in lines.items()]


def check_parts(make: Make, world: World | None = None) -> list[Findings]:
    """Ask every part of the variant for its contract, alone."""
    world = world or World()
    checks: dict[str, Callable[[Findings, Make, World], None]] = {
        "verifier": steps.check_verifier,
        "controller": steps.check_controller,
        "corrector": steps.check_corrector,
        "segmenter": steps.check_segmenter,
        "step_source": steps.check_step_source,
        "drafter": tokens.check_drafter,
        "rule": tokens.check_rule,
    }
    found = []
    for part in make().replaced:
        if part.field not in checks:
            continue
        findings = Findings(part.field)
        try:
            checks[part.field](findings, make, world)
        except (VariantError, SettingError) as error:
            findings.must(False, "every value is of the kind that is expected", error)
        found.append(findings)
    return found
