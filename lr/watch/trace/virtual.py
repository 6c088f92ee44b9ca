"""Traces of runs without models: scripted runs, where a turn takes a time of 1, and
simulated runs on the clock of the simulation; and their replay, event for event, times
included.

    run = ScriptedRun(config, TextScript(["a.", "b$"], ["A.", "C."]))
    run.run()
    trace = scripted_trace(run)

    trace = simulated_trace(config, world, steps=40)

Viewers treat them like traces of models; they only lack tokens, forwards and caches. A
replay needs a script written as texts, or a world made of `theory/distributions.py`.
Without torch."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from lr import __version__
from lr.spec import protocol
from lr.spec.protocol import (
    Drafted,
    Judged,
    Limits,
    SchedulerConfig,
    Targeted,
    Work,
    WorkKind,
)
from lr.theory import distributions
from lr.theory.simulate import World, record_event, simulate
from lr.trace import Ended, Trace
from lr.watch.scripted import ScriptedRun, TextScript
from lr.watch.trace.compare import Replayed, compare_in_order
from lr.watch.trace.file import (
    Bytes,
    Header,
    TraceError,
    TraceFile,
    no_bytes,
    records_of,
)

_LENGTHS = (distributions.Constant, distributions.Lognormal, distributions.Resampled)
_DRAWS = (
    distributions.Bernoulli,
    distributions.BetaSiblings,
    distributions.JudgeErrors,
)
_RUNS = (
    World,
    TextScript,
    SchedulerConfig,
    Limits,
    protocol.FirstAligned,
    distributions.Replay,
)
_MADE: dict[str, Any] = {made.__name__: made for made in (*_RUNS, *_LENGTHS, *_DRAWS)}
_ENDS = {Drafted: WorkKind.DRAFT, Targeted: WorkKind.TARGET, Judged: WorkKind.JUDGE}


def letters(token: int) -> bytes:
    """The text of a token of a `TextScript`, where a token is a character."""
    return chr(token).encode()


def scripted_trace(run: ScriptedRun, token_bytes: Bytes = letters) -> TraceFile:
    """The trace of a scripted run so far. Turn n (the start is turn 0) has the time
    n."""
    trace = Trace(clock=lambda: 0.0, detailed=True)
    for number, turn in enumerate(run.turns):
        trace.start = -float(number)
        if turn.event is not None:
            record_event(trace.record, turn.event)
        for command in turn.commands:
            trace.record(command)
    if run.done:
        trace.record(Ended(done=True))
    header = _header(
        "scripted", "turn", run.scheduler.config, {"script": plain(run.script)}
    )
    return TraceFile(header, records_of(trace.events, token_bytes))


def simulated_trace(config: SchedulerConfig, world: World, steps: int) -> TraceFile:
    """The trace of a simulation of `steps` steps."""
    trace = Trace(detailed=True)
    done = simulate(config, world, steps, trace=trace).steps == steps
    trace.record(Ended(done, "" if done else "the limits were reached"))
    header = _header(
        "simulated", "target step", config, {"world": plain(world), "steps": steps}
    )
    return TraceFile(header, records_of(trace.events, no_bytes))


def _header(
    driver: Any, unit: str, config: SchedulerConfig, options: dict[str, Any]
) -> Header:
    return Header(
        driver, "virtual", unit, lr=__version__, options=options | {"config": plain(config)},
        schedule=config.schedule.value, depth=config.depth, width=config.width,
        max_target_rows=config.max_target_rows,
    )  # fmt: skip


def replay_virtual(trace: TraceFile) -> Replayed:
    """Run a trace again, a scripted one by its own turns. Raises `TraceError` if that
    fails."""
    header, records = trace.header, trace.records
    options, config = header.options, _built(header.options.get("config"))
    if header.driver == "simulated":
        again = simulated_trace(config, _built(options.get("world")), options["steps"])
    elif header.driver == "scripted":
        run = ScriptedRun(config, _built(options.get("script")))
        for event in (record.event for record in records):
            if isinstance(event, Drafted | Targeted | Judged):
                work = Work(_ENDS[type(event)], event.node)
                if work not in run.work:
                    break  # the comparison will report the difference
                run.step(work)
        again = scripted_trace(run)
    else:
        raise TraceError("this trace is of models; see lr.watch.trace.replay.")
    found = compare_in_order(records, again.records, whole=True, virtual=True)
    return Replayed(len(again.records) if found is None else found.number, found)


def plain(value: Any) -> Any:
    """Data as JSON. An object becomes its class name and fields: Constant(0.1) is
    {"is": "Constant", "value": 0.1}."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        named = {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        return {"is": type(value).__name__} | named
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    known = value is None or isinstance(value, str | int | float | bool)
    return value if known else type(value).__name__


def _built(value: Any) -> Any:
    """The inverse of `plain`."""
    if isinstance(value, list):
        return tuple(map(_built, value))
    if not isinstance(value, dict):
        return value
    content = {name: _built(one) for name, one in value.items() if name != "is"}
    name = str(value.get("is"))
    if name not in _MADE:
        raise TraceError(
            f"the trace was made with {name}, but a file can only bring back {', '.join(_MADE)}."
        )
    if name == "SchedulerConfig":
        content["schedule"] = protocol.Schedule(content["schedule"])
        if "late_drafts" in content:  # an older file
            content["reject_late"] = content.pop("late_drafts") == "reject"
    return _MADE[name](**content)
