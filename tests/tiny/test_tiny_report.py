"""The arithmetic of the report."""

from __future__ import annotations

import math

import pytest

from lr.errors import SettingError
from lr.tiny.evaluate import EvalSettings, LayerSkipped, StepSums, TinyReport


def test_tallies_add_up_and_become_rates() -> None:
    goal = StepSums(steps=2, accepted=2, exact=1, tokens=20, positions=20, overlap=15.0)
    operation = StepSums(steps=6, accepted=3, tokens=140, positions=180, overlap=105.0)
    ablation = (LayerSkipped(None, 0.5, 0.36), LayerSkipped(0, 0.25, 1.5))
    report = TinyReport(2, 0.6, 2, 1, {"operation": operation, "goal": goal}, ablation)
    rates = report.total.rates()
    assert rates["step acceptance"] == pytest.approx(5 / 8)
    assert rates["exact text"] == pytest.approx(1 / 8)
    assert rates["token acceptance"] == pytest.approx(120 / 200)
    assert rates["tokens per target step"] == pytest.approx(20)
    table = report.table()
    assert "| step acceptance | 0.625 | 1.000 | 0.500 |" in table
    assert "target 1.000 (2/2), draft 0.500 (1/2)" in table
    assert "| layer left out | none | 0 |" in table
    assert (
        "| accuracy | 0.50 | 0.25 |" in table
        and "| loss per token | 0.360 | 1.500 |" in table
    )


def test_nothing_counted_is_not_a_number() -> None:
    assert all(math.isnan(rate) for rate in StepSums().rates().values())


def test_impossible_settings() -> None:
    with pytest.raises(SettingError, match="problems is 0"):
        EvalSettings(problems=0)
