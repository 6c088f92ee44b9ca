"""Every variant that ships does something visible on the tiny family, in both drivers,
and its own rule can be seen in its verdicts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lr.reasoner import Reasoner
from lr.result import Result
from lr.spec.protocol import Target
from lr.spec.variant import StepStats
from lr.spec.verifiers.base import ExactVerifier
from lr.tiny.language import Split, problem
from lr.trace import Emit, Noted, TokenRound
from lr.types import Origin, Role
from lr.variants import loading
from lr.variants.adaptive import Halving
from lr.variants.kit import check_answers, check_variant
from lr.variants.kit.check import QUESTIONS
from lr.variants.loading import SHIPPED, load_variant

Answer = Callable[[str], Result]
HOW: dict[str, Any] = {"max_tokens": 60, "seed": 1}
VISIBLE = [name for name in SHIPPED if name not in ("lossless", "traversal")]
"""Lossless keeps next to nothing, by nature; traversal works on tokens."""


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Reasoner]:
    """With the judge, which the variants that score then need not load."""
    with Reasoner(verifier="judge") as made:
        yield made


@pytest.fixture(scope="module")
def precise() -> Iterator[Reasoner]:
    """In float64: there company does not change a rounding. The target is small: what
    it says is held against what it says, however good it is.
    """
    with Reasoner(verifier="judge", dtype=torch.float64) as made:
        yield made


@pytest.fixture(scope="module")
def question() -> str:
    return problem(Split.TEST, 0, 0).question


@pytest.fixture(scope="module")
def answer(reasoner: Reasoner, question: str) -> Answer:
    """The answer with a variant, by its name; plain decoding's for ""."""

    def write(name: str) -> Result:
        if not name:
            return reasoner.generate(question, mode="ar", **HOW)
        return reasoner.generate(question, variant=load_variant(name, reasoner), **HOW)

    return cache(write)


@pytest.mark.parametrize("name", SHIPPED)
def test_it_answers_and_the_drivers_agree(
    reasoner: Reasoner, question: str, answer: Answer, name: str
) -> None:
    variant, here = load_variant(name, reasoner), answer(name)
    there = reasoner.generate(question, variant=variant, driver="overlapped", **HOW)
    assert variant.name == name and here.tokens == there.tokens
    assert here.stats.judged > 0 or here.stats.rounds.drafted > 0
    if name in VISIBLE:
        assert here.stats.accepted > 0


def test_best_of_takes_the_likeliest(answer: Answer) -> None:
    events = answer("best_of").trace.events
    kept = [e for _, e in events if isinstance(e, Emit) and e.verdicts[-1:]]
    chosen = [e for e in kept if e.emitted.origin is Origin.ACCEPTED]
    assert chosen and all(len(e.verdicts) == 3 for e in chosen)
    for emit in chosen:
        scores = [v.score for v in emit.verdicts if v.aligned and v.score is not None]
        assert emit.verdicts[-1].score == max(scores)


def test_the_threshold_of_rsd_and_specreason_is_the_judges(answer: Answer) -> None:
    for name in ("rsd(threshold=0.7)", "specreason(threshold=0.7)"):
        steps = answer(name).steps
        judged = [
            s for s in steps if s.verdict is not None and s.verdict.score is not None
        ]
        assert judged
        for step in judged:
            assert step.verdict is not None and step.verdict.score is not None
            assert (step.origin is Origin.ACCEPTED) == (step.verdict.score >= 0.7)


def test_speculative_thinking_hands_over_at_a_cue(answer: Answer) -> None:
    """The cues are the first words of the draft's own steps, since the tiny languages
    reflect on nothing: then the target writes all that it hands over, and begins as the
    draft began.
    """
    cue = answer("speculative_thinking").steps[-1].text.strip().split()[0]
    result = answer(f"speculative_thinking(cues=({cue!r},))")
    handed = [s for s in result.steps if s.origin is Origin.CORRECTION]
    assert handed and all(
        s.text.strip().casefold().startswith(cue.casefold()) for s in handed
    )
    kept = [s for s in result.steps if s.origin is Origin.ACCEPTED]
    assert not [s for s in kept if s.text.strip().casefold().startswith(cue.casefold())]


def test_the_cascade_asks_the_judge_only_in_doubt(
    reasoner: Reasoner, question: str, answer: Answer
) -> None:
    sure = load_variant("confidence_cascade(high=-99.0)", reasoner)
    result = reasoner.generate(
        question, variant=sure, **HOW | {"max_tokens": 160}
    )  # the whole
    assert {step.origin for step in result.steps} <= {
        Origin.ACCEPTED,
        Origin.TARGET,
        Origin.BONUS,
    }
    result = answer("confidence_cascade(high=0.0)")
    said = [s.verdict.why for s in result.steps if s.verdict is not None]
    assert said and not [why for why in said if "is sure" in why]


def test_three_levels_proposes_what_stood_before(reasoner: Reasoner) -> None:
    proposer = load_variant("three_levels(n=2, threshold=-99.0)", reasoner).proposer
    assert proposer is not None
    step = reasoner.codec.encode("Ann has 7 coins.\n\n")
    tokens = [*step, *step, *step]
    assert proposer.propose(tokens, 1) == [step]
    assert proposer.propose(step[:2], 1) == [None]
    strict = load_variant("three_levels(n=2, threshold=0.0)", reasoner).proposer
    assert strict is not None and strict.propose(tokens, 1) == [None]


