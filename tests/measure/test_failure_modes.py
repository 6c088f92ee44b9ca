"""The signatures of failure on traces made by hand, and the audit of a verifier."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from verifier_kit import ADD, ADD_OTHERWISE, ADD_WRONG, codec, pair

from lr.engine.page import emission
from lr.measure.failure_modes import cascade_rejection, draft_bottleneck, failure_modes
from lr.measure.verifier_eval import (
    PairRecorder,
    Quality,
    ReplayedVerdicts,
    quality,
    replay,
)
from lr.spec.verifiers.base import ExactVerifier, Requires, Verifier
from lr.spec.verifiers.named import RandomVerifier
from lr.tiny.oracle import OracleVerifier, parse
from lr.trace import ForwardPass, RunEvent, Trace
from lr.types import EmittedStep, Finish, Origin, Role, Step, Verdict


def trace_of(*events: tuple[float, RunEvent]) -> Trace:
    trace = Trace(clock=lambda: 0.0)
    trace.events.extend(events)
    return trace


def judged_at(index: int, *verdicts: Verdict) -> RunEvent:
    step = Step((0,), Finish.BOUNDARY)
    return emission(EmittedStep(index, step, Origin.ACCEPTED, verdicts[-1]), *verdicts)


def judged(marks: str) -> Trace:
    return trace_of(
        *(
            (float(i), judged_at(i, Verdict(mark == "+", "by hand")))
            for i, mark in enumerate(marks)
        )
    )


def forward(role: Role, begin: float, end: float) -> tuple[float, RunEvent]:
    return end, ForwardPass(role, 1, 1, end - begin)


@pytest.mark.parametrize(
    ("marks", "longest", "after_accepted", "after_rejected", "cascades"),
    [
        ("+---+", 3, 0.0, 1 / 3, False),
        ("+++++", 0, 1.0, None, False),
        ("-----", 5, None, 0.0, True),
        ("+-+-+-+-+-", 1, 0.0, 1.0, False),
        ("+++++---++++----", 4, 7 / 9, 1 / 6, True),  # the gap
        ("+++++-+", 1, 4 / 5, 1.0, False),
        ("++++++--", 2, 5 / 6, 0.0, False),  # too few rejections to speak of a rate
    ],
)
def test_rejections_that_bring_rejections(
    marks: str,
    longest: int,
    after_accepted: float | None,
    after_rejected: float | None,
    cascades: bool,
) -> None:
    found = cascade_rejection(judged(marks), least=5)
    assert found is not None
    assert (found.places, found.longest, found.cascades) == (
        len(marks),
        longest,
        cascades,
    )
    assert (found.after_accepted, found.after_rejected) == (
        pytest.approx(after_accepted) if after_accepted is not None else None,
        pytest.approx(after_rejected) if after_rejected is not None else None,
    )
    assert str(found).startswith(
        "cascade rejection" if cascades else "no cascade"
    ) and str(longest) in str(found)


def test_thresholds_are_arguments() -> None:
    trace = judged("++++++--")
    assert cascade_rejection(trace, run=2).cascades  # type: ignore[union-attr]
    assert cascade_rejection(trace, least=9) is None
    assert not cascade_rejection(judged("+++++---++++----"), gap=0.7).cascades


def test_a_place_is_accepted_if_one_of_its_alternatives_is() -> None:
    events = [
        judged_at(0, Verdict(False, ""), Verdict(True, "")),
        judged_at(1, Verdict(False, "")),
    ]
    found = cascade_rejection(trace_of(*((0.0, event) for event in events)), least=1)
    assert found is not None and (
        found.places,
        found.longest,
        found.after_accepted,
    ) == (2, 1, 0.0)


@pytest.mark.parametrize(
    ("events", "idle", "drafting", "starves"),
    [
        ([("d", 0, 6), ("t", 6, 10)], 0.6, 0.6, True),
        ([("d", 0, 4), ("t", 4, 10)], 0.4, 0.4, False),
        (
            [("d", 0, 10), ("t", 0, 10)],
            0.0,
            0.0,
            False,
        ),  # at the same time: nobody waits
        ([("d", 0, 8), ("t", 6, 10)], 0.6, 0.6, True),
        (
            [("d", 0, 1), ("t", 8, 10)],
            0.8,
            0.1,
            False,
        ),  # idle, but it is not the draft's doing
        ([("t", 0, 4), ("t", 2, 6), ("d", 5, 10)], 0.4, 0.4, False),
    ],
)
def test_the_target_waits(
    events: Sequence[tuple[str, float, float]],
    idle: float,
    drafting: float,
    starves: bool,
) -> None:
    roles = {"t": Role.TARGET, "d": Role.DRAFT}
    trace = trace_of(
        *sorted(
            (forward(roles[r], begin, end) for r, begin, end in events),
            key=lambda pair: pair[0],
        )
    )
    found = draft_bottleneck(trace)
    assert found is not None and found.seconds == 10
    assert (found.target_idle, found.drafting) == (
        pytest.approx(idle),
        pytest.approx(drafting),
    )
    assert found.starves is starves and f"{idle:.0%} of 10.00 s" in str(found)
    assert not draft_bottleneck(trace, idle=0.9).starves  # type: ignore[union-attr]


def test_too_few_events_say_nothing() -> None:
    assert failure_modes(trace_of()) == []
    assert draft_bottleneck(trace_of(forward(Role.DRAFT, 0, 1))) is None
    assert [
        type(one).__name__
        for one in failure_modes(trace_of(forward(Role.TARGET, 0, 1)))
    ] == ["DraftBottleneck"]


def test_an_audit_changes_no_verdict_and_finds_what_is_accepted_wrongly() -> None:
    pairs = [
        pair(ADD, ADD),
        pair(ADD_OTHERWISE, ADD),
        pair(ADD_WRONG, ADD),
        pair(ADD_WRONG, ADD),
    ] * 2
    oracle = OracleVerifier(codec().decode, parse)

    def audited(verifier: Verifier) -> Quality:
        audit = PairRecorder(verifier, oracle.requires)
        assert audit.requires is Requires.TARGET_STEP and audit.name == verifier.name
        assert [*audit.judge(pairs[:4]), *audit.judge(pairs[4:])] == verifier.judge(
            pairs
        )
        again = replay(oracle, [pair for pair, _ in audit.seen])
        said = ReplayedVerdicts(tuple(verdict for _, verdict in audit.seen), 0.0)
        return quality(said, [verdict.aligned for verdict in again.verdicts])

    loose = audited(RandomVerifier(1.0, 0, requires=Requires.NOTHING))
    assert (loose.pairs, loose.accepted, loose.error) == (8, 1.0, 0.5)
    strict = audited(ExactVerifier())
    assert strict.error == 0.0 and strict.recall == 0.5
