"""The statistics are functions of the events: checked by hand on small traces."""

from lr.page_engine import emission
from lr.trace import (
    ForwardPass,
    Stats,
    StepWritten,
    TokenRound,
    TokenRounds,
    Trace,
    VerifierCall,
    stats_of,
)
from lr.types import EmittedStep, Finish, Origin, Role, Step, Verdict

STEP = Step((1, 2, 3), Finish.BOUNDARY)
AGREED, REFUSED = Verdict(True, ""), Verdict(False, "")


def trace_of(*events):
    """One event per second."""
    seconds = iter(range(100))
    trace = Trace(clock=lambda: float(next(seconds)))
    for event in events:
        trace.record(event)
    return trace.events


def test_counts_times_and_ratios():
    stats = stats_of(
        trace_of(
            StepWritten(Role.DRAFT, 0, STEP),
            StepWritten(Role.DRAFT, 1, STEP),
            ForwardPass(Role.DRAFT, 1, 1, 0.25),
            ForwardPass(Role.TARGET, 3, 7, 0.5),
            ForwardPass(Role.TARGET, 3, 3, 0.5),
            StepWritten(Role.TARGET, 0, STEP),
            VerifierCall(2, 0.125),
            emission(EmittedStep(0, STEP, Origin.ACCEPTED, AGREED), AGREED),
            emission(
                EmittedStep(
                    1, Step((4,), Finish.EOS), Origin.CORRECTION, REFUSED, STEP
                ),
                REFUSED,
            ),
        )
    )
    assert stats == Stats(
        seconds=9,
        steps=2,
        tokens=4,
        accepted=1,
        judged=2,
        drafted=2,
        target_passes=2,
        draft_passes=1,
        target_seconds=1.0,
        draft_seconds=0.25,
        verifier_seconds=0.125,
        draft_tokens=6,
        target_tokens=3,
    )
    assert stats_of([]).step_acceptance is None
    assert stats.step_acceptance == 0.5
    assert stats.tokens_per_target_pass == 2
    assert (stats + stats).step_acceptance == 0.5
    assert (stats + stats).tokens == 8


def rounds(*lengths):
    return TokenRounds.of(
        TokenRound(Role.TARGET, 0, depth, depth, accepted, emitted)
        for depth, accepted, emitted in lengths
    )


def test_token_rounds_by_vllms_definitions():
    numbers = rounds((3, 0, 1), (3, 3, 4), (3, 1, 2), (2, 2, 2), (0, 0, 1))
    assert numbers.count == 4  # a round without a proposal is plain decoding
    assert (numbers.drafted, numbers.accepted, numbers.emitted) == (11, 6, 9)
    assert Stats(rounds=numbers).token_acceptance == 6 / 11
    assert numbers.conditional_acceptance == 6 / (1 + 3 + 2 + 2)


def test_only_the_targets_rounds_count():
    stats = stats_of(
        trace_of(
            TokenRound(Role.DRAFT, 0, 4, 4, 4, 5),
            TokenRound(Role.TARGET, 0, 4, 4, 1, 2),
        )
    )
    assert stats.token_acceptance == 0.25
