"""The evaluation of verifiers on numbers by hand and on pairs that a run has kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from lr.commands.cli import main
from lr.errors import SettingError
from lr.measure.datasets import Item, Task
from lr.measure.store import AnswerKey, Store
from lr.measure.verifier_eval import (
    PairRecorder,
    ReplayedVerdicts,
    SavedPair,
    auc,
    average_precision,
    calibration_error,
    curve,
    load_pairs,
    quality,
    reliability,
    replay,
    swapped,
)
from lr.reasoner import Reasoner
from lr.spec.verifiers.base import ExactVerifier, Pair, Verifier
from lr.types import Finish, Step, Verdict
from lr.watch.trace.file import read_trace

HALF = [True, False, True, False]


def test_curves_by_hand() -> None:
    points = curve([3.0, 2.0, 1.0], [True, False, True])
    assert [(p.true_rate, p.false_rate) for p in points] == [
        (0.5, 0.0),
        (0.5, 1.0),
        (1.0, 1.0),
    ]
    assert [p.error for p in points] == [0.0, 0.5, pytest.approx(1 / 3)]
    assert auc([3.0, 2.0, 1.0], [True, False, True]) == 0.5
    assert auc([4.0, 3.0, 2.0, 1.0], [True, True, False, False]) == 1.0
    assert auc([1.0] * 4, HALF) == 0.5, "ties count half"
    assert auc([1.0, 2.0], [True, True]) is None
    assert average_precision(
        [4.0, 3.0, 2.0, 1.0], [True, False, True, False]
    ) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision([1.0], [False]) is None
    assert reliability([0.05, 0.95, 0.99], [False, True, False]) == [
        (0.05, 0.0, 1),
        (pytest.approx(0.97), 0.5, 2),
    ]
    assert calibration_error([0.05, 0.95], [False, True]) == pytest.approx(0.05)
    assert calibration_error([7.0], [True]) is None, (
        "a score from 0 to 9 is no probability"
    )


def test_quality_by_hand() -> None:
    made = ReplayedVerdicts(
        tuple(Verdict(s >= 0.5, "", s) for s in (0.9, 0.8, 0.2, 0.1)), 0.4
    )
    other = ReplayedVerdicts(
        tuple(Verdict(s >= 0.5, "", s) for s in (0.9, 0.4, 0.2, 0.1)), 0.4
    )
    found = quality(made, HALF, other)
    assert (found.accepted, found.precision, found.recall, found.error) == (
        0.5,
        0.5,
        0.5,
        0.5,
    )
    assert (
        found.ms_per_pair == pytest.approx(100)
        and found.order_flips == 0.25
        and found.order_shift == pytest.approx(0.1)
    )
    folded = ReplayedVerdicts(
        (Verdict(True, "equal"), Verdict(False, "", 0.2), Verdict(False, "fails")), 0.1
    )
    assert folded.scores == [1.0, 0.2, 0.0], (
        "what was decided without a score stands at the edge"
    )
    nothing = quality(ReplayedVerdicts((Verdict(False, ""),) * 4, 1.0), HALF)
    assert nothing.precision is None and nothing.error is None and nothing.auc == 0.5


def test_pairs_go_through_json(tmp_path: Path) -> None:
    pair = Pair((1, 2, 3, 4), Step((5, 6), Finish.BOUNDARY), Step((7,), Finish.EOS))
    recorder = PairRecorder(ExactVerifier())
    [verdict] = recorder.judge([pair])
    kept = recorder.take([1, 2], Item(7, "?", Task.FREE))
    assert kept["pairs"][0]["context"] == (3, 4) and not recorder.seen
    Store(tmp_path).write("pairs/7.json", kept)
    assert load_pairs(tmp_path) == [SavedPair(AnswerKey(7), pair, verdict.aligned)]
    kept["pairs"][0]["verdict"] = {"aligned": "yes"}
    Store(tmp_path).write("pairs/7.json", kept)
    with pytest.raises(SettingError, match=r"7\.json has a damaged pair"):
        load_pairs(tmp_path)
    assert swapped([pair])[0].draft == pair.target


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Eight problems with a verifier that accepts too much, pairs kept, and plainly."""
    folder = tmp_path_factory.mktemp("runs")
    words = ["run", "--dataset", "tiny:8", "--concurrency", "8"]
    loose = [
        "--mode",
        "lr",
        "--verifier",
        "random:0.8",
        "--save_pairs",
        "--save_traces",
    ]
    assert main([*words, *loose, "--output", str(folder / "lr")]) == 0
    assert main([*words, "--output", str(folder / "ar")]) == 0
    return {"lr": folder / "lr", "ar": folder / "ar"}


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Reasoner]:
    with Reasoner("tiny-target", None) as made:
        yield made


def test_every_judged_pair_is_kept(runs: dict[str, Path]) -> None:
    pairs = load_pairs(runs["lr"])
    results = {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in runs["lr"].glob("[0-9].json")
    }
    for name, record in results.items():
        mine = [one for one in pairs if one.key.file == name]
        prompt = record["full_tokens"][
            : len(record["full_tokens"]) - len(record["generation_tokens"])
        ]
        assert len(mine) >= record["stats"]["judged"] > 0
        assert all(list(one.pair.prefix[: len(prompt)]) == prompt for one in mine), (
            "pairs of one problem stay together"
        )
        trace = read_trace(runs["lr"] / "traces" / f"{name}l")
        assert (
            trace.complete
            and asdict(trace.stats)["judged"] == record["stats"]["judged"]
        )
    with pytest.raises(SettingError, match="--save_pairs"):
        load_pairs(runs["ar"])


def test_a_replay_says_what_the_verifier_says(runs: dict[str, Path]) -> None:
    class Long(Verifier):
        name = "long"

        def judge(self, pairs: list[Pair]) -> list[Verdict]:
            return [
                Verdict(len(pair.draft.tokens) > 15, "", float(len(pair.draft.tokens)))
                for pair in pairs
            ]

    pairs = [one.pair for one in load_pairs(runs["lr"])]
    made = replay(Long(), pairs, batch=3)
    assert made.scores == [float(len(pair.draft.tokens)) for pair in pairs]
    assert made.seconds > 0
    with pytest.raises(SettingError, match="some pairs have none"):
        replay(Long(), [Pair((1,), Step((2,), Finish.BOUNDARY))])


def test_verify(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "verify",
        str(runs["lr"]),
        "--verifier",
        "oracle",
        "exact",
        "--json",
        str(tmp_path / "v.json"),
    ]
    assert main([*words, "--figure", str(tmp_path / "v.png")]) == 0
    assert "oracle" in capsys.readouterr().out
    found = json.loads((tmp_path / "v.json").read_text(encoding="utf-8"))
    assert (
        found["oracle"]["precision"] == found["oracle"]["recall"] == 1.0
        and found["oracle"]["order_flips"] == 0.0
    )
    assert found["exact"]["accepted"] < found["oracle"]["accepted"] < 1
    assert (tmp_path / "v.svg").stat().st_size > 1000
    assert main(["verify", str(tmp_path)]) == 2
