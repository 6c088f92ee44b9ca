"""The recorded answers of real models can be read and played."""

from pathlib import Path

import pytest

from lr.commands.cli import main
from lr.watch.recorded import RECORDED, recorded_path
from lr.watch.trace.file import read_trace


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_answer_plays(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = read_trace(recorded_path(name))
    assert trace.complete and "qwen" in str(trace.header.models["target"])
    assert main(["play", name]) == 0
    assert Path(f"{name}.html").stat().st_size > 10_000
