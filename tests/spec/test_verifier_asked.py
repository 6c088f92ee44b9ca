"""What verifiers that ask a model share: reading an answer, keeping prefixes; and the
two that ask the target: score and likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verifier_kit import ADD, ADD_OTHERWISE, ADD_WRONG, GIVEN, Watched, codec, pair

from lr.errors import ContextError, OutOfBlocks, ProtocolError, SettingError
from lr.spec.sampling import step_logprobs
from lr.spec.verifiers.base import Pair, Requires
from lr.spec.verifiers.judge import AnswerTokens, PrefixCache, PromptRow
from lr.spec.verifiers.named import (
    SCORE_QUESTION,
    LikelihoodVerifier,
    ScoreReading,
    ScoreVerifier,
)
from lr.types import Finish, Step

TEXTS = [ADD, ADD_OTHERWISE, ADD_WRONG, GIVEN]


@pytest.mark.parametrize(
    ("answers", "parting"),
    [
        (([1, 2], [3, 2]), AnswerTokens((), (1, 3))),
        (([5, 1], [5, 2, 9]), AnswerTokens((5,), (1, 2))),
        (([5], [5, 2]), AnswerTokens((5,), (None, 2))),
        (([5, 1], [5, 2], [5, 3]), AnswerTokens((5,), (1, 2, 3))),
    ],
)
def test_where_answers_part(
    answers: Sequence[Sequence[int]], parting: AnswerTokens
) -> None:
    assert AnswerTokens.of(answers) == parting


@pytest.mark.parametrize(
    "answers", [([1], [1]), ([1, 2], [1, 2]), ([1, 2], [1, 3], [4]), ([], [])]
)
def test_answers_that_no_token_tells_apart(answers: Sequence[Sequence[int]]) -> None:
    with pytest.raises(SettingError, match="does not tell apart"):
        AnswerTokens.of(answers)


def test_reading_an_answer() -> None:
    rows = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.9, 0.0]]).log()
    [(shares, mass), (_, other)] = AnswerTokens((), (0, 1)).read(rows)
    assert shares == pytest.approx([5 / 7, 2 / 7])
    assert (mass, other) == pytest.approx((0.7, 1.0))
    for tokens, expected in (((None, 1), [0.8, 0.2]), ((2, None, 0), [0.3, 0.2, 0.5])):
        shares, mass = AnswerTokens((), tokens).read(rows)[0]
        assert shares == pytest.approx(expected) and mass == 1.0
    [(shares, mass)] = AnswerTokens((), (1, 2)).read(
        torch.tensor([[0.0, -800.0, -802.0]])
    )
    assert (
        shares[0] == pytest.approx(1 / (1 + torch.e**-2)) and mass == 0.0
    )  # exact, though both are next to nothing


def kept(watched: Watched, slots: int = 3) -> PrefixCache:
    return PrefixCache(watched.runner, slots)


@settings(max_examples=40, deadline=None)
@given(
    calls=st.lists(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 1), min_size=1, max_size=9),
                st.integers(1, 4),
                st.integers(0, 9),
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    ),
    slots=st.integers(1, 3),
    num_blocks=st.sampled_from([12, 200]),
)
def test_kept_prefixes_change_nothing_but_the_work(
    calls: list[list[tuple[list[int], int, int]]], slots: int, num_blocks: int
) -> None:
    """Rows over two tokens, so that much is shared: the logits are those of rows run
    alone, and never more than `slots` are kept.
    """
    watched, alone = Watched(num_blocks=num_blocks, block_size=2), Watched()
    prefixes = kept(watched, slots)
    for call in calls:
        rows = [
            PromptRow(tokens, min(wanted, len(tokens)), min(keep, len(tokens)))
            for tokens, wanted, keep in call
        ]
        logits = prefixes.logits(rows)
        for row, got in zip(rows, logits, strict=True):
            for back in range(row.wanted):
                expected = alone.last_logits(row.tokens[: len(row.tokens) - back])
                assert torch.allclose(got[row.wanted - 1 - back], expected, atol=1e-9)
        assert len(prefixes.kept) <= slots
        assert len({tuple(branch.tokens) for branch in prefixes.kept}) == len(
            prefixes.kept
        )
        assert all(
            branch.num_computed_tokens == len(branch) > 0 for branch in prefixes.kept
        )
    prefixes.close()
    assert watched.used == 0


def test_a_growing_chain_is_computed_once() -> None:
    watched = Watched()
    prefixes = kept(watched)
    chain = [5, 6, 7]
    for length in (3, 2, 4):
        prefixes.logits([PromptRow([*chain, 9, 9], keep=len(chain))])
        assert [branch.tokens for branch in prefixes.kept] == [chain]
        chain = [*chain, *range(10, 10 + length)]
    assert watched.forwards == [(1, 5), (1, 3 + 2), (1, 2 + 2)]


def test_the_longest_unused_goes_first() -> None:
    prefixes = kept(Watched(), slots=2)
    for first in (1, 2, 1, 3):
        prefixes.logits([PromptRow([first, 0], keep=1)])
    assert [branch.tokens for branch in prefixes.kept] == [[1], [3]]


def test_failures_leave_nothing_behind() -> None:
    watched = Watched(num_blocks=4, block_size=2)
    prefixes = kept(watched)
    prefixes.logits([PromptRow([1, 2, 3], keep=3)])
    prefixes.logits([PromptRow([4, 5, 6, 7, 8, 9])])  # fits only without what is kept
    assert prefixes.kept == [] and watched.used == 0
    fits, fails = prefixes.logits([PromptRow([1]), PromptRow([1] * 9)])
    assert isinstance(fits, torch.Tensor) and isinstance(fails, OutOfBlocks)
    fits, fails = kept(Watched()).logits([PromptRow([1]), PromptRow([1] * 600)])
    assert isinstance(fits, torch.Tensor) and isinstance(fails, ContextError)
    assert watched.used == 0


def test_warming_twice_costs_once() -> None:
    watched = Watched()
    prefixes = kept(watched)
    for _ in range(2):
        prefixes.warm([1, 2, 3])
    prefixes.warm([1, 2])
    assert watched.forwards == [(1, 3)]


# ---- score


def scored(watched: Watched, **changes: object) -> ScoreVerifier:
    return ScoreVerifier(
        watched.asked, **{"threshold": 4.5, "least_mass": 0.0, **changes}
    )


def test_the_question_about_the_score() -> None:
    assert SCORE_QUESTION.endswith(
        "Score from 0 to 9:"
    )  # the digit is the next thing to come
    assert "{" not in SCORE_QUESTION and "}" not in SCORE_QUESTION


@pytest.mark.parametrize("reading", ScoreReading)
def test_the_score_is_read_off_the_ten_digits(reading: ScoreReading) -> None:
    encode, pairs = codec().encode, [pair(text) for text in TEXTS]
    verdicts = scored(Watched(), reading=reading).judge(pairs)
    for one, verdict in zip(pairs, verdicts, strict=True):
        p = (
            Watched()
            .last_logits([*one.prefix, *one.draft.tokens, *encode(SCORE_QUESTION)])
            .softmax(-1)
        )
        digits = torch.stack([p[encode(f" {digit}")[0]] for digit in range(10)])
        expected = float(
            (digits / digits.sum()) @ torch.arange(10.0, dtype=torch.float64)
        )
        likeliest = float(digits.argmax())
        assert verdict.score == pytest.approx(
            expected if reading is ScoreReading.EXPECTED else likeliest, rel=1e-9
        )
        assert verdict.aligned == (verdict.score >= 4.5)


def test_scores_need_no_target_step_and_use_the_chain_again() -> None:
    watched = Watched()
    verifier = scored(watched)
    assert verifier.requires is Requires.NOTHING
    question = len(codec().encode(SCORE_QUESTION))
    first = pair(ADD)
    verifier.judge([first])
    chain = (*first.prefix, *first.draft.tokens)
    second = Pair(chain, pair(GIVEN).draft)
    verifier.judge([second])
    assert watched.forwards == [
        (1, len(chain) + question),
        (1, len(second.draft.tokens) + question),
    ]
    verifier.prefixes.close()
    assert watched.used == 0


def test_score_thresholds_are_inclusive_and_monotone() -> None:
    pairs = [pair(text) for text in TEXTS]
    likeliest = {"reading": ScoreReading.LIKELIEST}
    scores = [v.score for v in scored(Watched(3), **likeliest).judge(pairs)]
    counts = []
    for threshold in range(10):
        aligned = [
            v.aligned
            for v in scored(Watched(3), threshold=threshold, **likeliest).judge(pairs)
        ]
        assert aligned == [score >= threshold for score in scores]
        counts.append(sum(aligned))
    assert counts == sorted(counts, reverse=True) and counts[0] == len(pairs)


def test_a_target_that_gives_no_score_rejects() -> None:
    verdicts = scored(Watched(), least_mass=0.9).judge([pair(text) for text in TEXTS])
    assert all(not v.aligned and "gives no score" in v.why for v in verdicts)


# ---- likelihood


def test_likelihood_of_log_probabilities_at_hand() -> None:
    def at(*logprobs: float) -> Pair:
        return Pair(
            (1,), Step((0,) * len(logprobs), Finish.BOUNDARY), logprobs=logprobs
        )

    verdicts = LikelihoodVerifier(-1.0).judge(
        [at(-0.5, -1.5), at(-0.5, -1.6), at(0.0), at(-float("inf"), 0.0)]
    )
    assert [v.aligned for v in verdicts] == [True, False, True, False]
    assert [v.score for v in verdicts] == [
        -1.0,
        pytest.approx(-1.05),
        0.0,
        -float("inf"),
    ]


def test_likelihood_computed_by_a_prefill() -> None:
    watched, encode = Watched(), codec().encode
    verifier = LikelihoodVerifier(-6.0, watched.runner)
    pairs = [pair(text, prefix=f"Coins {i}") for i, text in enumerate(TEXTS)]
    verdicts = verifier.judge(pairs)
    assert len(watched.forwards) == 1
    for one, verdict in zip(pairs, verdicts, strict=True):
        tokens, expected = list(one.prefix), 0.0
        for token in one.draft.tokens:
            expected += float(Watched().last_logits(tokens).log_softmax(-1)[token])
            tokens.append(token)
        assert verdict.score == pytest.approx(
            expected / len(one.draft.tokens), rel=1e-9
        )
    again = verifier.judge(pairs)
    assert [v.score for v in again] == pytest.approx(
        [v.score for v in verdicts], rel=1e-9
    )
    assert watched.forwards[1] == (
        4,
        sum(len(one.draft.tokens) for one in pairs),
    )  # the prefixes were kept, but for their last token
    verifier.prefixes.close()
    assert watched.used == 0 and encode("x")


def test_likelihood_takes_what_is_at_hand_and_computes_the_rest() -> None:
    watched = Watched()
    bare = pair(ADD)
    held = Pair(bare.prefix, bare.draft, logprobs=(-2.0,) * len(bare.draft.tokens))
    [computed, given_, again] = LikelihoodVerifier(-1.0, watched.runner).judge(
        [bare, held, bare]
    )
    assert given_.score == -2.0
    assert computed.score == pytest.approx(again.score) and computed.score != -2.0
    assert watched.forwards[0][0] == 2
    with pytest.raises(ProtocolError, match="has no runner"):
        LikelihoodVerifier(-1.0).judge([held, bare])
    with pytest.raises(SettingError, match="at most 0"):
        LikelihoodVerifier(0.5)


def test_step_logprobs() -> None:
    logits = (
        torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log() + 3.0
    )  # a constant added to logits changes nothing
    assert step_logprobs(logits, (1, 2)) == pytest.approx(
        (torch.tensor([0.25, 0.8]).log()).tolist()
    )
