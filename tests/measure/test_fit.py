"""The fit of a verifier: known coefficients come back, problems are left out together,
thresholds by hand, and `lr verify --fit` on the published pairs."""

import json
import math

import numpy as np
import pytest
from tests_root import ROOT

from lr.engine.verifiers import VerifierChoice
from lr.errors import SettingError
from lr.measure.fit import cross_validated, fit_weights, most_accepted, shares
from lr.measure.verifier_eval import SheetTexts, curve, load_pairs, replay
from lr.spec.verifiers.base import Requires

PUBLISHED = ROOT / "docs/results/real/pairs.jsonl"
NAMES = ("target_root", "draft_root", "length")


def synthetic(count, seed=0):
    """Signals on unlike scales, and labels drawn from 0.5 + 2 x - y / 10."""
    chance = np.random.default_rng(seed)
    values = chance.normal(size=(count, 3)) * (1.0, 10.0, 1.0) + (0.0, 5.0, 0.0)
    odds = 0.5 + 2 * values[:, 0] - 0.1 * (values[:, 1] - 5)
    truth = chance.random(count) < 1 / (1 + np.exp(-odds))
    return values, truth.tolist()


def test_known_coefficients_come_back():
    """20,000 pairs: the standard errors are below 0.03, so 0.15 is five of them."""
    values, truth = synthetic(20_000)
    fit = fit_weights(values, truth, NAMES)
    slopes = [fit.signals[name].weight / fit.signals[name].scale for name in NAMES]
    assert slopes == pytest.approx([2.0, -0.1, 0.0], abs=0.15)
    probability = fit.probability(dict(zip(NAMES, (0.0, 5.0, 0.0), strict=True)))
    assert probability == pytest.approx(1 / (1 + math.exp(-0.5)), abs=0.02)


def test_a_problems_labels_do_not_reach_its_own_verdicts():
    values, truth = synthetic(120)
    problems = [number // 12 for number in range(120)]
    before = cross_validated(values, truth, problems, NAMES)
    changed = [
        not label if p == 3 else label for label, p in zip(truth, problems, strict=True)
    ]
    after = cross_validated(values, changed, problems, NAMES)
    assert after[36:48] == before[36:48]
    assert after[:36] != before[:36]


def test_what_cannot_be_fitted_is_refused():
    values, truth = synthetic(20)
    with pytest.raises(SettingError, match="labels"):
        cross_validated(values, [True] * 20, list(range(20)), NAMES)
    with pytest.raises(SettingError, match="problems"):
        cross_validated(values, truth, [0] * 10 + [1] * 10, NAMES)


def test_the_most_that_a_threshold_accepts_by_hand():
    scores = [0.9, 0.8, 0.8, 0.5, 0.1]
    points = curve(scores, [True, True, False, True, False])
    assert most_accepted(points, 0.0) == (0.2, 0.9)
    assert most_accepted(points, 0.25) == (0.8, 0.5)
    assert most_accepted(points, 0.3) == (0.8, 0.5)
    assert most_accepted(points, 0.4) == (1.0, 0.1)
    assert most_accepted(curve([0.5], [False]), 0.1) == (0.0, math.inf)


def test_an_interval_is_over_problems():
    """Four problems, each right or wrong as a whole: the interval is as wide as that of
    four coins, however many pairs they have."""
    truth = [problem % 2 == 0 for problem in range(4) for _ in range(50)]
    problems = [problem for problem in range(4) for _ in range(50)]
    area, *accepted = shares(
        [float(label) for label in truth], truth, problems
    ).values()
    assert area.value == 1.0
    for share in accepted:  # the true pairs, and no false one
        assert (share.value, share.low, share.high) == (0.5, 0.0, 1.0)


def test_a_fit_to_the_published_pairs_needs_no_checkpoint(tmp_path, cli):
    fit, numbers = tmp_path / "fit.json", tmp_path / "numbers.json"
    words = f"verify {PUBLISHED} --fit {fit} --json {numbers} --signals target_root"
    words += " target_lowest draft_root draft_lowest length"
    cli(f"{words} --verifiers likelihood numbers saved")
    content = json.loads(numbers.read_text())
    fitted = content["fitted, other problems"]
    assert fitted["auc"] > 0.85 and content["numbers"]["auc"] > 0.8
    interval = fitted["estimates"]["AUC"]
    assert interval["low"] < fitted["auc"] < interval["high"]

    saved = load_pairs(PUBLISHED)
    texts = SheetTexts.of(saved)
    verifier = VerifierChoice(f"fitted:{fit}", texts).build(None)
    reads = Requires.TARGET_LOGPROBS | Requires.DRAFT_LOGPROBS
    assert verifier.requires == reads, "no step of the target"
    judged = replay(verifier, [entry.pair() for entry in saved])
    accepted = [v.aligned for v in judged.verdicts]
    wrong = sum(a and not entry.label for a, entry in zip(accepted, saved, strict=True))
    assert 0.3 < sum(accepted) / len(saved) < 0.7 and wrong <= 0.1 * sum(accepted)


@pytest.mark.parametrize(
    "flags, noun",
    [
        ("--signals mood", "mood"),
        ("--wrong 0", "wrong"),
        ("--wrong nan", "wrong"),
        ("--signals target_root judge", "tiny-target"),
    ],
)
def test_flags_of_a_fit_that_are_refused(tmp_path, cli, flags, noun):
    words = f"verify {PUBLISHED} --fit {tmp_path}/fit.json {flags}"
    assert noun in cli(words, 2).err
    assert not (tmp_path / "fit.json").exists()
