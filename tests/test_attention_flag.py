"""`--attention` and `lr info`: what is asked for is used, what cannot run is refused
before anything is answered.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lr.commands.cli import main
from lr.commands.info import attention_lines
from lr.errors import SettingError
from lr.model.attention import REFERENCE, SDPA
from lr.reasoner import Reasoner

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
needs_no_cuda = pytest.mark.skipif(
    torch.cuda.is_available(), reason="says what happens where there is no CUDA"
)


@needs_no_cuda
def test_info_says_what_is_taken_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "attention on cpu, float32" in out
    assert "triton no: it needs a device of type cuda" in out
    assert "sdpa   taken\n" in out
    assert "CUDA graphs: none, there is no CUDA here (models run on cpu)\n" in out


def test_info_where_several_kinds_work(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        ("other", "no block_table"),
        ("triton", replace(SDPA, name="triton")),
        ("sdpa", SDPA),
    ]
    monkeypatch.setattr("lr.model.attention_choice.candidates", lambda needs: found)
    assert attention_lines(torch.device("cpu"))[1:] == [
        "  other  no: no block_table",
        "  triton taken",
        "  sdpa   works, but another comes first",
    ]


def test_info_says_which_kernels_are_taken_on_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lr.model.attention_choice.candidates", lambda needs: [])
    monkeypatch.setattr("lr.model.attention_choice.find_kernels", lambda needs: "")
    assert attention_lines(torch.device("cuda"))[1:] == [
        "  fused kernels of the layers: taken",
    ]


@needs_no_cuda
def test_what_cannot_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--mode", "ar", "--attention", "triton", "--device", "cpu"]
    assert main(["generate", QUESTION, *flags]) == 2
    error = capsys.readouterr().err
    assert (
        "attention 'triton' cannot be used on cpu with float32: it needs a device of type cuda"
        in error
    )
    assert "Traceback" not in error


def test_the_plan_carries_the_attention_to_wherever_the_model_is() -> None:
    with Reasoner() as reasoner:
        expected = reasoner.generate(QUESTION, seed=3)
        for name, kind in (("reference", REFERENCE), ("sdpa", SDPA)):
            reasoner.use_attention(name)
            run = reasoner.run(QUESTION, seed=3)
            models = reasoner.models
            assert models.draft is not None
            assert models.target.attention is models.draft.attention is kind
            assert run.finish().text == expected.text
        with pytest.raises(SettingError, match="attention is 'quick', expected auto"):
            reasoner.use_attention("quick")
