"""The evaluation of verifiers on numbers by hand and on pairs that a run has saved."""

import json
import math
from dataclasses import replace

import pytest

from lr.commands.cli import main
from lr.errors import SettingError
from lr.measure.datasets import Item, Task
from lr.measure.store import Store
from lr.measure.verifier_eval import (
    BATCH,
    PairRecorder,
    ReplayedVerdicts,
    auc,
    curve,
    load_pairs,
    pair_lines,
    quality,
    replay,
    swapped,
)
from lr.spec.verifiers.base import ExactVerifier, Pair
from lr.spec.verifiers.named import LikelihoodVerifier
from lr.types import Finish, Step, Verdict

HALF = [True, False, True, False]
PAIR = Pair((1, 2, 3, 4), Step((5, 6), Finish.BOUNDARY), Step((7,), Finish.EOS))


def test_curves_by_hand():
    points = curve([3.0, 2.0, 1.0], [True, False, True])
    rates = [(p.true_rate, p.false_rate) for p in points]
    assert rates == [(0.5, 0.0), (0.5, 1.0), (1.0, 1.0)]
    assert [p.error for p in points] == [0.0, 0.5, pytest.approx(1 / 3)]
    assert auc([3.0, 2.0, 1.0], [True, False, True]) == 0.5
    assert auc([4.0, 3.0, 2.0, 1.0], [True, True, False, False]) == 1.0
    assert auc([1.0] * 4, HALF) == 0.5, "ties count half"
    assert math.isnan(auc([1.0, 2.0], [True, True]))


def verdicts(*scores):
    return ReplayedVerdicts(tuple(Verdict(s >= 0.5, "", s) for s in scores), 0.4)


def test_quality_by_hand():
    numbers = quality(verdicts(0.9, 0.8, 0.2, 0.1), HALF, verdicts(0.9, 0.4, 0.2, 0.1))
    assert (numbers.accepted, numbers.recall, numbers.error) == (0.5, 0.5, 0.5)
    assert numbers.ms_per_pair == pytest.approx(100) and numbers.order_flips == 0.25
    nothing = quality(verdicts(0.0, 0.0, 0.0, 0.0), HALF)
    assert nothing.error is None and nothing.recall == 0 and nothing.auc == 0.5


def test_pairs_go_through_json(tmp_path):
    recorder = PairRecorder(ExactVerifier())
    [verdict] = recorder.judge([PAIR])
    taken = recorder.take([1, 2], Item(7, "?", Task.FREE), str)
    assert not recorder.seen
    store = Store(tmp_path)
    store.write("7.json", {})
    store.write_lines("pairs/7.jsonl", pair_lines(taken))
    [saved] = load_pairs(tmp_path)
    assert saved.problem == 7
    assert saved.pair() == PAIR and saved.verdict == verdict
    odd = replace(saved, draft_text="one\u2028step\x85\n\n")
    store.write_lines("pairs/7.jsonl", pair_lines([odd, saved]))
    assert load_pairs(tmp_path) == [odd, saved]
    with pytest.raises(SettingError, match="pairs"):
        load_pairs(tmp_path / "nowhere")
    assert swapped([PAIR])[0].draft_step == PAIR.own_step


def test_a_replay_needs_what_its_verifier_asks_for():
    assert len(replay(ExactVerifier(), [PAIR] * (BATCH + 1)).verdicts) == BATCH + 1
    with pytest.raises(SettingError, match="own_step"):
        replay(ExactVerifier(), [Pair((1,), PAIR.draft_step)])
    with pytest.raises(SettingError, match="logprobs"):
        replay(LikelihoodVerifier(), [PAIR])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Eight problems with a verifier that accepts too much."""
    folder = tmp_path_factory.mktemp("run")
    words = "run --dataset tiny:8 --concurrency 8 --mode lr --verifier random:0.8"
    assert main([*words.split(), "--save_pairs", "--output", str(folder)]) == 0
    return folder


def test_every_judged_pair_is_saved_with_its_answer(run):
    prefixes = [list(pair.context) for pair in load_pairs(run)]
    for number in range(8):
        record = json.loads((run / f"{number}.json").read_text())
        size = len(record["full_tokens"]) - len(record["generation_tokens"])
        prompt = record["full_tokens"][:size]
        count = sum(prefix[:size] == prompt for prefix in prefixes)
        assert count >= record["stats"]["judged"] > 0


def test_verify_against_the_oracle(run, tmp_path, cli):
    words = f"verify {run} --verifiers oracle exact --json {tmp_path}/v.json"
    cli(f"{words} --figure {tmp_path}/v.png")
    numbers = json.loads((tmp_path / "v.json").read_text())
    oracle, exact = numbers["oracle"], numbers["exact"]
    assert oracle["error"] == oracle["order_flips"] == 0 and oracle["recall"] == 1
    assert exact["accepted"] < oracle["accepted"] < 1
    assert (tmp_path / "v.svg").stat().st_size > 1000


def test_a_readers_labels_are_the_truth(run, tmp_path, cli):
    sheet = tmp_path / "sheet.jsonl"
    cli(f"verify {run} --sheet {sheet} --pairs_in_sheet 6")
    lines = [json.loads(line) for line in sheet.read_text().splitlines()]
    assert len(lines) == 6 and all(line["label"] is None for line in lines)
    assert all(line["draft_text"] and line["logprobs"] for line in lines)
    labelled = [line | {"label": number < 3} for number, line in enumerate(lines)]
    sheet.write_text("\n".join(map(json.dumps, [*labelled[:5], lines[5]])))
    assert "1 of 6 pairs have no label" in cli(f"verify {sheet}", 2).err
    sheet.write_text("\n".join(map(json.dumps, labelled)))
    cli(f"verify {sheet} --verifiers always never --json {tmp_path}/v.json")
    numbers = json.loads((tmp_path / "v.json").read_text())
    assert numbers["always"]["error"] == 0.5 and numbers["never"]["recall"] == 0


def test_pairs_of_other_models_are_refused_by_name(run, tmp_path, cli):
    pairs = [replace(pair, context=(1249,)) for pair in load_pairs(run)]
    Store(tmp_path).write_lines("pairs.jsonl", pair_lines(pairs))
    assert "token 1249" in cli(f"verify {tmp_path}/pairs.jsonl", 2).err


def test_a_step_that_no_model_drew_has_no_signals_of_the_draft(run, tmp_path, cli):
    [first, *others] = load_pairs(run)
    lines = pair_lines([replace(first, draft_logprobs=()), *others])
    Store(tmp_path).write_lines("pairs.jsonl", lines)
    fit = f"verify {tmp_path}/pairs.jsonl --fit {tmp_path}/fit.json"
    assert "begin with draft_" in cli(fit, 2).err
    cli(f"{fit} --wrong 0.9 --signals target_root length")


@pytest.mark.parametrize(
    "content",
    [
        '{"context": [2]}',
        '{"context": "abc"}',
        "5",
        "[" * 100_000,
    ],
)
def test_damaged_pairs_are_refused(tmp_path, content):
    (tmp_path / "run" / "pairs").mkdir(parents=True)
    tmp_path.joinpath("run", "0.json").write_text("{}")
    tmp_path.joinpath("run", "pairs", "0.jsonl").write_text(content)
    tmp_path.joinpath("sheet.jsonl").write_text(content)
    for name in ("run", "sheet.jsonl"):
        with pytest.raises(SettingError, match="damaged"):
            load_pairs(tmp_path / name)
