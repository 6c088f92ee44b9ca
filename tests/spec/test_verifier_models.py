"""Verifiers that ask a model: reading an answer, keeping prefixes, and the judge, the
score and the likelihood on random models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode
from verifier_kit import ADD, ADD_OTHERWISE, ADD_WRONG, GIVEN, Watched, codec, pair

from lr.errors import ContextError, OutOfBlocks, ProtocolError, SettingError
from lr.spec.verifiers.base import Pair, verdicts_of
from lr.spec.verifiers.judge import (
    JUDGE_PROMPT,
    AnswerTokens,
    JudgePrompt,
    JudgeVerifier,
    PrefixCache,
    PromptRow,
)
from lr.spec.verifiers.named import (
    SCORE_QUESTION,
    LikelihoodVerifier,
    ScoreReading,
    ScoreVerifier,
)
from lr.types import Finish, Step

PROMPT = JudgePrompt(
    "Which of the two has more coins than the other?\n\n{first}\n\n{second}"
)
TEXTS = [(ADD_OTHERWISE, ADD), (ADD_WRONG, ADD), (GIVEN, ADD), (ADD, GIVEN)]
PAIRS = [pair(draft, target) for draft, target in TEXTS]


# Answers


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (([1, 2], [3, 2]), AnswerTokens((), (1, 3))),
        (([5, 1], [5, 2, 9]), AnswerTokens((5,), (1, 2))),
        (([5], [5, 2]), AnswerTokens((5,), (None, 2))),
    ],
)
def test_where_answers_part(
    answers: Sequence[Sequence[int]], expected: AnswerTokens
) -> None:
    assert AnswerTokens.of(answers) == expected


@pytest.mark.parametrize("answers", [([1], [1]), ([1, 2], [1, 3], [4]), ([], [])])
def test_answers_that_no_token_tells_apart(answers: Sequence[Sequence[int]]) -> None:
    with pytest.raises(SettingError, match="tell apart"):
        AnswerTokens.of(answers)


def test_reading_an_answer() -> None:
    rows = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.9, 0.0]]).log()
    [(shares, mass), (_, other)] = AnswerTokens((), (0, 1)).read(rows)
    assert shares == pytest.approx([5 / 7, 2 / 7])
    assert (mass, other) == pytest.approx((0.7, 1.0))
    shares, mass = AnswerTokens((), (2, None, 0)).read(rows)[0]
    assert shares == pytest.approx([0.3, 0.2, 0.5]) and mass == 1.0
    tiny = torch.tensor([[0.0, -800.0, -802.0]])
    [(shares, mass)] = AnswerTokens((), (1, 2)).read(tiny)
    assert shares[0] == pytest.approx(1 / (1 + torch.e**-2)) and mass == 0.0


# Prefixes

ROWS = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(0, 9),
)


@settings(max_examples=40, deadline=None)
@given(
    calls=st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=4),
    slots=st.integers(1, 3),
    num_blocks=st.sampled_from([12, 200]),
)
def test_kept_prefixes_change_nothing_but_the_work(
    calls: list[list[tuple[list[int], int, int]]], slots: int, num_blocks: int
) -> None:
    """Rows over two tokens, so that much is shared: the logits are those of rows run
    alone, and never more than `slots` are kept."""
    watched, alone = Watched(num_blocks=num_blocks, block_size=2), Watched()
    prefixes = PrefixCache(watched.runner, slots)
    for call in calls:
        rows = [
            PromptRow(tokens, min(wanted, len(tokens)), min(keep, len(tokens)))
            for tokens, wanted, keep in call
        ]
        for row, logits in zip(rows, prefixes.logits(rows), strict=True):
            for back in range(row.wanted):
                expected = alone.last_logits(row.tokens[: len(row.tokens) - back])
                got = logits[row.wanted - 1 - back]
                assert torch.allclose(got, expected, atol=1e-9)
        assert len(prefixes.kept) <= slots
        assert all(b.num_computed_tokens == len(b) > 0 for b in prefixes.kept)
    prefixes.close()
    assert watched.used == 0


def test_a_growing_chain_is_computed_once() -> None:
    watched = Watched()
    prefixes = PrefixCache(watched.runner)
    chain = [5, 6, 7]
    for length in (3, 2, 4):
        prefixes.logits([PromptRow([*chain, 9, 9], keep=len(chain))])
        assert [branch.tokens for branch in prefixes.kept] == [chain]
        chain = [*chain, *range(10, 10 + length)]
    assert watched.forwards == [(1, 5), (1, 3 + 2), (1, 2 + 2)]


def test_the_longest_unused_prefix_goes_first() -> None:
    prefixes = PrefixCache(Watched().runner, slots=2)
    for first in (1, 2, 1, 3):
        prefixes.logits([PromptRow([first, 0], keep=1)])
    assert [branch.tokens for branch in prefixes.kept] == [[1], [3]]


def test_failures_leave_nothing_behind() -> None:
    watched = Watched(num_blocks=4, block_size=2)
    prefixes = PrefixCache(watched.runner)
    prefixes.logits([PromptRow([1, 2, 3], keep=3)])
    prefixes.logits([PromptRow([4, 5, 6, 7, 8, 9])])  # fits only without what is kept
    assert prefixes.kept == [] and watched.used == 0
    fits, fails = prefixes.logits([PromptRow([1]), PromptRow([1] * 9)])
    assert isinstance(fits, Tensor) and isinstance(fails, OutOfBlocks)
    fits, fails = PrefixCache(Watched().runner).logits(
        [PromptRow([1]), PromptRow([1] * 600)]
    )
    assert isinstance(fits, Tensor) and isinstance(fails, ContextError)
    assert watched.used == 0


# The judge


def judge(watched: Watched, **changes: object) -> JudgeVerifier:
    options = {"prompt": PROMPT, "least_mass": 0.0, **changes}
    return JudgeVerifier(watched.asked, codec().decode, **options)  # type: ignore[arg-type]


def test_the_prompts_text() -> None:
    asked = JUDGE_PROMPT.about("x = {1}", "y = {second}")
    assert "<version A>\nx = {1}\n</version A>" in asked  # braces of a step are text
    assert "{{" not in asked and "}}" not in asked
    assert asked.index("[unaligned]") < asked.index("<version A>"), "a common head"


def test_the_score_is_the_share_of_the_first_differing_token() -> None:
    """Against a forward of the whole prompt, written out by hand."""
    encode, other = codec().encode, Watched()
    for (draft, target), verdict in zip(
        TEXTS, judge(Watched()).judge(PAIRS), strict=True
    ):
        about = PROMPT.about(target, draft)
        text = f"<|im_start|>user\n{about}<|im_end|>\n<|im_start|>assistant\n["
        p = other.last_logits(encode(text)).softmax(-1)
        aligned, unaligned = (
            float(p[encode(a)[0]]) for a in ("aligned]", "unaligned]")
        )
        assert verdict.score == pytest.approx(aligned / (aligned + unaligned), rel=1e-9)
        assert verdict.aligned == (verdict.score >= 0.5)


def test_pairs_that_are_ready_together_are_one_batch_and_share_the_head() -> None:
    watched = Watched()
    verifier = judge(watched)
    head = len(verifier.head)
    assert head >= 12
    lengths = [len(verifier.row(target, draft)) for draft, target in TEXTS]
    verifier.judge(PAIRS)
    computed = sum(lengths) - head * len(PAIRS)
    assert watched.forwards == [(1, head), (len(PAIRS), computed)]
    verifier.judge(PAIRS[:3])
    assert watched.forwards[2:] == [(3, sum(lengths[:3]) - 3 * head)]
    assert watched.used == -(-head // 4), "only the head stays in the cache"
    verifier.prefixes.close()
    assert watched.used == 0


class Waits(TorchFunctionMode):
    """Counts what makes the host wait for a device."""

    READS = Tensor.tolist, Tensor.item, Tensor.__float__, Tensor.__bool__
    count = 0

    def __torch_function__(
        self,
        func: Callable,
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        self.count += func in self.READS
        self.count += func is Tensor.__getitem__ and isinstance(args[1], list)
        return func(*args, **(kwargs or {}))


def test_the_host_waits_as_often_for_four_pairs_as_for_one() -> None:
    verifier, counts = judge(Watched()), []
    verifier.judge(PAIRS)  # the head is computed
    for pairs in (PAIRS[:1], PAIRS):
        with Waits() as waits:
            verifier.judge(pairs)
        counts.append(waits.count)
    assert counts == [1, 1]


def test_thresholds_are_inclusive() -> None:
    scores = [v.score for v in judge(Watched()).judge(PAIRS)]
    for threshold in scores:
        verdicts = judge(Watched(), threshold=threshold - 1e-12).judge(PAIRS)
        assert [v.aligned for v in verdicts] == [score >= threshold for score in scores]


@pytest.mark.parametrize(("num_blocks", "fits"), [(40, True), (3, False)])
def test_a_batch_that_does_not_fit_is_judged_in_parts_or_rejected(
    num_blocks: int, fits: bool
) -> None:
    watched = Watched(num_blocks=num_blocks, block_size=4)
    verdicts = verdicts_of(judge(watched), PAIRS)
    usual = judge(Watched()).judge(PAIRS)
    if fits:
        scores = [v.score for v in verdicts]
        assert scores == pytest.approx([v.score for v in usual], rel=1e-9)
    else:
        assert all(v.failed and not v.aligned for v in verdicts)
        assert watched.used == 0


def test_a_judge_that_answers_something_else_rejects() -> None:
    verdicts = judge(Watched(), least_mass=0.5).judge(PAIRS)
    assert all(not v.aligned and v.score is None for v in verdicts)


def test_answers_of_which_one_begins_the_other() -> None:
    """ "a" and "a coins" part where "a" ends: aligned is the probability that anything
    but " coins" follows."""
    prompt = JudgePrompt(
        PROMPT.question, prefill="", aligned=" a", unaligned=" a coins"
    )
    watched = Watched()
    [verdict] = judge(watched, prompt=prompt).judge(PAIRS[:1])
    row = codec().chat(prompt.about(ADD, ADD_OTHERWISE)) + codec().encode(" a")
    [coins] = codec().encode(" coins")
    p = watched.last_logits(row).softmax(-1)
    assert verdict.score == pytest.approx(1 - float(p[coins]), rel=1e-9)


@pytest.mark.parametrize("changes", [{"threshold": 1.5}, {"least_mass": -1}])
def test_impossible_settings(changes: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        judge(Watched(), **changes)


# The score


def score(watched: Watched, **changes: object) -> ScoreVerifier:
    options = {"threshold": 4.5, "least_mass": 0.0, **changes}
    return ScoreVerifier(watched.asked, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("reading", ScoreReading)
def test_the_score_is_read_from_the_ten_digits(reading: ScoreReading) -> None:
    encode = codec().encode
    for pair_, verdict in zip(
        PAIRS, score(Watched(), reading=reading).judge(PAIRS), strict=True
    ):
        row = [*pair_.prefix, *pair_.draft.tokens, *encode(SCORE_QUESTION)]
        p = Watched().last_logits(row).softmax(-1)
        digits = torch.stack([p[encode(f" {digit}")[0]] for digit in range(10)])
        numbers = torch.arange(10.0, dtype=torch.float64)
        mean = float((digits / digits.sum()) @ numbers)
        likeliest = float(digits.argmax())
        expected = mean if reading is ScoreReading.EXPECTED else likeliest
        assert verdict.score == pytest.approx(expected, rel=1e-9)
        assert verdict.aligned == (verdict.score >= 4.5)


def test_a_score_computes_a_chain_once() -> None:
    watched = Watched()
    verifier = score(watched)
    question = len(codec().encode(SCORE_QUESTION))
    first = pair(ADD)
    chain = (*first.prefix, *first.draft.tokens)
    second = Pair(chain, pair(GIVEN).draft)
    verifier.judge([first])
    verifier.judge([second])
    assert watched.forwards == [
        (1, len(chain) + question),
        (1, len(second.draft.tokens) + question),
    ]


def test_a_target_that_gives_no_score_rejects() -> None:
    verdicts = score(Watched(), least_mass=0.9).judge(PAIRS)
    assert all(not v.aligned and v.score is None for v in verdicts)


# The likelihood


def test_likelihood_of_given_log_probabilities() -> None:
    def at(*logprobs: float) -> Pair:
        step = Step((0,) * len(logprobs), Finish.BOUNDARY)
        return Pair((1,), step, logprobs=logprobs)

    pairs = [at(-0.5, -1.5), at(-0.5, -1.6), at(0.0), at(-float("inf"), 0.0)]
    verdicts = LikelihoodVerifier(-1.0).judge(pairs)
    assert [v.aligned for v in verdicts] == [True, False, True, False]


def test_likelihood_computed_by_one_prefill() -> None:
    watched = Watched()
    verifier = LikelihoodVerifier(-6.0, watched.runner)
    pairs = [pair(text, prefix=f"Coins {i}") for i, (text, _) in enumerate(TEXTS)]
    verdicts = verifier.judge(pairs)
    assert len(watched.forwards) == 1
    for pair_, verdict in zip(pairs, verdicts, strict=True):
        tokens, total = list(pair_.prefix), 0.0
        for token in pair_.draft.tokens:
            total += float(Watched().last_logits(tokens).log_softmax(-1)[token])
            tokens.append(token)
        assert verdict.score == pytest.approx(total / len(pair_.draft.tokens), rel=1e-9)
    verifier.judge(pairs)
    lengths = sum(len(pair_.draft.tokens) for pair_ in pairs)
    assert watched.forwards[1] == (4, lengths), "the prefixes are kept"


def test_likelihood_takes_what_a_pair_holds_and_computes_the_others() -> None:
    watched = Watched()
    bare = pair(ADD)
    held = Pair(bare.prefix, bare.draft, logprobs=(-2.0,) * len(bare.draft.tokens))
    verdicts = LikelihoodVerifier(-1.0, watched.runner).judge([bare, held])
    assert verdicts[1].score == -2.0 != verdicts[0].score
    with pytest.raises(ProtocolError, match="runner"):
        LikelihoodVerifier(-1.0).judge([held, bare])
