"""`--attention` and `lr info`: what is asked for is used, and what there is is listed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_kit import FUNCTIONS, fake_flash_attention, needs_triton

from lr.commands.cli import main
from lr.commands.info import attention_lines
from lr.commands.options import DeviceOptions
from lr.model.attention import REFERENCE, SDPA
from lr.reasoner import Reasoner

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
LABELS = [*FUNCTIONS, "triton", "sdpa"]


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="says what happens where there is no CUDA"
)
def test_info_says_what_is_taken_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "attention on cpu, float32" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["triton", "no:"] in [words[:2] for words in lines]
    assert ["sdpa", "taken"] in lines


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


@needs_triton
@pytest.mark.parametrize("taken", [*FUNCTIONS, "triton"])
def test_info_names_each_package_of_flash_attention(
    taken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine that has one of them, whose trial is left out."""
    fake_flash_attention(monkeypatch, {taken: print} if taken in FUNCTIONS else {})
    monkeypatch.setattr("lr.model.attention_choice.trial", lambda kind, needs: "")
    monkeypatch.setattr(
        DeviceOptions, "torch_device", lambda self: torch.device("cuda")
    )
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    lines = [line.split(maxsplit=2) for line in out.splitlines()]
    verdicts = {words[0]: words[1:] for words in lines if words[0] in LABELS}
    assert [*verdicts] == LABELS
    assert [label for label in LABELS if verdicts[label][0] == "taken,"] == [taken]
    for package in FUNCTIONS:
        if package != taken:
            assert verdicts[package][0] == "no:"
            assert "flash_attn" in verdicts[package][1]


def test_the_attention_is_chosen_for_both_models() -> None:
    tokens = set()
    for name, kind in (("reference", REFERENCE), ("sdpa", SDPA)):
        with Reasoner(attention=name) as reasoner:
            for model in (reasoner.engine.target, reasoner.engine.draft):
                assert model.attention is kind
            tokens.add(reasoner.generate(QUESTION, seed=3).tokens)
    assert len(tokens) == 1
