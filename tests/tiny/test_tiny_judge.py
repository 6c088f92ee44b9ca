"""The tiny judge's training data: its pairs and its rows."""

import random

from tiny_training.checkpoint import tiny_config
from tiny_training.judge import RUNNING_WEIGHT, JudgeRows
from tiny_training.pairs import change, grammar_pair
from tiny_training.trainer import fresh_model
from tiny_training.vocabulary import build_tokenizer
from tiny_training.wording import Style, render

from lr.engine.verifiers import asked_model
from lr.model.codec import Codec
from lr.spec.verifiers.judge import BARE_PROMPT, JudgeVerifier
from lr.tiny.language import Split, problem
from lr.tiny.oracle import parse, same_meaning

TOKENIZER = build_tokenizer()
PAIRS = [grammar_pair(i, seed=3) for i in range(600)]


def test_pairs_are_labelled_by_the_oracle_and_balanced():
    for i, pair in enumerate(PAIRS):
        assert pair.same == same_meaning(pair.first, pair.second) == (i % 2 == 0)
        assert pair.first != pair.second
    assert PAIRS[:5] == [grammar_pair(i, seed=3) for i in range(5)]
    assert PAIRS[:5] != [grammar_pair(i, seed=4) for i in range(5)]


def test_a_change_changes_the_meaning_and_stays_in_the_language():
    rng = random.Random(0)
    for i in range(40):
        for step in problem(Split.TRAIN, i).steps:
            changed = change(step, rng)
            assert changed != step and changed.kind is step.kind
            assert parse(render(changed, Style.DRAFT, rng)) == changed


def test_a_row_is_what_the_verifier_asks_and_the_answer():
    codec = Codec(TOKENIZER, name="tiny")
    model = fresh_model(tiny_config(1, len(TOKENIZER)), seed=0)
    verifier = JudgeVerifier(
        asked_model(model, codec, 100), codec.decode, prompt=BARE_PROMPT
    )
    rows = JudgeRows(TOKENIZER, seed=0)
    for pair in PAIRS[:40]:
        ids, weights, labels = rows.pair_row(pair)
        assert ids[:-1] == verifier.row(pair.first, pair.second)
        assert ids[-1] == labels[-1] == verifier.answers.tokens[0 if pair.same else 1]
        assert weights[-1] == 1.0 and max(weights[:-1]) <= RUNNING_WEIGHT
