"""The tiny judge: its pairs, its rows, its measurement, and the trained checkpoint
against the oracle on held-out runs.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from tiny_training.judge import RUNNING_WEIGHT, JudgeRows, as_pair
from tiny_training.pairs import (
    TextPair,
    agreeing_prefix,
    change,
    grammar_pair,
    kind_of_difference,
)
from tiny_training.trainer import Recipe, Trainer, fresh_model

from lr.model.codec import Codec
from lr.spec.verifiers.judge import JudgeVerifier, asked_model
from lr.tiny.grammar import Style, render, unglue
from lr.tiny.language import Meaning, Split, problem
from lr.tiny.names import tiny_config
from lr.tiny.oracle import parse, same_meaning
from lr.tiny.vocabulary import build_tokenizer

TOKENIZER = build_tokenizer()
PAIRS = [grammar_pair(i, seed=3) for i in range(600)]


# ---- pairs


def test_pairs_are_labelled_by_the_oracle_and_balanced() -> None:
    for i, pair in enumerate(PAIRS):
        assert pair.same == same_meaning(pair.first, pair.second) == (i % 2 == 0)
        assert pair.first != pair.second
    assert PAIRS[:5] == [grammar_pair(i, seed=3) for i in range(5)]
    assert PAIRS[:5] != [grammar_pair(i, seed=4) for i in range(5)]


def test_everything_that_can_differ_does() -> None:
    kinds = Counter(kind_of_difference(pair) for pair in PAIRS if not pair.same)
    assert set(kinds) == {
        "several",
        "unreadable",
        "operation",
        "entity",
        "references",
        "operands",
        "result",
        "item",
        "note",
    }
    assert min(kinds.values()) >= 3
    assert {kind_of_difference(pair) for pair in PAIRS if pair.same} == {""}


def test_some_equal_pairs_share_a_mistake() -> None:
    """7 + 3 = 11 in both steps is the same meaning: the judge compares and does not
    calculate."""
    steps = [parse(pair.first) for pair in PAIRS if pair.same]
    sums = [
        step
        for step in steps
        if step is not None
        and step.operation in ("add", "sum", "total")
        and step.operands
    ]
    wrong = [step for step in sums if sum(step.operands) != step.result]
    assert 0.02 < len(wrong) / len(sums) < 0.3


def test_train_and_test_pairs_come_from_different_problems() -> None:
    train, test = (
        {(p.first, p.second) for p in some} for some in (PAIRS, map_pairs(Split.TEST))
    )
    assert not {pair for pair in train & test if "Then" in pair[0]}


def map_pairs(split: Split) -> list[TextPair]:
    return [grammar_pair(i, 3, split) for i in range(100)]


def test_a_change_changes_the_meaning_and_stays_in_the_language() -> None:
    rng = random.Random(0)
    for i in range(40):
        for step in problem(Split.TRAIN, i).steps:
            changed = change(step, rng)
            assert changed != step and changed.kind is step.kind
            assert parse(render(changed, Style.DRAFT, rng)) == changed


# ---- rows


def test_a_row_is_what_the_verifier_asks_and_the_answer() -> None:
    codec = Codec(TOKENIZER, name="tiny")
    model = fresh_model(tiny_config(1, len(TOKENIZER)), seed=0)
    verifier = JudgeVerifier(asked_model(model, codec, 100), codec.decode)
    rows = JudgeRows(TOKENIZER, seed=0)
    for pair in PAIRS[:40]:
        ids, weights, labels = rows.pair_row(pair)
        assert ids[:-1] == verifier.row(pair.first, pair.second)
        assert ids[-1] == labels[-1] == verifier.answers.tokens[0 if pair.same else 1]
        assert weights[-1] == 1.0 and max(weights[:-1]) <= RUNNING_WEIGHT


def test_running_answers_change_where_the_steps_part() -> None:
    pair = TextPair("Initially Ann has 17 coins.", "First Ann has 12 coins now.", False)
    rows = JudgeRows(TOKENIZER, seed=0)
    row = rows.pair_row(pair)
    said = [
        (TOKENIZER.decode([token]), label == rows.aligned)
        for token, label, weight in zip(
            row.ids, row.labels[1:], row.weights[1:], strict=False
        )
        if weight
    ]
    assert said == [
        *[("First", True), (" Ann", True), (" has", True), (" 1", True), ("2", False)],
        *[(" coins", False), (" now", False), (".", False), ("[", False)],
    ]


@pytest.mark.parametrize(
    ("text", "agrees"),
    [
        ("Initially Ann has 7 coins.", "Initially Ann has 7 coins ."),
        ("First Ann has 7 coins altogether.", "First Ann has 7 coins altogether ."),
        ("First Ann has 17 coins.", "First Ann has "),
        ("First Ann has 72 coins.", "First Ann has 7"),
        ("First Ben has 7 coins.", "First "),
        ("First Ann has 7 cards.", "First Ann has 7 c"),
        ("First Ann has 7", "First Ann has 7"),
        ("Then Ann has 3 more", "The"),
        ("I know that Ann has 7 coins. So", "I know that Ann has 7 coins . "),
        ("", ""),
    ],
)
def test_how_far_a_text_agrees_with_a_meaning(text: str, agrees: str) -> None:
    meaning = parse("Initially Ann has 7 coins.")
    assert meaning is not None
    assert unglue(text)[: agreeing_prefix(meaning, text)] == agrees


def test_equal_pairs_agree_to_the_end_and_different_ones_part() -> None:
    for pair in PAIRS:
        meaning, other = parse(pair.first), parse(pair.second)
        if meaning is not None and other is not None:
            whole = agreeing_prefix(meaning, pair.second) == len(unglue(pair.second))
            assert whole == pair.same


def test_batches_are_balanced_and_go_on_where_they_stopped() -> None:
    rows = JudgeRows(TOKENIZER, 0, PAIRS[:50], 0.5)
    batches = list(islice(rows.batches((0, 0), 2, 2000, 0.0), 30))
    answers = torch.cat([batch.tokens[batch.weights == 1] for batch in batches])
    assert set(answers.tolist()) == {rows.aligned, rows.unaligned}
    assert abs((answers == rows.aligned).float().mean() - 0.5) < 0.05
    again = list(islice(rows.batches(batches[9].place, 2, 2000, 0.0), 5))
    for a, b in zip(batches[10:15], again, strict=True):
        assert (
            torch.equal(a.tokens, b.tokens)
            and torch.equal(a.labels, b.labels)
            and a.place == b.place
        )


def test_an_interrupted_training_ends_in_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiny_training.judge.POOL_PAIRS", 64)

    def trainer() -> Trainer:
        model = fresh_model(tiny_config(1, len(TOKENIZER)), seed=0)
        return Trainer(
            model,
            JudgeRows(TOKENIZER, 0, PAIRS),
            Recipe(tokens=5000, batch=600, warmup=5, drills=0.0),
        )

    straight, first, second = trainer(), trainer(), trainer()
    losses = [straight.step()[0] for _ in range(3)]
    assert losses[0] == first.step()[0]
    first.save(tmp_path / "state.pt")
    second.load(tmp_path / "state.pt")
    assert [second.step()[0] for _ in range(2)] == losses[1:]
    for a, b in zip(
        straight.model.parameters(), second.model.parameters(), strict=True
    ):
        assert torch.equal(a, b)


def test_the_first_text_is_the_targets() -> None:
    codec = Codec(TOKENIZER, name="tiny")
    pair = as_pair(
        TextPair("Initially Ann has 7 coins.", "First Ann has 7 coins.", True),
        codec.encode,
    )
    assert codec.decode(pair.target_step.tokens) == "Initially Ann has 7 coins.\n\n"


def test_meanings_are_compared_field_by_field() -> None:
    assert "references" in Meaning._fields
    assert (
        kind_of_difference(
            TextPair("Initially Ann has 7 coins.", "Initially Ann has 8 coins.", False)
        )
        == "result"
    )
    assert (
        kind_of_difference(
            TextPair("Initially Ann has 7 coins.", "Initially Ben has 8 coins.", False)
        )
        == "several"
    )
    assert (
        kind_of_difference(
            TextPair("Initially Ann has 7 coins.", "Initially Ann 8 coins.", False)
        )
        == "unreadable"
    )
