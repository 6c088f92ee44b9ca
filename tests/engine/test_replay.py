"""Traces of models: their statistics are the run's, they come again event for event,
and a change is found and named.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from reasoner_kit import write_checkpoint

from lr.commands.cli import main
from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.theory.distributions import Bernoulli, Lognormal
from lr.theory.simulate import ENDLESS, World, simulate
from lr.trace import STATISTICS, ForwardPass, Trace, stats_of
from lr.types import Verdict
from lr.watch.scripted import ScriptedRun, TextScript, shuffled
from lr.watch.trace.compare import Replayed
from lr.watch.trace.file import (
    TraceError,
    TraceFile,
    parse_trace,
    read_trace,
    trace_lines,
)
from lr.watch.trace.replay import (
    recorded_verdicts,
    replay,
    replay_on,
    save_trace,
    trace_of,
)
from lr.watch.trace.state import state_at
from lr.watch.trace.virtual import replay_virtual, scripted_trace, simulated_trace

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
    target, draft = (
        write_checkpoint(folder / name, seed=seed)
        for name, seed in (("t", 1), ("d", 2))
    )
    with Reasoner(target, draft, "random:0.6") as made:
        yield made


def traced(reasoner: Reasoner, **options: Any) -> TraceFile:
    run = reasoner.run(QUESTION, detailed=True, **SHORT, **options)
    stats = run.finish().stats
    trace = trace_of(run)
    read = parse_trace(list(trace_lines(trace.header, trace.records)))
    assert read.stats == stats == stats_of(run.trace.events)
    return read


@pytest.mark.parametrize("mode", MODES)
def test_every_event_comes_again(reasoner: Reasoner, mode: str) -> None:
    trace = traced(reasoner, **MODES[mode])
    outcome = replay(trace)
    assert outcome.difference is None
    assert (outcome.compared, outcome.ordered) == (len(trace.records), True)


@pytest.mark.parametrize("mode", MODES)
def test_the_trace_tells_every_token_of_the_answer(
    reasoner: Reasoner, mode: str
) -> None:
    """Tokens and rounds add up to the steps, every token has a source, and no branch is
    left at the end.
    """
    trace = traced(reasoner, **MODES[mode])
    state = state_at(trace, len(trace.records))
    assert state.done
    tokens = [one for step in state.emitted for one in step.step.tokens]
    assert len(tokens) == trace.stats.tokens > 0
    assert all(one.source for one in tokens)
    assert all(not cache.branches for cache in state.caches.values())
    assert set(state.caches) == set(trace.header.caches)
    proposed = sum(one.source == "proposed" for one in tokens)
    assert (proposed > 0) <= mode.endswith(("sd", "match", "tree"))


def test_a_round_says_why(reasoner: Reasoner) -> None:
    trace = traced(reasoner, mode="sd")
    rounds = [record.data for record in trace.records if record.kind == "round"]
    draft_tokens = [
        (one, data) for data in rounds for one in data["detail"]["draft_tokens"]
    ]
    assert draft_tokens
    for one, _ in draft_tokens:
        if one["accept"] is not None:
            assert one["accept"] == pytest.approx(min(1.0, one["p"] / one["q"]))
        assert (one["uniform"] is None) == (one["kept"] is None)
        if one["kept"] is not None:
            assert one["kept"] == (one["uniform"] <= one["accept"])
    for data in rounds:
        assert data["accepted"] == sum(
            one["kept"] is True for one in data["detail"]["draft_tokens"]
        )
        refused = any(one["kept"] is False for one in data["detail"]["draft_tokens"])
        assert data["detail"]["residual"] == refused


def test_overlapped_runs_are_compared_by_their_output(reasoner: Reasoner) -> None:
    trace = traced(reasoner, mode="lr", driver="overlapped")
    times = [record.time for record in trace.records]
    assert times == sorted(times)
    assert {r.data["role"] for r in trace.records if r.kind == "token"} == {
        "draft",
        "target",
    }
    assert {r.data["cache"] for r in trace.records if r.kind == "grow"} == {
        "draft",
        "target",
    }
    outcome = replay(trace)
    assert (outcome.difference, outcome.ordered) == (None, False)


def changed(trace: TraceFile, kind: str, change: Any) -> tuple[TraceFile, int]:
    """The trace with the last event of a kind changed, and the number of that event."""
    number = max(record.number for record in trace.records if record.kind == kind)
    records = [*trace.records]
    records[number] = dataclasses.replace(
        records[number], event=change(records[number].event)
    )
    return dataclasses.replace(trace, records=records), number


def test_the_first_difference_is_named(reasoner: Reasoner) -> None:
    trace = traced(reasoner, mode="lr")

    def other_token(event: Any) -> Any:
        return dataclasses.replace(event, token=event.token - 1 if event.token else 1)

    broken, number = changed(trace, "token", other_token)
    found = replay(broken).difference
    assert found is not None
    assert (found.number, found.key) == (number, "token.token")
    assert found.expected != found.got
    short = dataclasses.replace(trace, records=trace.records[:-1])
    found = replay(short).difference
    assert found is not None
    assert (found.number, found.expected) == (len(trace.records) - 1, None)


def test_a_verifier_that_does_not_say_the_same_twice(reasoner: Reasoner) -> None:
    class Moody(Verifier):
        name = "moody"
        requires = Requires.TARGET_STEP
        asked = 0

        def judge(self, pairs: list[Pair]) -> list[Verdict]:
            Moody.asked += len(pairs)
            return [
                Verdict((Moody.asked + i) % 3 > 0, f"call {Moody.asked}")
                for i in range(len(pairs))
            ]

    run = reasoner.run(
        QUESTION, variant=Variant(verifier=Moody()), detailed=True, **SHORT
    )
    run.finish()
    trace = trace_of(run)
    assert (
        len(recorded_verdicts(trace))
        == sum(record.kind == "judged" for record in trace.records)
        > 2
    )
    with pytest.raises(TraceError, match=r"custom parts \(verifier=Moody\)"):
        replay(trace)
    mended = dataclasses.replace(
        trace, header=dataclasses.replace(trace.header, variant=None, verifier="never")
    )
    assert replay(mended, recorded=True).difference is None
    assert replay(mended).difference is not None


def test_a_run_that_is_not_the_traces(reasoner: Reasoner) -> None:
    trace = traced(reasoner, mode="lr")
    with pytest.raises(SettingError, match="detailed is False, expected True"):
        replay_on(reasoner.run(QUESTION, **SHORT), trace)
    found = replay_on(
        reasoner.run("Another question?", detailed=True, **SHORT), trace
    ).difference
    assert found is not None
    assert "prompt" in found.key


def test_nothing_but_statistics_without_details(reasoner: Reasoner) -> None:
    run = reasoner.run(QUESTION, mode="lr+sd", **SHORT)
    run.finish()
    assert all(isinstance(event, STATISTICS) for _, event in run.trace.events)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_scripts_and_simulations_come_again(schedule: Schedule) -> None:
    config = SchedulerConfig(Limits(100), schedule, depth=3, width=2)
    run = ScriptedRun(
        config, TextScript(["a.", "b.", "c$"], ["A.|x.", "y.|B.", "C$"]), shuffled(5)
    )
    run.run()
    trace = scripted_trace(run)
    assert replay_virtual(trace) == Replayed(len(trace.records), None)
    world = World(
        Bernoulli(0.6), target=Lognormal(1.0, 0.4), draft=Lognormal(0.2, 0.4), seed=3
    )
    trace = simulated_trace(SchedulerConfig(ENDLESS, schedule, depth=3), world, 30)
    outcome = simulate(SchedulerConfig(ENDLESS, schedule, depth=3), world, 30)
    assert (trace.stats.steps, trace.stats.judged) == (outcome.steps, outcome.judged)
    assert max(r.time for r in trace.records if r.kind == "emit") == outcome.seconds
    assert replay_virtual(trace) == Replayed(len(trace.records), None)
    other = dataclasses.replace(
        trace,
        header=dataclasses.replace(
            trace.header, depth=3, options=trace.header.options | {"steps": 29}
        ),
    )
    assert replay_virtual(other).difference is not None


def test_a_simulation_whose_file_still_says_late_drafts() -> None:
    world = World(
        Bernoulli(0.6), target=Lognormal(1.0, 0.4), draft=Lognormal(0.9, 0.4), seed=3
    )
    for late in ("wait", "reject"):
        config = SchedulerConfig(
            ENDLESS, Schedule.DEPTH, 3, reject_late=late == "reject"
        )
        trace = simulated_trace(config, world, 30)
        kept = trace.header.options["config"]
        assert kept.pop("reject_late") == (late == "reject")
        kept["late_drafts"] = late
        assert replay_virtual(trace) == Replayed(len(trace.records), None)


def test_details_do_not_change_the_statistics() -> None:
    plain, detailed = Trace(), Trace(detailed=True)
    config, world = (
        SchedulerConfig(ENDLESS, Schedule.PAPER, depth=3),
        World(Bernoulli(0.6)),
    )
    for trace in (plain, detailed):
        simulate(config, world, 20, trace=trace)
    assert stats_of(plain.events) == stats_of(detailed.events)


def test_the_command(
    reasoner: Reasoner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = reasoner.run(QUESTION, detailed=True, mode="lr", **SHORT)
    run.finish()
    file, lanes = tmp_path / "t.jsonl", tmp_path / "p.json"
    save_trace(file, run)
    assert main(["trace", str(file), "--replay", "--perfetto", str(lanes)]) == 0
    shown = capsys.readouterr().out
    assert "schedule depth · depth 3 · width 1" in shown and "driver lockstep" in shown
    assert "every event, in order, is the same" in shown
    events = json.loads(lanes.read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert sum(event["name"].startswith("forward") for event in spans) == sum(
        isinstance(e, ForwardPass) for _, e in run.trace.events
    )
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(lines[:40]), encoding="utf-8")  # killed while it wrote
    assert main(["trace", str(file), "--replay"]) == 0
    assert "up to where the trace was cut (39 events)" in capsys.readouterr().out
    begun = reasoner.run(QUESTION, detailed=True, mode="lr", **SHORT)
    next(iter(begun))
    save_trace(file, begun, why="KeyboardInterrupt")
    assert main(["trace", str(file), "--replay"]) == 0
    assert "up to where the trace was cut" in capsys.readouterr().out
    assert main(["trace", str(file), "--perfetto", str(file)]) == 2
    assert "another file than the trace itself" in capsys.readouterr().err
    opened = next(place for place, line in enumerate(lines) if '"open"' in line)
    file.write_text("\n".join(lines[:opened] + lines[opened + 1 :]), encoding="utf-8")
    assert main(["trace", str(file)]) == 2
    assert "Lines before it are missing" in capsys.readouterr().err
    lines[3] = lines[3].replace("event", "even")
    file.write_text("\n".join(lines), encoding="utf-8")
    assert main(["trace", str(file)]) == 2
    assert "line 4" in capsys.readouterr().err


def test_lanes_never_overlap(reasoner: Reasoner, tmp_path: Path) -> None:
    from lr.watch.figures.perfetto import perfetto

    world = World(Bernoulli(0.6), target=Lognormal(1.0, 0.4), draft=Lognormal(0.2, 0.4))
    simulated = simulated_trace(SchedulerConfig(ENDLESS, depth=3, width=2), world, 30)
    for trace in (simulated, traced(reasoner, mode="lr", width=2)):
        lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for event in perfetto(trace)["traceEvents"]:
            if event["ph"] == "X":
                lanes.setdefault((event["pid"], event["tid"]), []).append(
                    (event["ts"], event["ts"] + event["dur"])
                )
        assert len(lanes) > 2
        for spans in lanes.values():
            spans.sort()
            assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(spans))


def test_a_failed_run_leaves_its_trace(reasoner: Reasoner, tmp_path: Path) -> None:
    from lr.commands.answer import saving

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
    import subprocess

    program = (
        "import sys, lr.commands.trace, lr.watch.figures.perfetto, lr.watch.trace.virtual; "
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
