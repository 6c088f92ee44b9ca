"""The variants of the package keep their contracts, and each does what its page says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lr.reasoner import Reasoner
from lr.result import Result
from lr.spec.protocol import Emit
from lr.tiny.language import Split, problem
from lr.types import Origin
from lr.variants.kit.check import QUESTIONS, check_answers, check_parts
from lr.variants.kit.findings import Material
from lr.variants.loading import VARIANTS, load_variant
from lr.watch.player.page import setting_of
from lr.watch.trace.record import trace_of


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Reasoner]:
    with Reasoner(verifier="judge", dtype=torch.float64) as reasoner:
        yield reasoner


def answer(reasoner: Reasoner, name: str) -> Result:
    question = problem(Split.TEST, 0, 0).question
    variant = load_variant(name, reasoner)
    return reasoner.generate(question, variant=variant, max_tokens=60, seed=1)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_of_the_package_passes_lr_check(
    reasoner: Reasoner, name: str
) -> None:
    def make():  # type: ignore[no-untyped-def]
        return load_variant(name, reasoner)

    findings = list(check_parts(make, Material.of(reasoner)))
    answers, _ = check_answers(make, reasoner, QUESTIONS[:2], max_tokens=30)
    assert [found.broken for found in (*findings, answers) if found.broken] == []


def test_best_of_takes_the_likeliest(reasoner: Reasoner) -> None:
    emitted = [
        event
        for _, event in answer(reasoner, "best_of").trace.events
        if isinstance(event, Emit) and event.emitted.origin is Origin.ACCEPTED
    ]
    assert emitted and all(len(event.verdicts) == 3 for event in emitted)
    for event in emitted:
        scores = [v.score for v in event.verdicts if v.aligned and v.score is not None]
        assert event.verdicts[-1].score == max(scores)


@pytest.mark.parametrize("name", ["rsd(threshold=0.7)", "specreason(threshold=0.7)"])
def test_a_step_is_accepted_from_the_threshold_on(
    reasoner: Reasoner, name: str
) -> None:
    scored = [
        step
        for step in answer(reasoner, name).steps
        if step.verdict is not None and step.verdict.score is not None
    ]
    assert scored
    for step in scored:
        assert step.verdict is not None and step.verdict.score is not None
        assert (step.origin is Origin.ACCEPTED) == (step.verdict.score >= 0.7)


def test_adaptive_depth_changes_no_step(reasoner: Reasoner) -> None:
    question = problem(Split.TEST, 0, 0).question
    adaptive = answer(reasoner, "adaptive(most=4)")
    assert adaptive.text == reasoner.generate(question, max_tokens=60, seed=1).text


def test_a_trace_says_what_the_variant_replaced(reasoner: Reasoner) -> None:
    question = problem(Split.TEST, 0, 0).question
    variant = load_variant("token_recycling", reasoner)
    recycled = reasoner.run(question, variant=variant, max_tokens=20)
    recycled.finish()
    header = trace_of(recycled).header
    assert header.mode == "sd" and header.replaced == ["drafter"]
    assert header.verifier is None and "judge" not in header.models
    assert "by the variant" in setting_of(header)
