"""Numbers, words and signals of pairs made by hand; the fitted verifier and its file."""

import json
import math
from dataclasses import replace
from decimal import Decimal

import pytest
from verifier_kit import codec

from lr.engine.verifiers import VerifierChoice
from lr.errors import NumericalError, SettingError
from lr.spec.checks import VariantError
from lr.spec.numbers import numbers_in, word_cosine
from lr.spec.sampling import root_scaled
from lr.spec.verifiers.base import Pair, Requires, verdicts_of
from lr.spec.verifiers.fitted import SIGNALS, Fit, FittedVerifier, Weight
from lr.spec.verifiers.named import LikelihoodVerifier, NumbersVerifier
from lr.types import Finish, Step

TEXTS = {}


def step(text):
    """A step with one token per word, whose text is remembered."""
    tokens = (len(TEXTS),) * max(1, len(text.split()))
    TEXTS[tokens] = text
    return Step(tokens, Finish.BOUNDARY)


def decode(tokens):
    return TEXTS.get(tuple(tokens), "?")


def pair(draft, target, **logs):
    return Pair((1,), step(draft), step(target), **logs)


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("1,080 = 1080 = 1{,}080 = 1\\,080 = 1~080", ["1080"] * 5),
        ("1\u202f080 and 1\u00a0080 and 12,345,678", ["1080", "1080", "12345678"]),
        ("0.50 .5 $.50", ["0.5", "0.5", "0.5"]),
        ("所以答案是18。共30天", ["18", "30"]),
        ("\uff11\uff12 and \u0661\u0662 and \u0967\u0968", ["12", "12", "12"]),
        (r"\frac{7}{3} of \boxed{18}.", ["7", "3", "18"]),
        ("20-5 = 15, x = -5, (\u22123)", ["20", "5", "15", "-5", "-3"]),
        ("(1,2,3) and 1,0800", ["1", "2", "3", "1", "800"]),
        ("3. Then 4.", ["3", "4"]),
        ("no number", []),
        ("9" * 5000, ["9" * 5000]),
    ],
)
def test_numbers_are_read_as_values(text, numbers):
    assert numbers_in(text) == [Decimal(number) for number in numbers]


def test_the_cosine_of_word_counts_by_hand():
    assert word_cosine("The cat sat", "the CAT") == pytest.approx(2 / math.sqrt(6))
    assert word_cosine("a a b", "a b b") == pytest.approx(4 / 5)
    assert word_cosine("12 + 3", "15") == 1, "no words in either"
    assert word_cosine("one", "") == 0


def test_root_scaled_stands_between_mean_and_sum():
    assert root_scaled((-2.0,) * 16) == pytest.approx(-8)
    assert math.isnan(root_scaled(()))
    # One doubtful token in ten sure ones weighs more than in the mean.
    doubtful = (-3.0, *[0.0] * 9)
    assert sum(doubtful) < root_scaled(doubtful) < sum(doubtful) / 10


def test_likelihood_accepts_from_its_threshold_on():
    pairs = [
        Pair((1,), Step((0,) * len(logs), Finish.BOUNDARY), logprobs=logs)
        for logs in ((-1.25, -1.25, 0.0, 0.0), (-1.3, -1.3, 0.0, 0.0), (0.0,))
    ]
    verdicts = verdicts_of(LikelihoodVerifier(-1.25), pairs)
    assert [v.aligned for v in verdicts] == [True, False, True]
    assert verdicts[0].score == -1.25


@pytest.mark.parametrize(
    "draft, target, aligned",
    [
        ("So 12 apples are left", "So 12 apples are left now", True),
        ("So 12.0 apples are left", "So 12 apples are left", True),
        ("So 13 apples are left", "So 12 apples are left", False),
        ("So 12 apples", "Then we have 12 of them", False),
        ("We add the costs", "We add the costs", True),
        ("We add the costs of both", "We add the costs of all", False),
    ],
)
def test_numbers_and_words_decide(draft, target, aligned):
    [verdict] = verdicts_of(NumbersVerifier(decode, 0.8), [pair(draft, target)])
    assert verdict.aligned is aligned and verdict.why.startswith("numbers")


READ_PAIR = pair(
    "So 12 apples are left",
    "Now 12 apples are left over",
    logprobs=(-1.0, -2.0, -0.5, -0.5, 0.0),
    draft_logprobs=(-0.5, -0.5, -0.5, -0.5, -3.0),
)


