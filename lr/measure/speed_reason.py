"""Why an answer was or was not faster than plain decoding, in one line.

The reasons are the ways in which step-level speculation fails: draft steps that are
rejected in a row, a draft that costs as much as the target, a target that waits, a
verifier that takes the time. The thresholds are rules of thumb of our own."""

from __future__ import annotations

from itertools import groupby

from lr.spec.protocol import Emit
from lr.trace import Stats, Trace, stats_of

MANY_REJECTIONS = 5  # in a row
FEW_ACCEPTED = 0.3  # of the judged draft steps
EQUAL_PASSES = 0.7  # mean seconds of a draft pass over those of a target pass
LARGE_SHARE = 0.5  # of the time
VERIFIER_SHARE = 0.3  # of the time


def speed_reason(trace: Trace, *, overlapped: bool) -> str:
    """The main reason for the speed of an answer with draft steps; "" without them.

    `overlapped`: draft and target ran at the same time, so the target may have waited.
    """
    stats = stats_of(trace.events)
    if not stats.judged or not stats.seconds or not stats.target_passes:
        return ""
    rejected_in_a_row = longest_rejection(trace)
    accepted_share = stats.accepted / stats.judged
    if accepted_share < FEW_ACCEPTED or rejected_in_a_row >= MANY_REJECTIONS:
        return (
            f"slowed by rejections: {stats.judged - stats.accepted} of {stats.judged} "
            f"draft steps were rejected, up to {rejected_in_a_row} in a row; a draft "
            "closer to the target or a more tolerant verifier would help"
        )
    pass_ratio = draft_pass_cost(stats)
    if pass_ratio >= EQUAL_PASSES:
        return (
            f"slowed by the draft: one of its passes takes {pass_ratio:.2f} of a pass "
            "of the target, so the two models are too equal; a smaller draft would help"
        )
    if overlapped:
        waiting = 1 - (stats.target_seconds + stats.verifier_seconds) / stats.seconds
        if waiting >= LARGE_SHARE:
            return (
                f"slowed by waiting: in {waiting:.0%} of the time the target waited "
                "for draft steps; a smaller draft would help"
            )
    elif stats.draft_seconds / stats.seconds >= LARGE_SHARE:
        return (
            f"slowed by the draft: it took {stats.draft_seconds / stats.seconds:.0%} "
            "of the time; driver overlapped or a smaller draft would help"
        )
    verifier_share = stats.verifier_seconds / stats.seconds
    if verifier_share >= VERIFIER_SHARE:
        return f"slowed by the verifier: it took {verifier_share:.0%} of the time"
    return (
        f"fast: {stats.tokens_per_target_pass or 0:.1f} tokens per pass of the target, "
        f"and a pass of the draft costs {pass_ratio:.2f} of one"
    )


def longest_rejection(trace: Trace) -> int:
    """The longest run of judged places at which no draft step was accepted. Verdicts
    + - - - +: 3."""
    accepted = [
        event.verdicts[-1].aligned
        for _, event in trace.events
        if isinstance(event, Emit) and event.verdicts
    ]
    runs = (len(list(run)) for aligned, run in groupby(accepted) if not aligned)
    return max(runs, default=0)


def draft_pass_cost(stats: Stats) -> float:
    """Mean seconds of a draft pass over those of a target pass: c, as far as it shows
    in one answer."""
    if not stats.draft_passes or not stats.target_seconds:
        return 0.0
    draft_pass = stats.draft_seconds / stats.draft_passes
    return draft_pass / (stats.target_seconds / stats.target_passes)
