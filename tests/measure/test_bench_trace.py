"""The command that measures what a trace costs: it runs, and says for each way how many
times as long the answers take.
"""

from __future__ import annotations

import pytest

from lr.commands.cli import main


@pytest.mark.usefixtures("short_answers")
def test_what_a_trace_costs_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "bench",
        "trace",
        "--modes",
        "sd",
        "--problems",
        "1",
        "--repeats",
        "2",
        "--no-overlapped",
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "sd" in shown and "events/token" in shown


def test_impossible_measurements_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "trace", "--problems", "1", "--repeats", "1"]) == 2
    assert "two turns" in capsys.readouterr().err
