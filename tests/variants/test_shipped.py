"""The variants of the package keep their contracts, and each does what its page says."""

from functools import partial

import pytest
import torch

from lr.reasoner import Reasoner
from lr.spec.protocol import Emit
from lr.tiny.language import Split, problem
from lr.types import Origin
from lr.variants.kit.check import CHECK_QUESTIONS, check_answers, check_parts
from lr.variants.kit.findings import EOS, VOCAB_SIZE
from lr.variants.loading import VARIANTS, load_variant
from lr.watch.trace.file import trace_of
from lr.watch.words import setting_of


@pytest.fixture(scope="module")
def reasoner():
    with Reasoner(verifier="judge", dtype=torch.float64) as reasoner:
        yield reasoner


QUESTION = problem(Split.TEST, 0, 0).question


def answer(reasoner, name):
    variant = load_variant(name, reasoner)
    return reasoner.generate(QUESTION, variant=variant, max_tokens=60, seed=1)


def test_the_kit_asks_about_the_tokens_of_the_tiny_models(reasoner):
    codec = reasoner.codec
    assert codec.vocab_size == VOCAB_SIZE
    assert set(codec.eos_ids) == {EOS}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_of_the_package_passes_lr_check(reasoner, name):
    make = partial(load_variant, name, reasoner)
    parts = list(check_parts(make))
    answers, _ = check_answers(make, reasoner, CHECK_QUESTIONS[:2], max_tokens=30)
    assert [fault for findings in (*parts, answers) for fault in findings.broken] == []


def test_best_of_takes_the_likeliest(reasoner):
    events = [event for _, event in answer(reasoner, "best_of").trace.events]
    emits = [event for event in events if isinstance(event, Emit)]
    accepted = [e for e in emits if e.emitted.origin is Origin.ACCEPTED]
    assert accepted
    for emit in accepted:
        scores = [v.score or -99 for v in emit.verdicts if v.aligned]
        assert len(emit.verdicts) == 3 and emit.verdicts[-1].score == max(scores)


def test_a_step_is_accepted_from_the_threshold_on(reasoner):
    steps = answer(reasoner, "specreason(threshold=0.7)").steps
    scores = [(s.verdict.score, s.origin) for s in steps if s.verdict]
    scored = [(score, origin) for score, origin in scores if score is not None]
    assert scored
    for score, origin in scored:
        assert (origin is Origin.ACCEPTED) == (score >= 0.7)


def test_adaptive_depth_changes_no_step(reasoner):
    usual = reasoner.generate(QUESTION, max_tokens=60, seed=1)
    assert answer(reasoner, "adaptive(most=4)").text == usual.text


def test_a_trace_says_what_the_variant_replaced(reasoner):
    variant = load_variant("token_recycling", reasoner)
    run = reasoner.run(QUESTION, variant=variant, max_tokens=60)
    assert run.finish().stats.rounds.accepted > 0, "it learns from the target"
    header = trace_of(run).header
    assert header.mode == "sd" and header.replaced == ["drafter"]
    assert header.verifier is None and "judge" not in header.models
    assert "drafter of the variant" in setting_of(header)


def test_a_store_of_answers_is_quicker_for_the_same_question(reasoner):
    variant = load_variant("suffix_store", reasoner)
    options = {"max_tokens": 60, "seed": 1}
    plain = reasoner.generate(QUESTION, mode="ar", **options)
    answers = [
        reasoner.generate(QUESTION, variant=variant, **options) for _ in range(2)
    ]
    fresh = load_variant("suffix_store", reasoner)
    cold = reasoner.generate(QUESTION, variant=fresh, **options)
    assert [answer.tokens for answer in answers] == [plain.tokens] * 2
    passes = [answer.stats.target_passes for answer in (*answers, cold)]
    assert passes[1] < passes[0] / 3 and passes[2] == passes[0]
