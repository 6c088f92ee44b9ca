"""The question that is asked when nobody asks one shows a rejection, everywhere."""

import sys

import pytest

from lr.commands.options import ModelChoice
from lr.lookahead import main as page_main
from lr.options import GenerateOptions
from lr.reasoner import Reasoner
from lr.registry import SAMPLE_QUESTION
from lr.types import Origin


@pytest.mark.usefixtures("whole_targets")
@pytest.mark.parametrize(
    "verifier, options",
    [("oracle", {}), ("judge", {"mode": "lr+sd"}), ("oracle", {"schedule": "sync"})],
)
def test_the_draft_is_wrong_once_and_the_target_corrects_it(verifier, options):
    result = Reasoner("tiny-target", "tiny-draft", verifier).generate(
        SAMPLE_QUESTION, **options
    )
    (correction,) = (step for step in result.steps if step.origin is Origin.CORRECTION)
    # A reader sees who is wrong: the question says "17 fewer".
    assert "more" in correction.rejected
    assert "more" not in correction.text
    assert result.answer == "7"


@pytest.mark.usefixtures("whole_targets")
def test_the_page_shows_a_correction_by_default(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lookahead"])
    page_main()
    shown = capsys.readouterr().out
    assert "rejected  I read that Hana holds 17 more" in shown
    assert "correction  Next Hana has 17 fewer" in shown


def test_every_command_without_a_question_asks_this_one():
    assert ModelChoice().question(None) == SAMPLE_QUESTION
    assert GenerateOptions().seed == 0


@pytest.mark.parametrize(
    "flags, noun",
    [
        (["What is the capital of France?"], "At first"),
        (["--schedule", "asink"], "depth (asynchronous"),
        (["--depth", "0"], "depth is 0"),
        (["--verifier", "oracel"], "verifier"),
    ],
)
def test_the_page_refuses_in_a_sentence(flags, noun, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lookahead", *flags])
    with pytest.raises(SystemExit):
        page_main()
    refusal = capsys.readouterr().err
    assert noun in refusal and "Traceback" not in refusal
