"""The recorded answers of real models can be read and played."""

from pathlib import Path

import pytest

from lr.watch.recorded import RECORDED, recorded_path
from lr.watch.trace.file import read_trace


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_answer_plays(name, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    trace = read_trace(recorded_path(name))
    assert trace.complete and "qwen" in str(trace.header.models["target"])
    cli(f"play {name}")
    assert Path(f"{name}.html").stat().st_size > 10_000
