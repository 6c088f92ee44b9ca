"""Run again what a trace without models tells of: a script or a simulation, event for event, times
included.

A scripted run is driven through the turns of the trace, whatever its order was. Only scripts
written as texts (`texts.py`) and worlds made of the distributions in `distributions.py` can be brought back from a
file. Read next: `replay.py`, for models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lr.lab.scripted.scripted import ScriptedRun
from lr.lab.scripted.texts import TextScript
from lr.lab.trace.compare import Difference, compare_in_order
from lr.lab.trace.fields import node_of
from lr.lab.trace.file import TraceError, TraceFile
from lr.lab.trace.virtual import scripted_trace, simulated_trace
from lr.spec.protocol import Kind, LateDrafts, Limits, NodeId, Schedule, SchedulerConfig, Work
from lr.theory import distributions
from lr.theory.simulate import World

_MADE: Mapping[str, Callable[..., Any]] = {
    "World": World,
    "TextScript": TextScript,
    "SchedulerConfig": SchedulerConfig,
    "Limits": Limits,
} | {
    made.__name__: made
    for made in (
        distributions.Constant,
        distributions.Lognormal,
        distributions.Resampled,
        distributions.Bernoulli,
        distributions.BetaSiblings,
        distributions.Replay,
        distributions.JudgeErrors,
    )
}
_ENDS = {
    "drafted": Kind.DRAFT,
    "targeted": Kind.TARGET,
    "judged": Kind.JUDGE,
    "unsure": Kind.JUDGE,
    "undrafted": Kind.DRAFT,
}


def replay_virtual(trace: TraceFile) -> tuple[int, Difference | None]:
    """How many events came again the same, and the first that did not (None: all did). Raises
    `TraceError` for a trace that cannot be.
    """
    again = rerun(trace)
    records = again.records
    found = compare_in_order(trace.records, records, virtual=True)
    if found is None and len(records) < len(trace.records):
        found = Difference(len(records), "event", trace.records[len(records)].data, None)
    return len(records) if found is None else found.number, found


def rerun(trace: TraceFile) -> TraceFile:
    """The same run again, as a trace."""
    options = trace.header.options
    config = _built(options.get("config"))
    if trace.header.driver == "simulated":
        return simulated_trace(config, _built(options.get("world")), options["steps"])
    if trace.header.driver != "scripted":
        raise TraceError("this trace is of models; see lr.lab.trace.replay.")
    run = ScriptedRun(config, _built(options.get("script")))
    for record in trace.records:
        if record.kind in _ENDS:
            work = Work(_ENDS[record.kind], NodeId(*node_of(record.data["node"])))
            if work not in run.work:
                break  # the comparison will say what is different
            run.step(work)
    return scripted_trace(run)


def _built(value: Any) -> Any:
    """The inverse of `virtual.plain`."""
    if isinstance(value, list):
        return tuple(map(_built, value))
    if not isinstance(value, dict):
        return value
    fields = {name: _built(one) for name, one in value.items() if name != "is"}
    name = str(value.get("is"))
    if name not in _MADE:
        raise TraceError(
            f"the trace was made with {name}, which is not among what a file can bring back: {', '.join(_MADE)}."
        )
    if name == "SchedulerConfig":
        fields |= {
            "schedule": Schedule(fields["schedule"]),
            "late_drafts": LateDrafts(fields["late_drafts"]),
        }
    return _MADE[name](**fields)
