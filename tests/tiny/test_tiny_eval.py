"""The command that measures the tiny models."""

from __future__ import annotations

import pytest

from lr.commands.cli import main


def test_the_tiny_models_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "eval", "--problems", "1"]) == 0
    shown = capsys.readouterr().out
    assert "Accuracy: target" in shown and "step acceptance" in shown