def test_gsi_draws_by_the_tilted_reward(answer: Answer) -> None:
    for threshold, kept in ((-99.0, True), (99.0, False)):
        assert (answer(f"gsi(threshold={threshold})").stats.accepted > 0) == kept


def test_adaptive_looks_less_far_after_a_rejection_and_changes_no_step(
    reasoner: Reasoner, question: str, answer: Answer
) -> None:
    """The exact verifier keeps what plain decoding writes, however far the draft looks
    ahead."""
    how = HOW | {"mode": "lr", "coupling": "shared"}
    drafted = {}
    for name in ("adaptive(floor=-99.0)", "adaptive(floor=0.0)"):
        variant = replace(load_variant(name, reasoner), verifier=ExactVerifier())
        run = reasoner.run(question, variant=variant, detailed=True, **how)
        result = run.finish()
        assert result.tokens == answer("").tokens
        drafted[name] = result.stats.drafted
        kept = [
            e.emitted.origin is Origin.ACCEPTED
            for _, e in run.trace.events
            if type(e) is Emit
        ]
        noted = [e for _, e in run.trace.events if isinstance(e, Noted)]
        depths = [int(e.fields["depth"]) for e in noted if e.name == "controller"]
        assert len(depths) == len(kept)
        for before, now, grew in zip([2, *depths], depths, kept, strict=False):
            assert now == (min(8, before + 1) if grew else max(1, before // 2))
    assert drafted["adaptive(floor=0.0)"] < drafted["adaptive(floor=-99.0)"]


def test_adaptive_is_as_wide_as_the_draft_hesitates(
    reasoner: Reasoner, question: str
) -> None:
    how = HOW | {"mode": "lr", "coupling": "shared", "temperature": 1.0}
    plain = reasoner.generate(question, **how | {"mode": "ar"})
    variant = load_variant("adaptive(floor=-99.0, most=4, width=3)", reasoner)
    variant = replace(variant, verifier=ExactVerifier())
    run = reasoner.run(question, variant=variant, detailed=True, **how)
    assert run.finish().tokens == plain.tokens and run.options.width == 3
    noted = [
        e
        for _, e in run.trace.events
        if isinstance(e, Noted) and e.name == "controller"
    ]
    widths = [note.fields["width"] for note in noted]
    assert any(widths) and all(one is None or one >= 1 for one in widths)
    assert Halving(wide=True).width(StepStats(draft_entropy=math.log(2.6))) == 3


@pytest.mark.usefixtures("whole_targets")
def test_adaptive_drafts_as_many_tokens_as_stay(question: str) -> None:
    reasoner = Reasoner(verifier="oracle")
    how: dict[str, Any] = {
        **HOW,
        "mode": "lr+sd",
        "acceptance": "match",
        "coupling": "shared",
    }
    variant = load_variant("adaptive(floor=-99.0)", reasoner)
    usual = reasoner.generate(question, **how, num_speculative_tokens=12)
    run = reasoner.run(
        question, variant=variant, detailed=True, **how, num_speculative_tokens=12
    )
    assert run.finish().tokens == usual.tokens
    most: int | None = None
    allowed: dict[int, int | None] = {}  # by the number of a step: k when a step began
    seen = set()
    for _, event in run.trace.events:
        if isinstance(event, Noted) and event.name == "controller":
            most = event.fields["tokens"]
        elif isinstance(event, Target):
            allowed[event.node.index] = most
        elif isinstance(event, TokenRound) and event.role is Role.TARGET:
            k = allowed[event.index]
            assert k is None or event.depth <= k
            seen.add(k)
    assert len(seen) > 2


def test_each_is_one_short_file_that_says_what_is_faithful() -> None:
    """Besides the variants the folder holds what several of them use, the way to them
    by name, and the simulated clock.
    """
    folder = Path(loading.__file__).parent
    others = {"__init__", "loading", "clock"}
    files = {path.stem: path.read_text("utf-8") for path in folder.glob("*.py")}
    assert set(files) == {*SHIPPED, "choosers", "scorers", *others}
    for name, text in files.items():
        if name not in others:
            assert text.count("\n") < 80, name
        if name in SHIPPED:
            said = text.split('"""')[1]
            assert re.search("faithful|ours", said, re.IGNORECASE), name
            assert f"lr generate --variant {name}" in said.replace('"', ""), name


@pytest.mark.parametrize("name", ["rsd", "rsd(weight='clip')", "gsi"])
def test_the_passes_of_the_judge_are_counted(answer: Answer, name: str) -> None:
    assert answer(name).stats.verifier_passes > 0


@pytest.mark.parametrize("name", SHIPPED)
def test_its_parts_keep_their_contracts(reasoner: Reasoner, name: str) -> None:
    found = check_variant(lambda: load_variant(name, reasoner))
    assert found and all(one.passed for one in found)


@pytest.mark.parametrize("name", SHIPPED)
def test_its_answers_do_not_depend_on_others(precise: Reasoner, name: str) -> None:
    found = check_answers(
        lambda: load_variant(name, precise), precise, QUESTIONS[:2], max_tokens=40
    )
    assert found.passed
