"""Real checkpoints answer as transformers computes, and in every mode. Needs a directory
with Qwen2.5 checkpoints whose names end in 1.5b-instruct and 0.5b-instruct:

    LR_REAL=DIRECTORY pytest -m real
"""

import os
from pathlib import Path

import pytest
import torch
from model_kit import our_logits
from transformers import AutoModelForCausalLM

import lr
from lr.model.codec import Codec
from lr.model.weights import load_model

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "LR_REAL" not in os.environ, reason="LR_REAL names no directory"
    ),
    pytest.mark.timeout(1200),
]
EGGS = (
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and "
    "bakes muffins for her friends every day with four. She sells the remainder at the "
    "farmers' market daily for $2 per fresh duck egg. How much in dollars does she make "
    "every day at the farmers' market?"
)


def checkpoint(pattern):
    """The checkpoint in LR_REAL whose name has this form."""
    (path,) = Path(os.environ["LR_REAL"]).glob(pattern)
    return path


@pytest.fixture(scope="module")
def target():
    return checkpoint("*1.5b-instruct")


@pytest.fixture(scope="module")
def draft():
    return checkpoint("*0.5b-instruct")


@pytest.fixture(scope="module")
def pair(target, draft):
    """The pair, with the draft in four bits and the target as its judge."""
    with lr.Reasoner(target, f"int4:{draft}", "judge", judge=target) as reasoner:
        yield reasoner


def test_logits_are_those_of_transformers(draft):
    prompt = torch.tensor(Codec.load(draft).chat(EGGS))
    reference = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.float64)
    with torch.no_grad():
        expected = reference(prompt[None]).logits[0]
    ours = our_logits(load_model(draft, dtype=torch.float64), prompt)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-8)


def test_exact_lookahead_is_plain_decoding(draft):
    """The small checkpoint, in fp64, drafts for itself in four bits."""
    options = lr.GenerateOptions(max_tokens=80, acceptance="match", temperature=0.7)
    own = f"int4:{draft}"
    with lr.Reasoner(draft, own, "exact", dtype=torch.float64) as reasoner:
        plain = reasoner.generate(EGGS, options, mode="ar")
        for drafter in ("ngram", "draft"):
            ahead = reasoner.generate(EGGS, options, mode="lr+sd", drafter=drafter)
            assert ahead.tokens == plain.tokens
    assert ahead.stats.step_acceptance
    assert ahead.stats.target_passes < plain.stats.target_passes


@pytest.mark.parametrize(
    "mode, drafter",
    [
        ("ar", "ngram"),
        ("sd", "ngram"),
        ("sd", "draft"),
        ("lr", "ngram"),
        ("lr+sd", "ngram"),
        ("lr+sd", "draft"),
    ],
)
def test_every_mode_answers_rightly(pair, mode, drafter):
    result = pair.generate(
        EGGS, mode=mode, drafter=drafter, temperature=0.0, max_tokens=300
    )
    assert "18" in result.text.split("\n\n")[-1]
    assert result.finished
