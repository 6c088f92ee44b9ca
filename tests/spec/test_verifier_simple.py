"""Verifiers that run no model: equal tokens, equal text, at random, the oracle, a
cascade of two, and one that is given a time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verifier_kit import ADD, ADD_OTHERWISE, ADD_WRONG, GIVEN, Says, codec, pair, step

from lr.errors import SettingError
from lr.spec.verifiers.base import (
    ExactVerifier,
    Pair,
    Requires,
    Verifier,
    check_verifier,
    verdicts_of,
)
from lr.spec.verifiers.named import NormalisedMatch, RandomVerifier, TimedVerifier
from lr.tiny.oracle import OracleVerifier
from lr.types import Finish, Step, Verdict
from lr.variants.confidence_cascade import Cascade

YES, NO = Verdict(True, "yes"), Verdict(False, "no")


def test_exact_compares_ids_the_end_of_sequence_included() -> None:
    ended = Step((*step(ADD).tokens[:-1], codec().tokenizer.eos_token_id), Finish.EOS)
    pairs = [
        Pair((1,), step(ADD), step(ADD)),
        Pair((1,), step(ADD), ended),
        pair(ADD.upper(), ADD),
    ]
    verdicts = ExactVerifier().judge(pairs)
    assert [v.aligned for v in verdicts] == [True, False, False]
    assert verdicts[1].why == f"tokens differ from offset {len(ended.tokens) - 1} on"


@pytest.mark.parametrize(
    ("draft", "target", "same"),
    [
        ("So 7 + 3 = 10.", "so 7 + 3 = 10.", True),
        ("  So it is.\n", "So it is.", True),
        ("x = 1 1", "x = 11", False),
        ("x = 11", "x = 1 1", False),
        ("So  it is.", "So it is.", False),
        ("ab c", "a bc", False),
        ("line\nbreak", "line break", False),
        ("x", "x.", False),
        ("", "x", False),
    ],
)
def test_folding_forgives_case_and_outer_white_space_only(
    draft: str, target: str, same: bool
) -> None:
    inner = Says({draft.strip(): NO})
    [verdict] = NormalisedMatch(inner, codec().decode).judge([pair(draft, target)])
    assert verdict == (Verdict(True, "equal text") if same else NO)
    assert inner.asked == ([] if same else [draft.strip()])


def test_only_unequal_texts_reach_the_verifier_after_the_shortcut() -> None:
    inner = Says({ADD: NO, GIVEN: YES})
    verdicts = NormalisedMatch(inner, codec().decode).judge(
        [pair(ADD, GIVEN), pair("A", "a"), pair(GIVEN, ADD)]
    )
    assert verdicts == [NO, Verdict(True, "equal text"), YES]
    assert inner.asked == [ADD, GIVEN]
    assert NormalisedMatch(inner, codec().decode).name == "says"


def test_oracle() -> None:
    pairs = [
        pair(ADD_OTHERWISE, ADD),
        pair(ADD_WRONG, ADD),
        pair("Hm.", ADD),
        pair(ADD, "Hm."),
    ]
    verdicts = OracleVerifier(codec().decode).judge(pairs)
    assert [v.aligned for v in verdicts] == [True, False, False, False]
    assert [v.why for v in verdicts] == [
        "same meaning",
        "the draft says result 11, the target 10",
        "the draft step is not in the language",
        "the target step is not in the language",
    ]


def accepted(rho: float, count: int, seed: int = 0) -> list[bool]:
    verifier = RandomVerifier(rho, seed)
    return [
        verifier.judge([Pair((i,), Step((1, 2), Finish.BOUNDARY))])[0].aligned
        for i in range(count)
    ]


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.8])
def test_the_random_verifier_accepts_as_often_as_it_should(rho: float) -> None:
    """4,000 draws of seed 0; six standard deviations: a right verifier of random seed
    fails with probability 2e-9.
    """
    assert abs(sum(accepted(rho, 4000)) / 4000 - rho) < 6 * sqrt(rho * (1 - rho) / 4000)


def test_other_content_and_another_seed_are_drawn_anew() -> None:
    assert accepted(0.5, 200) != accepted(0.5, 200, seed=1)
    verifier = RandomVerifier(0.5)
    assert accepted(1.0, 50) == [True] * 50
    assert accepted(0.0, 50) == [False] * 50
    [one, other] = verifier.judge(
        [Pair((1, 2), Step((3,), Finish.EOS)), Pair((1,), Step((2, 3), Finish.EOS))]
    )
    assert one.why != other.why  # the border between prefix and step counts


@given(st.permutations(range(12)))
def test_the_draw_does_not_depend_on_the_order_or_the_targets_step(
    order: Sequence[int],
) -> None:
    pairs = [
        Pair((7,), Step((i,), Finish.BOUNDARY), Step((i + 1,), Finish.BOUNDARY))
        for i in range(12)
    ]
    bare = [Pair(one.prefix, one.draft) for one in pairs]
    verdicts = RandomVerifier(0.5, requires=Requires.NOTHING).judge(bare)
    assert RandomVerifier(0.5).judge([pairs[i] for i in order]) == [
        verdicts[i] for i in order
    ]


def test_cascade_asks_the_expensive_one_inside_the_band_only() -> None:
    def scored(score: float | None) -> Verdict:
        return Verdict(False, f"at {score}", score)

    cheap = Says(
        {
            name: scored(score)
            for name, score in zip(
                "abcdef", [0.1, 0.2, 0.21, 0.79, 0.8, None], strict=True
            )
        }
    )
    expensive = Says({"c": YES, "d": NO, "f": YES})
    cascade = Cascade(cheap, expensive, low=0.2, high=0.8)
    verdicts = cascade.judge([pair(name, "x") for name in "abcdef"])
    assert [v.aligned for v in verdicts] == [False, False, True, False, True, True]
    sure = "says is sure: at {}".format
    assert [v.why for v in verdicts] == [
        sure(0.1),
        sure(0.2),
        "yes",
        "no",
        sure(0.8),
        "yes",
    ]
    assert expensive.asked == ["c", "d", "f"]
    assert cascade.name == "says>says"
    early = cascade.judge_early(
        [Pair((), step(name)) for name in "abcdef"]
    )  # a target step is not needed for that
    assert [v and v.aligned for v in early] == [False, False, None, None, True, None]


def test_a_fault_in_a_verifier_is_raised_unless_it_is_fallible() -> None:
    cheap, expensive = Says({"a": RuntimeError("gone")}), Says({"a": YES})
    cascade = Cascade(cheap, expensive, low=0.0, high=1.0)
    with pytest.raises(RuntimeError, match="gone"):
        verdicts_of(cascade, [pair("a", "x")])
    cheap.fallible = True
    assert verdicts_of(cascade, [pair("a", "x")]) == [YES]
    [verdict] = verdicts_of(cheap, [pair("a", "x")])
    assert (
        verdict.failed and not verdict.aligned and "RuntimeError: gone" in verdict.why
    )


@pytest.mark.parametrize("answer", [None, [], [True], [YES, YES], (YES,)])
def test_anything_but_one_verdict_per_pair_is_refused(answer: object) -> None:
    class Wrong(Verifier):
        name = "wrong"

        def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
            return answer  # type: ignore[return-value]

    with pytest.raises(TypeError, match="list of 1"):
        verdicts_of(Wrong(), [pair("a", "x")])


def test_a_verifier_must_derive_from_the_base_class() -> None:
    class Bare:
        name = "bare"

        def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
            return [YES for _ in pairs]

    with pytest.raises(TypeError, match="Verifier"):
        check_verifier(Bare())
    assert check_verifier(ExactVerifier()).fallible is False


def test_an_impossible_band() -> None:
    with pytest.raises(SettingError, match="low <= high"):
        Cascade(Says({}), Says({}), low=0.9, high=0.1)


class Slow(Verifier):
    """A verifier that answers when it is told to."""

    name = "slow"

    def __init__(self) -> None:
        self.release, self.done, self.calls = threading.Event(), threading.Event(), 0

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.calls += 1
        self.release.wait(30)
        self.done.set()
        return [YES for _ in pairs]


def test_a_verifier_that_takes_too_long_costs_rejections_and_is_not_entered_twice() -> (
    None
):
    slow = Slow()
    timed = TimedVerifier(slow, 0.05)  # type: ignore[arg-type]
    pairs = [pair("a", "b")] * 2
    assert {v.why for v in timed.judge(pairs)} == {
        "verifier slow did not answer within 0.05 s"
    }
    still = timed.judge(pairs)
    assert [v.aligned for v in still] == [False, False]
    assert all(v.failed and "still busy" in v.why for v in still)
    slow.release.set()
    assert slow.done.wait(30)
    timed.last.result(30)  # type: ignore[union-attr]
    timed.seconds = 30.0
    assert timed.judge(pairs) == [YES, YES]
    assert slow.calls == 2


def test_a_timed_verifier_that_raises_says_so() -> None:
    with pytest.raises(ValueError, match="no weights"):
        TimedVerifier(Says({"a": ValueError("no weights")}), 30.0).judge(
            [pair("a", "b")]
        )


@pytest.mark.parametrize(
    "make", [lambda: RandomVerifier(1.5), lambda: TimedVerifier(Says({}), 0)]
)
def test_impossible_settings(make) -> None:
    with pytest.raises(SettingError):
        make()
