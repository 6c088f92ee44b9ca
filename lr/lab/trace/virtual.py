"""Traces of runs without models: scripted ones, where a turn takes a time of 1, and simulated ones,
on the clock of the simulation.

    run = ScriptedRun(config, TextScript(["a.", "b$"], ["A.", "C."]))
    run.run()
    trace = scripted_trace(run)

    trace = simulated_trace(config, world, steps=40)

Viewers cannot tell them from traces of models, but for what models alone have: tokens, forwards,
caches. Without torch. Read next: `lab/trace/file.py`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from lr import __version__
from lr.engine.recording import record_commanded, record_told, record_written
from lr.lab.scripted.scripted import ScriptedRun
from lr.lab.trace.fields import Bytes
from lr.lab.trace.file import TraceFile, no_bytes, records_of
from lr.lab.trace.header import Header
from lr.spec.protocol import SchedulerConfig
from lr.theory.simulate import World, simulate
from lr.trace import Trace
from lr.tracing.details import Ended


def letters(token: int) -> bytes:
    """The text of a token of `texts.py`, where a token is a character."""
    return chr(token).encode()


def scripted_trace(run: ScriptedRun, token_bytes: Bytes = letters) -> TraceFile:
    """The trace of a scripted run so far; turn number n (the start is 0) has the time n."""
    trace = Trace(clock=lambda: 0.0, detailed=True)
    for number, turn in enumerate(run.turns):
        trace.start = -float(number)
        if turn.event is not None:
            record_written(trace, turn.event)
            record_told(trace, turn.event)
        for command in turn.commands:
            record_commanded(trace, command)
    if run.done:
        trace.record(Ended(done=True))
    header = _header("scripted", "turn", run.scheduler.config, {"script": plain(run.script)})
    return TraceFile(header, records_of(trace.events, token_bytes))


def simulated_trace(config: SchedulerConfig, world: World, steps: int) -> TraceFile:
    """Simulate `steps` steps; their trace."""
    trace = Trace(detailed=True)
    outcome = simulate(config, world, steps, trace=trace)
    trace.record(
        Ended(
            done=outcome.steps == steps,
            why="" if outcome.steps == steps else "the limits were reached",
        )
    )
    header = _header("simulated", "target step", config, {"world": plain(world), "steps": steps})
    return TraceFile(header, records_of(trace.events, no_bytes))


def _header(driver: str, unit: str, config: SchedulerConfig, options: dict[str, Any]) -> Header:
    return Header(
        driver=driver,
        clock="virtual",
        unit=unit,
        mode="lr",
        schedule=config.schedule.value,
        depth=config.depth,
        width=config.width,
        max_target_rows=config.max_target_rows,
        options=options | {"config": plain(config)},
        lr=__version__,
    )


def plain(value: Any) -> Any:
    """Data as JSON; an object by the name of its class and its fields: Constant(0.1) is {"is":
    "Constant", "value": 0.1}.
    """
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {
            one.name: plain(getattr(value, one.name)) for one in fields(value)
        }
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return (
        value
        if value is None or isinstance(value, (str, int, float, bool))
        else type(value).__name__
    )
