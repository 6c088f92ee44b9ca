"""Verifiers that ask a model: reading an answer, keeping prefixes, and the judge, the
score and the likelihood on random models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training.vocabulary import build_tokenizer
from torch import Tensor
from verifier_kit import (
    ADD,
    ADD_OTHERWISE,
    ADD_WRONG,
    FACT,
    PROMPT,
    Watched,
    codec,
    judge,
    pair,
    score,
)

from lr.errors import ContextError, OutOfBlocks, SettingError
from lr.model.codec import Codec
from lr.spec.verifiers.base import verdicts_of
from lr.spec.verifiers.judge import (
    JUDGE_PROMPT,
    AnswerTokens,
    JudgeVerifier,
    PrefixCache,
    PromptedModel,
    PromptRow,
    fill_prompt,
)
from lr.spec.verifiers.named import SCORE_QUESTION, ScoreReading

TEXTS = [(ADD_OTHERWISE, ADD), (ADD_WRONG, ADD), (FACT, ADD), (ADD, FACT)]
PAIRS = [pair(draft, target) for draft, target in TEXTS]


# Answers


def test_one_token_tells_the_answers_apart():
    assert AnswerTokens.of([[5, 1], [5, 2, 9]]) == AnswerTokens((5,), (1, 2))
    for answers in ([[1], [1]], [[1, 2], [1, 3], [4]], [[5], [5, 2]]):
        with pytest.raises(SettingError, match="answers"):
            AnswerTokens.of(answers)


def test_reading_an_answer():
    rows = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.9, 0.0]]).log()
    [(shares, mass), (_, second_mass)] = AnswerTokens((), (0, 1)).read(rows)
    assert shares == pytest.approx([5 / 7, 2 / 7])
    assert (mass, second_mass) == pytest.approx((0.7, 1.0))
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
def test_kept_prefixes_change_nothing_but_the_work(calls, slots, num_blocks):
    """Rows over two tokens, so that much is shared: the logits are those of rows run
    alone, and never more than `slots` are kept."""
    watched, alone = Watched(num_blocks=num_blocks, block_size=2), Watched()
    prefixes = PrefixCache(watched.runner, slots)
    for call in calls:
        rows = [
            PromptRow(tokens, min(keep, len(tokens)), min(wanted, len(tokens)))
            for tokens, wanted, keep in call
        ]
        for row, logits in zip(rows, prefixes.logits(rows), strict=True):
            for back in range(row.wanted):
                expected = alone.last_logits(row.tokens[: len(row.tokens) - back])
                assert torch.allclose(logits[-1 - back], expected, atol=1e-9)
        assert len(prefixes.branches) <= slots
        assert all(b.num_computed_tokens == len(b) for b in prefixes.branches)
    prefixes.close()
    assert watched.num_used == 0


def test_a_growing_chain_is_computed_once():
    watched = Watched()
    prefixes = PrefixCache(watched.runner)
    chain = [5, 6, 7]
    for length in (3, 2, 4):
        prefixes.logits([PromptRow([*chain, 9, 9], keep=len(chain))])
        assert prefixes.branches[-1].tokens == chain
        chain = [*chain, *range(10, 10 + length)]
    assert watched.forwards == [(1, 5), (1, 3 + 2), (1, 2 + 2)]


def test_rows_that_do_not_fit_fail_alone():
    watched = Watched(num_blocks=4, block_size=2)
    prefixes = PrefixCache(watched.runner)
    prefixes.logits([PromptRow([1, 2, 3], keep=3)])
    row = PromptRow([4, 5, 6, 7, 8, 9], keep=0)  # fits only without what is kept
    assert isinstance(prefixes.logits([row])[0], Tensor)
    assert watched.num_used == 0
    roomy = PrefixCache(Watched().runner)
    for cache, length, error in ((prefixes, 9, OutOfBlocks), (roomy, 600, ContextError)):  # fmt: skip
        fits, fails = cache.logits([PromptRow([1], 0), PromptRow([1] * length, 0)])
        assert isinstance(fits, Tensor) and isinstance(fails, error)
    assert watched.num_used == 0


# The judge


def test_the_prompts_text():
    prompt = fill_prompt(JUDGE_PROMPT, "x = {1}", "y = {second}")
    assert "<version A>\nx = {1}\n</version A>" in prompt  # braces of a step are text
    assert "{{" not in prompt and "}}" not in prompt
    assert prompt.index("[unaligned]") < prompt.index("<version A>"), "a common head"


@pytest.mark.parametrize("braces", ['{"aligned": true}', r"\boxed{}", "{0} {{x}} {"])
def test_braces_in_a_prompt_are_text(braces):
    prompt = f"Answer as {braces}: {{first}} or {{second}}"
    assert (
        fill_prompt(prompt, "{second}", "b") == f"Answer as {braces}: {{second}} or b"
    )
    JudgeVerifier(Watched().prompted, codec().decode, prompt=prompt)
    with pytest.raises(SettingError, match="judge_prompt"):
        JudgeVerifier(Watched().prompted, codec().decode, prompt=braces)


@pytest.mark.parametrize(
    "ending, thinks",
    [
        ("<think>\n", True),
        ("[THINK]", True),
        ("<think>\n\n</think>\n\n", False),
        ("I think", False),
    ],
)
def test_a_judge_whose_template_opens_a_thought_is_refused(ending, thinks):
    tokenizer = build_tokenizer()
    tokenizer.chat_template += ending
    thinker = PromptedModel(Watched().runner, Codec(tokenizer, name="thinker"))
    if not thinks:
        JudgeVerifier(thinker, codec().decode)
        return
    with pytest.raises(SettingError, match="thinker"):
        JudgeVerifier(thinker, codec().decode)


def test_the_score_is_the_share_of_the_first_differing_token():
    """Against a forward of the whole prompt, written out by hand."""
    encode = codec().encode
    reference = Watched()
    answers = [encode(answer)[0] for answer in ("aligned]", "unaligned]")]
    verdicts = judge().judge(PAIRS)
    for (draft, target), verdict in zip(TEXTS, verdicts, strict=True):
        question = PROMPT.format(first=target, second=draft)
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n["
        p = reference.last_logits(encode(text)).softmax(-1)[answers]
        score = float(p[0] / p.sum())
        assert verdict.score == pytest.approx(score, rel=1e-9)
        assert verdict.aligned == (verdict.score >= 0.5)


def test_pairs_of_one_call_are_one_batch_and_share_the_head():
    watched = Watched()
    verifier = judge(watched.prompted)
    head = verifier.head
    assert head >= 12
    lengths = [len(verifier.row(target, draft)) - head for draft, target in TEXTS]
    verifier.judge(PAIRS[:1])
    verifier.judge(PAIRS)
    assert watched.forwards == [(1, head + lengths[0]), (4, sum(lengths))]
    # Five rows keep the head: its full blocks together, the last one each.
    assert watched.num_used == head // 4 + 5
    verifier.prefixes.close()
    assert watched.num_used == 0


@pytest.mark.parametrize("num_blocks, fits", [(40, True), (3, False)])
def test_a_batch_too_large_is_judged_in_parts_or_rejected(num_blocks, fits):
    watched = Watched(num_blocks=num_blocks)
    verdicts = verdicts_of(judge(watched.prompted), PAIRS)
    if fits:
        usual = [v.score for v in judge().judge(PAIRS)]
        assert [v.score for v in verdicts] == pytest.approx(usual, rel=1e-9)
    else:
        assert all(v.failed and not v.aligned for v in verdicts)
        assert watched.num_used == 0


# The score


@pytest.mark.parametrize("reading", ScoreReading)
def test_the_score_is_read_from_the_ten_digits(reading):
    encode = codec().encode
    digits = [encode(f" {digit}")[0] for digit in range(10)]
    verdicts = score(reading=reading).judge(PAIRS)
    for pair_, verdict in zip(PAIRS, verdicts, strict=True):
        row = [*pair_.prefix, *pair_.draft_step.tokens, *encode(SCORE_QUESTION)]
        p = Watched().last_logits(row).softmax(-1)[digits]
        mean = float((p / p.sum()) @ torch.arange(10.0, dtype=torch.float64))
        likeliest = float(p.argmax())
        expected = mean if reading is ScoreReading.EXPECTED else likeliest
        assert verdict.score == pytest.approx(expected, rel=1e-9)
        assert verdict.aligned == (verdict.score >= 4.5)


@pytest.mark.parametrize("make", [judge, score])
def test_an_answer_in_other_words_is_no_verdict(make):
    """Three in a row, and the judge is refused by name."""
    verifier = make()
    verifier.least_mass = 0.9
    verdicts = verifier.judge(PAIRS[:2])
    assert all(v.failed and not v.aligned and v.score is None for v in verdicts)
    if make is score:
        return
    verifier.least_mass = 0.0
    verifier.judge(PAIRS[:1])  # a verdict forgives
    verifier.least_mass = 0.9
    verifier.judge(PAIRS[:2])
    with pytest.raises(SettingError, match="tiny"):
        verifier.judge(PAIRS[:1])
