"""Traces of models: their statistics are the run's, they tell every token, and the
same answer comes again.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from reasoner_kit import write_checkpoint

from lr.commands.answer import saving
from lr.commands.cli import main
from lr.reasoner import Reasoner
from lr.spec.protocol import Emit
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.trace import STATISTICS, stats_of
from lr.types import Verdict
from lr.watch.trace.file import (
    TraceError,
    TraceFile,
    parse_trace,
    read_trace,
    trace_lines,
)
from lr.watch.trace.replay import replay, save_trace, trace_of
from lr.watch.trace.state import state_at

QUESTION = "At first Ann has 7 coins. How many coins does Ann have?"
SHORT: dict[str, Any] = {
    "max_tokens": 40,
    "segmenter": "fixed",
    "segment_tokens": 4,
    "depth": 3,
}
MODES: dict[str, dict[str, Any]] = {
    "ar": {"mode": "ar"},
    "sd": {"mode": "sd"},
    "match": {"mode": "sd", "acceptance": "match", "drafter": "ngram"},
    "tree": {"mode": "sd", "drafter": "tree"},
    "lr": {"mode": "lr"},
    "wide": {"mode": "lr", "width": 2, "schedule": "sync"},
    "lr+sd": {"mode": "lr+sd", "width": 2, "acceptance": "block"},
}


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reasoner]:
    folder = tmp_path_factory.mktemp("checkpoints")
    target = write_checkpoint(folder / "t", seed=1)
    draft = write_checkpoint(folder / "d", seed=2)
    with Reasoner(target, draft, "random:0.6") as reasoner:
        yield reasoner


def traced(reasoner: Reasoner, **options: Any) -> TraceFile:
    run = reasoner.run(QUESTION, detailed=True, **SHORT, **options)
    stats = run.finish().stats
    trace = trace_of(run)
    read = parse_trace(list(trace_lines(trace.header, trace.records)))
    assert read.stats == stats == stats_of(run.trace.events)
    return read


@pytest.mark.parametrize("mode", MODES)
def test_a_trace_tells_every_token_and_its_answer_comes_again(
    reasoner: Reasoner, mode: str
) -> None:
    trace = traced(reasoner, **MODES[mode])
    state = state_at(trace, len(trace.records))
    assert state.done
    tokens = [token for step in state.emitted for token in step.step.tokens]
    assert len(tokens) == trace.stats.tokens > 0
    assert all(token.source for token in tokens)
    assert set(state.caches) == set(trace.header.caches)
    assert all(not cache.branches for cache in state.caches.values())
    assert replay(trace) is None


def test_an_overlapped_trace_has_the_events_of_both_processes(
    reasoner: Reasoner,
) -> None:
    trace = traced(reasoner, mode="lr", driver="overlapped")
    times = [record.time for record in trace.records]
    assert times == sorted(times)
    tokens = {record.data["role"] for record in trace.records if record.kind == "token"}
    caches = {record.data["cache"] for record in trace.records if record.kind == "grow"}
    assert tokens == caches == {"draft", "target"}
    assert replay(trace) is None


def test_a_round_says_why(reasoner: Reasoner) -> None:
    trace = traced(reasoner, mode="sd")
    rounds = [record.data for record in trace.records if record.kind == "round"]
    assert rounds
    for data in rounds:
        draft_tokens = data["detail"]["draft_tokens"]
        for token in draft_tokens:
            if token["accept"] is not None:
                assert token["accept"] == pytest.approx(min(1, token["p"] / token["q"]))
            if token["kept"] is not None:
                assert token["kept"] == (token["uniform"] <= token["accept"])
        fates = [token["kept"] for token in draft_tokens]
        assert data["accepted"] == fates.count(True)
        assert data["detail"]["residual"] == (False in fates)


def test_the_first_different_step_is_named(reasoner: Reasoner) -> None:
    trace = traced(reasoner, mode="lr")
    records = list(trace.records)
    number = max(r.number for r in records if r.kind == "emit")
    event = records[number].event
    assert isinstance(event, Emit)
    step = dataclasses.replace(event.emitted.step, tokens=(1, 2))
    emitted = dataclasses.replace(event.emitted, step=step)
    changed = dataclasses.replace(event, emitted=emitted)
    records[number] = dataclasses.replace(records[number], event=changed)
    found = replay(dataclasses.replace(trace, records=records))
    assert found is not None
    assert f"step {emitted.index}" in found
    # A trace that was cut is compared as far as it goes.
    assert replay(dataclasses.replace(trace, records=records[:number])) is None


def test_an_answer_with_custom_parts_cannot_come_again_by_name(
    reasoner: Reasoner,
) -> None:
    class Moody(Verifier):
        name = "moody"
        requires = Requires.TARGET_STEP

        def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
            return [Verdict(True, "in a good mood") for _ in pairs]

    variant = Variant(verifier=Moody())
    run = reasoner.run(QUESTION, variant=variant, detailed=True, **SHORT)
    run.finish()
    with pytest.raises(TraceError, match="verifier=Moody"):
        replay(trace_of(run))


def test_nothing_but_statistics_without_details(reasoner: Reasoner) -> None:
    run = reasoner.run(QUESTION, mode="lr+sd", **SHORT)
    run.finish()
    assert all(isinstance(event, STATISTICS) for _, event in run.trace.events)


def test_the_command(
    reasoner: Reasoner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = reasoner.run(QUESTION, detailed=True, mode="lr", **SHORT)
    run.finish()
    file = tmp_path / "t.jsonl"
    save_trace(file, run)
    assert main(["trace", str(file), "--replay"]) == 0
    output = capsys.readouterr().out
    assert "depth 3" in output
    assert "same tokens" in output
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(lines[:40]), encoding="utf-8")  # killed while it wrote
    assert main(["trace", str(file), "--replay"]) == 0
    assert "cut" in capsys.readouterr().out
    opened = next(place for place, line in enumerate(lines) if '"open"' in line)
    file.write_text("\n".join(lines[:opened] + lines[opened + 1 :]), encoding="utf-8")
    assert main(["trace", str(file)]) == 2
    assert "missing" in capsys.readouterr().err
    lines[3] = lines[3].replace("event", "even")
    file.write_text("\n".join(lines), encoding="utf-8")
    assert main(["trace", str(file)]) == 2
    assert "line 4" in capsys.readouterr().err


def test_a_failed_run_leaves_its_trace(reasoner: Reasoner, tmp_path: Path) -> None:
    run = reasoner.run(QUESTION, detailed=True, mode="lr", **SHORT)
    file = tmp_path / "t.jsonl"

    def interrupted() -> None:
        with saving(file, run):
            next(iter(run))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    trace = read_trace(file)
    end = trace.records[-1].data
    assert (end["event"], end["done"]) == ("end", False)
    assert "KeyboardInterrupt" in end["why"]
    assert trace.stats == stats_of(run.trace.events)
    assert trace.stats.steps > 0


def test_reading_needs_no_torch() -> None:
    program = (
        "import sys, lr.commands.trace, lr.watch.trace.virtual; "
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
