"""A draft whose context is shorter than the target's: where it ends, drafting ends, and
the answer goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reasoner_kit import write_checkpoint

from lr import page_engine
from lr.errors import ContextError, NumericalError
from lr.reasoner import Reasoner
from lr.trace import StepWritten
from lr.types import Origin, Role

QUESTION = "How many coins does Ann have?"
EXACT = {"temperature": 0.9, "top_k": 0, "acceptance": "match", "coupling": "shared"}
LIMITS = {"max_tokens": 150, "max_step_tokens": 9, "ignore_half_sentence": False}
FIXED = {"segmenter": "fixed", "segment_tokens": 6}
USES: list[dict[str, Any]] = [
    {"mode": "sd", "drafter": "draft"},
    {"mode": "sd", "drafter": "tree"},
    {"mode": "sd", "drafter": "ngram"},
    *({"mode": "lr", "schedule": name} for name in ("depth", "sync", "paper")),
    {"mode": "lr", "width": 2, "depth": 2},
    {"mode": "lr", "driver": "overlapped"},
    {"mode": "lr+sd", "drafter": "draft"},
    {"mode": "lr+sd", "drafter": "tree", "driver": "overlapped"},
    {"mode": "lr+sd", "drafter": "ngram"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows")


@pytest.fixture(scope="module", params=[64, 25, 16])
def reasoner(request: pytest.FixtureRequest, folder: Path) -> Reasoner:
    """Target and draft have the same weights. The prompt fits two of the windows."""
    window: int = request.param
    target = write_checkpoint(folder / f"target {window}", seed=1, context=4096)
    draft = write_checkpoint(folder / f"draft {window}", seed=1, context=window)
    return Reasoner(target, draft, "exact", dtype=torch.float64)


@pytest.mark.parametrize("use", USES, ids=lambda use: " ".join(map(str, use.values())))
def test_the_answer_goes_on_without_drafts(
    reasoner: Reasoner, use: dict[str, Any]
) -> None:
    options = {**EXACT, **LIMITS, **FIXED}
    plain = reasoner.generate(QUESTION, mode="ar", **options)
    answer = reasoner.run(QUESTION, **use, **options)
    result = answer.finish()
    assert result.tokens == plain.tokens
    assert len(result.tokens) == LIMITS["max_tokens"] or result.finished
    most = max(0, answer.question.limits.max_drafted)
    drafted = 0
    for _, event in result.trace.events:
        if isinstance(event, StepWritten) and event.role is Role.DRAFT:
            drafted += 1
    kept = sum(
        len(step.tokens) for step in result.steps if step.origin is Origin.ACCEPTED
    )
    if use["mode"] != "sd":
        assert kept <= most
        assert bool(drafted) == (most > 0)
        assert kept > 0 or most < 2 * FIXED["segment_tokens"]
    simple = use["mode"] != "sd" and use.get("driver") != "overlapped"
    if simple:  # the page gives the same steps
        page = page_engine.run(reasoner, QUESTION, **use, **options).finish()
        steps = [(step.tokens, step.origin) for step in page.steps]
        assert steps == [(step.tokens, step.origin) for step in result.steps]


def test_the_targets_context_is_the_one_that_is_named(reasoner: Reasoner) -> None:
    with pytest.raises(ContextError, match="target"):
        reasoner.generate(" coins" * 4096, mode="lr")


def test_logits_that_are_not_finite_name_the_model(folder: Path) -> None:
    for broken in range(2):
        paths = [
            write_checkpoint(folder / f"{name} of {broken}", seed=1)
            for name in ("target", "draft")
        ]
        reasoner = Reasoner(*paths, "exact")
        models = reasoner.engine.target, reasoner.engine.draft
        models[broken].norm.weight.fill_(torch.nan)  # type: ignore[union-attr]
        for options in ({"mode": "lr"}, {"mode": "sd", "drafter": "draft"}):
            with pytest.raises(NumericalError, match=paths[broken].name):
                reasoner.generate(QUESTION, **options)