@pytest.mark.parametrize(
    "name, value",
    [
        ("target_mean", -0.8),
        ("target_lowest", -2.0),
        ("target_root", -4 / math.sqrt(5)),
        ("draft_mean", -1.0),
        ("draft_lowest", -3.0),
        ("draft_root", -5 / math.sqrt(5)),
        ("length", math.log(5)),
        ("has_numbers", 1.0),
        ("ends", 0.0),
        ("same_numbers", 1.0),
        ("word_cosine", 3 / math.sqrt(20)),
        ("length_ratio", math.log(6 / 5)),
    ],
)
def test_every_signal_by_hand(name, value):
    assert SIGNALS[name].measure(READ_PAIR, decode) == pytest.approx(value)
    assert len(SIGNALS) == 12, "each signal has a row here"


def fitted(**weights):
    signals = {name: Weight(weight, -1.0, 2.0) for name, weight in weights.items()}
    return Fit(signals, intercept=0.5, threshold=0.6)


def test_a_fit_is_a_logistic_regression():
    fit = fitted(target_mean=2.0, draft_mean=-1.0)
    # 0.5 + 2 (-0.8 + 1) / 2 - 1 (-1 + 1) / 2 = 0.7
    expected = 1 / (1 + math.exp(-0.7))
    [verdict] = FittedVerifier(fit, decode).judge([READ_PAIR])
    assert verdict.score == pytest.approx(expected) and verdict.aligned
    assert "target_mean -0.80" in verdict.why and "draft_mean -1.00" in verdict.why
    assert not FittedVerifier(fit, decode, 0.7).judge([READ_PAIR])[0].aligned
    extreme = fitted(target_mean=1e6)
    assert FittedVerifier(extreme, decode).judge([READ_PAIR])[0].score == 1.0
    broken = replace(READ_PAIR, logprobs=(math.nan,))
    with pytest.raises(NumericalError, match="target_mean"):
        FittedVerifier(extreme, decode).judge([broken])


def test_a_fit_requires_what_its_signals_look_at():
    def requires(*names):
        return FittedVerifier(fitted(**dict.fromkeys(names, 1.0)), decode).requires

    assert requires("target_root") == Requires.TARGET_LOGPROBS
    assert requires("draft_root", "length") == Requires.DRAFT_LOGPROBS
    assert requires("word_cosine") == Requires.TARGET_STEP
    both = Requires.TARGET_LOGPROBS | Requires.TARGET_STEP
    assert requires("target_mean", "same_numbers") == both
    bare = Pair((1,), READ_PAIR.draft_step, READ_PAIR.own_step)
    for name in ("target_root", "draft_root"):
        with pytest.raises(VariantError, match="LOGPROBS"):
            FittedVerifier(fitted(**{name: 1.0}), decode).judge([bare])


def test_a_step_that_no_model_drew_is_not_judged():
    given = Pair((1,), READ_PAIR.draft_step, draft_logprobs=())
    [verdict] = FittedVerifier(fitted(draft_root=1.0), decode).judge([given])
    assert verdict.failed and not verdict.aligned


def test_a_fit_goes_through_its_file(tmp_path):
    fit = fitted(target_root=1.5, length=-0.25)
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(fit.content({"data": "pairs.jsonl"})))
    assert Fit.load(path).signals == fit.signals
    tiny = codec()
    verifier = VerifierChoice(f"fitted:{path}", tiny).build(None)
    assert isinstance(verifier, FittedVerifier) and verifier.threshold == 0.6
    stricter = VerifierChoice(f"fitted:{path}:0.9", tiny).build(None)
    assert isinstance(stricter, FittedVerifier) and stricter.threshold == 0.9


LENGTH = '{"length": {"weight": 1.0, "mean": 0.0, "scale": 1.0}}'
GOOD = f'{{"signals": {LENGTH}, "intercept": 0.0, "threshold": 0.5}}'


@pytest.mark.parametrize(
    "text, damage, noun",
    [
        ("length", "mood", "mood"),
        (', "scale": 1.0', "", "scale"),
        ('"scale": 1.0', '"scale": 0', "scale"),
        (LENGTH, '["length"]', "fitted"),
        ('"intercept": 0.0', '"intercept": "high"', "intercept"),
        ('"intercept": 0.0', '"intercept": NaN', "fitted"),  # no JSON
        ("0.5", "2.0", "threshold"),
        ("0.5", "null", "threshold"),
    ],
)
def test_a_damaged_fit_is_refused_by_field(tmp_path, text, damage, noun):
    path = tmp_path / "fit.json"
    path.write_text(GOOD.replace(text, damage))
    with pytest.raises(SettingError, match=noun):
        VerifierChoice(f"fitted:{path}", codec()).build(None)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '"fit"', None])
def test_a_file_that_holds_no_fit_is_refused(tmp_path, text):
    path = tmp_path / "fit.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingError, match="fitted"):
        Fit.load(path)


def test_a_number_in_one_step_only_is_named():
    [verdict] = NumbersVerifier(decode).judge([pair("It is 7", "It is 8")])
    assert "7, 8" in verdict.why and verdict.score == pytest.approx(0.0)
