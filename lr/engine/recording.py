"""What the scheduler commands and is told, as events of a trace. Every driver uses it: on models,
on scripts, on a clock.

Example: `Draft(0:0, (0:1, 0:1.1), 100)` is recorded as `DraftBegan((0, 0, 0), ((0, 1, 0), (0, 1,
1)), 100)`. Knows no trace file.
"""

from __future__ import annotations

from lr.spec import protocol as commands
from lr.spec.protocol import Command
from lr.spec.protocol import Event as Told
from lr.trace import Event, StepEmitted, StepJudged, StepWritten, Trace
from lr.tracing.events import (
    Cancelled,
    DraftArrived,
    DraftBegan,
    DraftMissing,
    JudgeBegan,
    Released,
    Survived,
    TargetArrived,
    TargetBegan,
    VerdictArrived,
    VerdictMissing,
)
from lr.types import Role


def record_commanded(trace: Trace, command: Command) -> None:
    """Record a command. Of an `Emit`: the verdicts that decided it, then the step."""
    for event in _commanded(command):
        if trace.detailed or isinstance(event, StepJudged | StepEmitted):
            trace.record(event)


def record_written(trace: Trace, event: Told) -> None:
    """Record that a model without tokens of its own (a script, a clock) finished a step: what a
    writer records of itself.
    """
    match event:
        case commands.Drafted(node, step) if step is not None:
            trace.record(StepWritten(Role.DRAFT, node.index - 1, step, node))
        case commands.Targeted(node, step):
            trace.record(StepWritten(Role.TARGET, node.index, step, node))
        case _:
            pass


def record_told(trace: Trace, event: Told) -> None:
    """Record what the scheduler is told."""
    trace.record(_told(event))


def _commanded(command: Command) -> list[Event]:
    match command:
        case commands.Draft(node, children, limit):
            return [DraftBegan(node, children, limit)]
        case commands.Target(node, limit):
            return [TargetBegan(node, limit)]
        case commands.Judge(node, parent):
            return [JudgeBegan(node, parent)]
        case commands.Cancel(work):
            return [Cancelled(work.kind.value, work.node)]
        case commands.Release(node):
            return [Released(node)]
        case commands.Emit(emitted, verdicts, node, root):
            judged = [StepJudged(emitted.index, verdict) for verdict in verdicts]
            survived = [] if root is None else [Survived(node, root)]
            return [*judged, StepEmitted(emitted, node), *survived]


def _told(event: Told) -> Event:
    match event:
        case commands.Drafted(node, step):
            missing = DraftMissing(node, "no draft can come")
            return missing if step is None else DraftArrived(node, step)
        case commands.Targeted(node, step):
            return TargetArrived(node, step)
        case commands.Judged(node, verdict):
            if verdict is None:
                return VerdictMissing(node)
            return VerdictArrived(node, verdict, alone=False)
