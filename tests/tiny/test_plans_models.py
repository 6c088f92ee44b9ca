"""The models of plans: what they can do, and that every door opens on them with the
oracle of their own language.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tiny_training.rows import RESULT_WEIGHT, RowMaker

from lr.commands.cli import main
from lr.commands.run import RunModels
from lr.errors import SettingError
from lr.measure.datasets import Task, load_items
from lr.measure.grading import Grader
from lr.model.codec import Codec
from lr.reasoner import Reasoner
from lr.spec.verifiers.named import VerifierChoice, usual_verifier
from lr.tiny.evaluate import EvalSettings, evaluate
from lr.tiny.grammar import Style
from lr.tiny.language import Split
from lr.tiny.languages import PLANS, QUANTITIES
from lr.tiny.names import companion, language_of
from lr.tiny.plans import ROOMS
from lr.tiny.vocabulary import build_tokenizer


def test_target_and_draft_on_held_out_plans() -> None:
    """The goals are 95 of 100 right and a draft whose steps mean the same half to four
    fifths of the time; 16 problems leave room.
    """
    report = evaluate("plans-target", "plans-draft", EvalSettings(problems=16, seed=2))
    assert report.target_right / report.problems >= 0.9
    assert report.draft_right / report.problems <= 0.75
    rates = report.total.rates()
    assert 0.5 < rates["step acceptance"] < 0.85
    assert rates["target against itself"] > 0.97 and rates["itself, exact text"] < 0.3
    assert "unreadable" not in report.tallies
    with pytest.raises(
        SettingError, match="the data set is 'tiny', expected one of plans"
    ):
        evaluate(
            "plans-target", "plans-draft", EvalSettings(problems=1, dataset="tiny")
        )


def test_a_checkpoint_says_what_it_speaks() -> None:
    assert language_of(Codec.load("plans-target")) is PLANS
    assert language_of(Codec.load("tiny-draft")) is QUANTITIES
    assert usual_verifier(Codec.load("plans-target"), None) == "oracle"
    assert usual_verifier(Codec.load("tiny-target"), None) == "judge"
    assert usual_verifier(Codec.load("plans-target"), "some/judge") == "judge"
    assert companion("plans-target", "draft") == "plans-draft"
    assert (
        companion("plans-target", "judge") is None
        and companion("some/model", "draft") is None
    )
    with pytest.raises(SettingError, match="needs its own checkpoint"):
        VerifierChoice("judge", Codec.load("plans-target"))


@pytest.mark.usefixtures("whole_targets")
def test_the_reasoner_judges_plans_by_their_oracle() -> None:
    what = PLANS.problem(Split.TEST, 2, 0)
    with Reasoner("plans-target", "plans-draft") as reasoner:
        result = reasoner.generate(what.question, temperature=0.0)
    assert result.answer == what.answer
    assert result.stats.judged >= 3 and 0 < (result.stats.step_acceptance or 0) <= 1
    assert [PLANS.parse(step.text) for step in result.steps] == list(what.steps)


def test_plans_as_a_data_set() -> None:
    items = load_items("plans:3")
    what = PLANS.problem(Split.TEST, 1, 0)
    assert (items[1].question, items[1].gold, items[1].task) == (
        what.question,
        what.answer,
        Task.WORD,
    )
    with Grader() as grader:
        grades = [
            grader.grade(items[1], text)
            for text in (f"So \\boxed{{{what.answer}}}.", "So \\boxed{moon}.", "")
        ]
    assert [grade.right for grade in grades] == [True, False, False]
    with pytest.raises(SettingError, match="expected plans:N"):
        load_items("plans:0")


def test_which_models_a_run_takes() -> None:
    chosen, note = RunModels().chosen("plans:20")
    assert (chosen.model, chosen.draft_model, chosen.judge_model) == (
        "plans-target",
        "plans-draft",
        None,
    )
    assert chosen.verifier == "oracle" and note is None
    judged, _ = RunModels(model="plans-target", judge_model="some/judge").chosen(
        "plans:20"
    )
    assert (judged.verifier, judged.judge_model) == ("judge", "some/judge")
    tiny, _ = RunModels().chosen("tiny:20")
    assert (tiny.model, tiny.judge_model, tiny.verifier) == (
        "tiny-target",
        "tiny-judge",
        "judge",
    )


@pytest.mark.usefixtures("whole_targets")
def test_through_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = PLANS.problem(Split.TEST, 2, 0).question
    assert (
        main(["generate", question, "--model", "plans-target", "--temperature", "0"])
        == 0
    )
    said = capsys.readouterr().out
    assert "\\boxed{tower}" in said
    run = [
        "run",
        "--dataset",
        "plans:2",
        "--model",
        "plans-target",
        "--use_spec",
        "--output",
        str(tmp_path / "run"),
    ]
    assert main(run) == 0
    records = [
        json.loads((tmp_path / "run" / f"{i}.json").read_text(encoding="utf-8"))
        for i in range(2)
    ]
    assert [record["question"] for record in records] == [
        item.question for item in load_items("plans:2")
    ]
    assert all(record["right"] for record in records)
    assert (
        json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))[
            "settings"
        ]["verifier"]
        == "oracle"
    )


def test_training_rows_of_plans() -> None:
    """Rooms weigh most, and a drill has its loss on the room that is found."""
    tokenizer = build_tokenizer(PLANS)
    rows = RowMaker(tokenizer, Style.DRAFT, 0, PLANS)
    ids, weights, _ = rows.problem_row(
        PLANS.problem(Split.TRAIN, 3, 0), random.Random(0)
    )
    heavy = {
        tokenizer.decode([token]).strip()
        for token, weight in zip(ids, weights, strict=True)
        if weight == RESULT_WEIGHT
    }
    assert heavy and heavy <= set(ROOMS)
    ids, weights, _ = rows.drill_row(80, random.Random(1))
    assert {
        tokenizer.decode([t]).strip()
        for t, w in zip(ids, weights, strict=True)
        if w == RESULT_WEIGHT
    } <= set(ROOMS)
    assert max(ids) < len(tokenizer) and min(len(ids), 80) == len(ids)
