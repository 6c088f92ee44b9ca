"""Reports: exact numbers from hand-made runs, refusals, the official tool's folders,
and the intervals."""

import json
from pathlib import Path

import pytest

from lr.errors import SettingError
from lr.measure.grading import Grader
from lr.measure.report import RunResults, accuracy, markdown, read_run, summarise
from lr.measure.store import AnswerKey, Store

SETTINGS = {"data": "d", "seed": 0, "temperature": 0.6, "model": "m"}


def record(tokens, seconds, right=True, **changes):
    return {
        "generation_tokens": [1] * tokens,
        "time_taken": seconds,
        "speed": tokens / seconds,
        "right": right,
        "answer": "1",
        **changes,
    }


def run_of(mode, *records, **settings):
    keys = {
        AnswerKey(number): answer | {"mode": mode}
        for number, answer in enumerate(records)
    }
    return RunResults(Path(mode), keys, SETTINGS | settings, ("cpu",))


def test_numbers_by_hand():
    base = run_of("ar", record(100, 10.0), record(300, 10.0, False))
    stats = {
        "accepted": 3,
        "judged": 4,
        "target_passes": 20,
        "tokens": 180,
        "target_tokens": 100,
        "wasted_target_tokens": 25,
    }
    rounds = {"rounds": {"accepted": 1, "drafted": 4}}
    ours = run_of(
        "lr",
        record(60, 2.0, stats=stats),
        record(120, 4.0, stats=stats | rounds, unjudged={"the server is gone": 2}),
    )
    summary = summarise(ours, base)
    expected = {
        "right": 1.0,
        "tokens/s": 30.0,
        "speedup": 1.5,  # 30 tokens/s against 20
        "steps kept": 0.75,
        "tokens kept": 0.25,
        "tokens/pass": 360 / 40,
        "tokens": 180,
        "length": 180 / 400,
        "wasted": 0.25,
        "lost": 0,
        "won": 1,
        "p": 1.0,
    }
    assert {head: summary.row[head] for head in expected} == pytest.approx(expected)
    shown = "\n".join(markdown([summary.row], [summary]))
    assert "shorter" in shown, "shorter answers look faster"
    assert "the server is gone" in shown


def test_only_common_answers_are_paired():
    base = run_of("ar", record(100, 10.0), record(100, 10.0), record(1, 1000.0))
    ours = run_of("lr", record(100, 5.0), record(100, 5.0))
    assert summarise(ours, base).row["speedup"] == 2.0
    with pytest.raises(SettingError, match="common"):
        summarise(ours, RunResults(Path("ar"), {AnswerKey(9): record(1, 1.0)}))


@pytest.mark.parametrize(
    "change",
    [
        {"data": "e"},
        {"model": "other"},
        {"max_tokens": 50},
        {"enable_thinking": False},
        {"system": "Be brief."},
    ],
)
def test_runs_with_other_data_or_sampling_are_refused(change):
    base = run_of("ar", record(10, 1.0))
    with pytest.raises(SettingError, match=next(iter(change))):
        summarise(run_of("lr", record(10, 1.0), **change), base)
    alone = run_of("draft", record(10, 1.0), model="other")
    assert summarise(alone, base).row["speedup"] == 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "int8"},
        {"concurrency": 8},
        {"lr": "0.0.9"},
        {"content of m": "0badc0de"},
    ],
)
def test_what_differs_besides_the_method_is_told(change):
    base = run_of("ar", record(10, 1.0), **{"content of m": "5eed5eed"})
    ours = {"content of m": "5eed5eed", "depth": 2, "verifier": "exact"}
    alike = summarise(run_of("lr", record(10, 1.0), **ours), base)
    assert not alike.facts, "they differ in the method alone"
    unlike = summarise(run_of("lr", record(10, 1.0), **ours | change), base)
    assert any(next(iter(change)) in fact for fact in unlike.facts)


def test_an_unfinished_run_and_another_machine_are_told(tmp_path):
    settings = {"settings": SETTINGS, "devices": ["cuda:0"]}
    with Grader() as grader:
        runs = []
        for count, card in ((2, "H100"), (1, "A100")):
            head = settings | {"conditions": {"card": card, "torch": "2.11"}}
            with Store.open(tmp_path / card, head) as store:
                for number in range(count):
                    store.write(f"{number}.json", record(10, 1.0))
            runs.append(read_run(tmp_path / card, grader))
    summaries = [summarise(run, runs[0]) for run in runs]
    shown = "\n".join(markdown([s.row for s in summaries], summaries))
    assert "H100" in shown and "A100" in shown, "one name, cuda:0, and two cards"
    assert "only 1 answer" in shown


def test_the_official_tools_folder(tmp_path):
    prompt = "What? Put it within \\boxed{{}}.\n"
    answers = {"204": "so $\\boxed{\\frac{408}{2}}$", "73": "\\boxed{74}", "5": ""}
    for number, (gold, text) in enumerate(answers.items()):
        content = record(50, 2.0) | {
            "target_prompt": prompt,
            "full_text": prompt + text,
        }
        del content["right"], content["answer"]
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(content | {"gold": gold}), "utf-8")
    with Grader() as grader:
        summary = summarise(read_run(tmp_path, grader))
        for folder in (tmp_path / "nowhere", tmp_path.parent):
            with pytest.raises(SettingError):
                read_run(folder, grader)
    assert summary.row["right"] == pytest.approx(1 / 3)
    # the prompt's own box does not count
    assert any("in 1 of 3" in fact for fact in summary.facts)


def test_the_command_prints_and_writes_json(tmp_path, cli):
    for mode, seconds in (("ar", 2.0), ("lr", 1.0)):
        with Store.open(tmp_path / mode, {"settings": SETTINGS}) as store:
            for number in range(8):
                answer = record(10 + number, seconds, mode=mode)
                store.write(f"{number}.json", answer)
    words = f"report {tmp_path}/lr {tmp_path}/ar"
    assert "2.00" in cli(f"{words} --json {tmp_path}/r.json").out
    [row, _] = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert row["speedup"] == pytest.approx(2.0)
    assert row["speedup, 95 %"] == row["middle half"] == pytest.approx([2.0, 2.0])
    cli(f"{words} --baseline sd", 2)


def test_one_sample_per_problem_has_wilsons_interval():
    mean, interval = accuracy([[True]] * 9 + [[False]])
    assert mean == 0.9 and interval == pytest.approx((0.5958, 0.9821), abs=1e-4)


def test_bootstrap_intervals():
    """The interval of a mean of 100 fair coins has about the width that theory gives
    (2 * 1.96 * 0.05 = 0.196), and problems are what is drawn."""
    grades = [[bool(i % 2)] * 4 for i in range(100)]
    mean, (low, high) = accuracy(grades)
    assert mean == 0.5 and 0.17 < high - low < 0.23
    assert accuracy(grades) == accuracy(grades)
