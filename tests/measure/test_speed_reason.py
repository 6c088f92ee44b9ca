"""The line that says why an answer was or was not faster, on traces made by hand."""

import pytest

from lr.measure.speed_reason import speed_reason
from lr.page_engine import emission
from lr.trace import ForwardPass, Trace, VerifierCall
from lr.types import EmittedStep, Finish, Origin, Role, Step, Verdict


def judged(marks):
    """One decided place per mark: + accepted, - rejected."""
    events = []
    for index, mark in enumerate(marks):
        verdict = Verdict(mark == "+", "by hand")
        origin = Origin.ACCEPTED if mark == "+" else Origin.CORRECTION
        step = Step((0,) * 10, Finish.BOUNDARY)
        events.append(emission(EmittedStep(index, step, origin, verdict), verdict))
    return events


def trace_of(marks, target, draft, judge=0):
    """Ten passes of each model, which take so many seconds in all; 10 in all."""
    trace = Trace(clock=lambda: 0.0)
    events = judged(marks)
    events += [ForwardPass(Role.TARGET, 1, 1, target / 10)] * 10
    events += [ForwardPass(Role.DRAFT, 1, 1, draft / 10)] * 10
    events.append(VerifierCall(1, judge))
    trace.events.extend((10, event) for event in events)
    return trace


@pytest.mark.parametrize(
    "trace, overlapped, reason",
    [
        (trace_of("++++", 8, 1), False, "fast"),
        (trace_of("+---", 8, 1), False, "rejections"),
        (trace_of("+++++++-----++++++", 8, 1), False, "5 in a row"),
        (trace_of("++++", 5, 4), False, "equal"),
        (trace_of("++++", 4, 1), True, "waited"),
        (trace_of("++++", 4, 1), False, "fast"),  # nobody waits on one thread
        (trace_of("++++", 9, 5), True, "fast"),  # at the same time
        (trace_of("++++", 9, 5), False, "took 50%"),
        (trace_of("++++", 5, 1, 4), False, "verifier"),
        (trace_of("++", 4.5, 1), False, "no faster"),  # 2 tokens per pass, 45 %
        (Trace(), False, ""),
    ],
)
def test_the_main_reason(trace, overlapped, reason):
    line = speed_reason(trace, overlapped=overlapped)
    assert reason in line and bool(line) is bool(reason)
