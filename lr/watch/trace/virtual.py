"""Traces of runs without models: scripted runs, where a turn takes a time of 1, and
simulated runs on the clock of the simulation.

    run = ScriptedRun(config, TextScript(["a.", "b$"], ["A.", "C."]))
    run.run()
    trace = scripted_trace(run)

    trace = simulated_trace(config, world, steps=40)

Viewers treat them like traces of models; they only lack tokens, forwards and caches.
Without torch."""

from __future__ import annotations

from typing import Literal

from lr import __version__
from lr.spec.protocol import SchedulerConfig
from lr.theory.simulate import World, record_event, simulate
from lr.trace import Ended, Trace
from lr.watch.scripted import ScriptedRun
from lr.watch.trace.file import Bytes, Header, TraceFile, no_bytes, records_of


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
    header = _header("scripted", "turn", run.scheduler.config)
    return TraceFile(header, records_of(trace.events, token_bytes))


def simulated_trace(config: SchedulerConfig, world: World, steps: int) -> TraceFile:
    """The trace of a simulation of `steps` steps."""
    trace = Trace(detailed=True)
    done = simulate(config, world, steps, trace=trace).steps == steps
    trace.record(Ended(done, "" if done else "the limits were reached"))
    header = _header("simulated", "target step", config)
    return TraceFile(header, records_of(trace.events, no_bytes))


def _header(
    driver: Literal["scripted", "simulated"], unit: str, config: SchedulerConfig
) -> Header:
    return Header(
        driver=driver,
        clock="virtual",
        unit=unit,
        schedule=config.schedule.value,
        depth=config.depth,
        width=config.width,
        max_target_rows=config.max_target_rows,
        lr=__version__,
    )
