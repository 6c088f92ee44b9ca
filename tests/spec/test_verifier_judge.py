"""The judge on a random model: what it is asked, what that costs, and that nothing
stays behind but the head of its prompt.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from verifier_kit import ADD, ADD_OTHERWISE, ADD_WRONG, GIVEN, Watched, codec, pair

from lr.errors import SettingError
from lr.model.codec import Codec
from lr.spec.verifiers.base import verdicts_of
from lr.spec.verifiers.judge import (
    JUDGE_PROMPT,
    TINY_JUDGE_PROMPT,
    JudgePrompt,
    JudgeVerifier,
)
from lr.tiny.vocabulary import build_tokenizer

PROMPT = JudgePrompt(
    "Which of the two has more coins than the other?\n\n{first}\n\n{second}"
)
TEXTS = [(ADD_OTHERWISE, ADD), (ADD_WRONG, ADD), (GIVEN, ADD), (ADD, GIVEN)]
PAIRS = [pair(draft, target) for draft, target in TEXTS]


def make(watched: Watched, **changes: object) -> JudgeVerifier:
    return JudgeVerifier(
        watched.asked,
        codec().decode,
        **{"prompt": PROMPT, "least_mass": 0.0, **changes},
    )


def test_the_texts_of_the_prompts() -> None:
    asked = JUDGE_PROMPT.about("x = {1}", "y = {second}")
    assert "<version A>\nx = {1}\n</version A>" in asked
    assert (
        "<version B>\ny = {second}\n</version B>" in asked
    )  # braces of a step are text
    assert "[aligned]" in asked and "[unaligned]" in asked
    assert asked.count("{") == 2 and "{{" not in asked and "}}" not in asked
    assert asked.index("[unaligned]") < asked.index(
        "<version A>"
    )  # the instructions are the common head
    assert "[" + JUDGE_PROMPT.aligned == "[aligned]" and JUDGE_PROMPT.prefill == "["
    assert TINY_JUDGE_PROMPT.about("a {}", "b") == "a {}\n\nb"


def test_the_score_is_the_share_of_the_first_differing_token() -> None:
    """Against a forward of the whole prompt, written out by hand, on another runner."""
    verdicts = make(Watched()).judge(PAIRS)
    encode, other = codec().encode, Watched()
    for (draft, target), verdict in zip(TEXTS, verdicts, strict=True):
        text = f"<|im_start|>user\n{PROMPT.about(target, draft)}<|im_end|>\n<|im_start|>assistant\n["
        p = other.last_logits(encode(text)).softmax(-1)
        aligned, unaligned = (
            float(p[encode(answer)[0]]) for answer in ("aligned]", "unaligned]")
        )
        assert verdict.score == pytest.approx(aligned / (aligned + unaligned), rel=1e-9)
        assert verdict.aligned == (verdict.score >= 0.5)


def test_one_forward_for_all_pairs_and_the_head_once() -> None:
    watched = Watched()
    judge = make(watched)
    assert watched.forwards == []
    head = len(judge.head)
    assert head >= 12
    judge.judge(PAIRS)
    lengths = [len(judge.row(target, draft)) for draft, target in TEXTS]
    assert watched.forwards == [
        (1, head),
        (len(PAIRS), sum(lengths) - head * len(PAIRS)),
    ]
    judge.judge(PAIRS[:3])
    judge.judge(PAIRS[3:])
    assert watched.forwards[2:] == [
        (3, sum(lengths[:3]) - 3 * head),
        (1, lengths[3] - head),
    ]


class Waits(TorchFunctionMode):
    """Counts what makes the host wait for a device: values read back, and lists as
    indices."""

    count = 0

    def __torch_function__(
        self,
        func: Callable,
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        self.count += func in (
            Tensor.tolist,
            Tensor.item,
            Tensor.__float__,
            Tensor.__bool__,
        )
        self.count += func is Tensor.__getitem__ and isinstance(args[1], list)
        return func(*args, **(kwargs or {}))


def test_the_host_waits_as_often_for_four_pairs_as_for_one() -> None:
    judge, counts = make(Watched()), []
    judge.judge(PAIRS)  # the head is computed
    for pairs in (PAIRS[:1], PAIRS):
        with Waits() as waits:
            judge.judge(pairs)
        counts.append(waits.count)
    assert counts == [1, 1]


def test_only_the_head_stays_in_the_cache() -> None:
    watched = Watched(block_size=4)
    judge = make(watched)
    blocks = -(-len(judge.head) // 4)
    for _ in range(3):
        judge.judge(PAIRS)
        assert watched.used == blocks
    judge.prefixes.close()
    assert watched.used == 0
    scores = [v.score for v in judge.judge(PAIRS)]
    assert scores == pytest.approx(
        [v.score for v in make(Watched()).judge(PAIRS)], rel=1e-9
    )


def test_the_order_of_the_steps_is_target_then_draft() -> None:
    judge = make(Watched())
    [forth, back] = judge.judge([pair(ADD, GIVEN), pair(GIVEN, ADD)])
    assert forth.score != back.score
    [row] = [judge.row(GIVEN, ADD)]
    text = codec().decode(row)
    assert text.index(GIVEN) < text.index(ADD)


def test_a_higher_threshold_accepts_less() -> None:
    scores = [v.score for v in make(Watched()).judge(PAIRS)]
    assert len(set(scores)) == len(scores)
    for threshold in [0.0, *scores, 1.0]:
        accepted = [
            v.aligned
            for v in make(
                Watched(), threshold=threshold - 1e-12 if threshold else 0.0
            ).judge(PAIRS)
        ]
        assert accepted == [score >= threshold - 1e-12 for score in scores]


def test_a_batch_that_does_not_fit_is_judged_in_parts() -> None:
    watched = Watched(
        num_blocks=40, block_size=4
    )  # 160 tokens: the head and two prompts of 40 more tokens, not four
    verdicts = make(watched).judge(PAIRS)
    assert len(watched.forwards) > 2
    assert [v.score for v in verdicts] == pytest.approx(
        [v.score for v in make(Watched()).judge(PAIRS)], rel=1e-9
    )
    assert watched.used == -(-len(make(Watched()).head) // 4)


def test_a_judge_without_room_costs_rejections_and_leaves_nothing() -> None:
    watched = Watched(num_blocks=3, block_size=4)
    verdicts = verdicts_of(make(watched), PAIRS)
    assert not any(v.aligned for v in verdicts)
    assert all(v.failed and "not judged" in v.why for v in verdicts)
    assert watched.used == 0


def test_a_judge_that_answers_something_else_rejects() -> None:
    """The answers are two tokens that the random model gives little to; with its
    likeliest tokens as answers it does answer.
    """
    watched = Watched()
    judge = make(watched, least_mass=0.5)
    verdicts = judge.judge(PAIRS)
    assert not any(v.aligned for v in verdicts)
    assert all(v.score is None and "answers something else" in v.why for v in verdicts)


def test_answers_of_which_one_begins_the_other() -> None:
    """ "a" and "a coins" part where "a" ends: aligned is the probability that anything
    but " coins" follows.
    """
    prompt = JudgePrompt(
        PROMPT.question, prefill="", aligned=" a", unaligned=" a coins"
    )
    watched = Watched()
    [verdict] = make(watched, prompt=prompt).judge(PAIRS[:1])
    row = codec().chat(prompt.about(ADD, ADD_OTHERWISE)) + codec().encode(" a")
    [coins] = codec().encode(" coins")
    p = watched.last_logits(row).softmax(-1)
    assert verdict.score == pytest.approx(1 - float(p[coins]), rel=1e-9)


def test_answers_that_are_the_same_are_refused() -> None:
    with pytest.raises(SettingError, match="which one token does not tell apart"):
        make(
            Watched(),
            prompt=JudgePrompt(PROMPT.question, aligned="yes", unaligned="yes"),
        )


@pytest.mark.parametrize("changes", [{"threshold": 1.5}, {"least_mass": -1}])
def test_impossible_settings(changes: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        make(Watched(), **changes)


def test_a_tiny_judge_gets_the_short_prompt() -> None:
    from dataclasses import replace

    asked, more = Watched().asked, build_tokenizer()
    more.add_tokens(["another"])  # then it is no tiny language
    judge = JudgeVerifier(
        replace(asked, codec=Codec(more, name="other")), codec().decode
    )
    assert judge.prompt is JUDGE_PROMPT
    judge = JudgeVerifier(asked, codec().decode)
    assert judge.prompt is TINY_JUDGE_PROMPT
    row = judge.row(ADD, ADD_OTHERWISE)
    assert len(row) < len(codec().encode(ADD + ADD_OTHERWISE)) + 20
    assert torch.tensor(row).max() < codec().vocab_size
