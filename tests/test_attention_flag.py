"""`--attention` and `lr info`: what is asked for is used, and what there is is listed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lr.commands.cli import main
from lr.commands.info import attention_lines
from lr.model.attention import REFERENCE, SDPA
from lr.reasoner import Reasoner

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="says what happens where there is no CUDA"
)
def test_info_says_what_is_taken_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "attention on cpu, float32" in out
    assert "triton no" in out
    assert "sdpa   taken\n" in out


def test_info_where_several_kinds_work(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        ("flash", "not installed"),
        ("triton", replace(SDPA, name="triton")),
        ("sdpa", SDPA),
    ]
    monkeypatch.setattr("lr.model.attention_choice.candidates", lambda needs: found)
    verdicts = [
        line.split()[1] for line in list(attention_lines(torch.device("cpu")))[1:]
    ]
    assert verdicts == ["no:", "taken", "works,"]


def test_the_attention_is_chosen_for_both_models() -> None:
    tokens = set()
    for name, kind in (("reference", REFERENCE), ("sdpa", SDPA)):
        with Reasoner(attention=name) as reasoner:
            for model in (reasoner.engine.target, reasoner.engine.draft):
                assert model.attention is kind
            tokens.add(reasoner.generate(QUESTION, seed=3).tokens)
    assert len(tokens) == 1
