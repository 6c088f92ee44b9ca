"""Why an answer was or was not faster than plain decoding, in one line.

The reasons are the ways in which step-level speculation fails: draft steps that are
rejected in a row, a draft that costs as much as the target, a target that waits, a
verifier that takes the time. The thresholds are rules of thumb of our own."""

from itertools import groupby

from lr.spec.protocol import Emit
from lr.trace import ForwardPass, Trace, stats_of
from lr.types import Role

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
    accepted = [  # at each judged place of the answer, whether a draft step was
        event.verdicts[-1].aligned
        for _, event in trace.events
        if isinstance(event, Emit) and event.verdicts
    ]
    # the longest run of rejections. + - - - +: 3
    runs = (len(list(run)) for aligned, run in groupby(accepted) if not aligned)
    in_a_row = max(runs, default=0)
    rejected = accepted.count(False)
    if 1 - rejected / len(accepted) < FEW_ACCEPTED or in_a_row >= MANY_REJECTIONS:
        return (
            f"slowed by rejections: the draft was rejected at {rejected} of "
            f"{len(accepted)} places, up to {in_a_row} in a row; a draft closer to the "
            "target or a more tolerant verifier would help"
        )
    pass_ratio = 0.0  # c, as far as it shows in one answer
    if stats.draft_passes and stats.target_seconds:
        draft_pass = stats.draft_seconds / stats.draft_passes
        pass_ratio = draft_pass / (stats.target_seconds / stats.target_passes)
    if pass_ratio >= EQUAL_PASSES:
        return (
            f"slowed by the draft: one of its passes takes {pass_ratio:.2f} of a pass "
            "of the target, so the two models are too equal; a smaller draft would help"
        )
    if overlapped:
        busy = stats.target_seconds + stats.verifier_seconds + stats.source_seconds
        waiting = 1 - busy / stats.seconds
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
    tokens_per_pass = stats.tokens_per_target_pass or 0
    target_share = stats.target_seconds / stats.seconds
    # plain decoding: one token per pass, and the target computes all the time
    speed = "fast" if tokens_per_pass * target_share > 1 else "no faster"
    return (
        f"{speed}: {tokens_per_pass:.1f} tokens per pass of the target, which computed "
        f"{target_share:.0%} of the time, and a pass of the draft costs "
        f"{pass_ratio:.2f} of one"
    )


def beside_tokens_alone(tokens_alone: Trace, both: Trace) -> str:
    """Why lr+sd was faster or slower than sd, from the counts of both."""
    sd, hybrid = stats_of(tokens_alone.events), stats_of(both.events)
    passes = (event for _, event in both.events if isinstance(event, ForwardPass))
    rows = sum(event.branches for event in passes if event.role is Role.TARGET)
    speed = (hybrid.tokens / hybrid.seconds) / (sd.tokens / sd.seconds)
    pass_time, before = (
        stats.target_seconds / stats.target_passes for stats in (hybrid, sd)
    )
    return (
        f"{speed:.2f} times as fast as sd: {hybrid.tokens_per_target_pass:.1f} tokens per "
        f"pass of the target instead of {sd.tokens_per_target_pass:.1f}, but a pass had "
        f"{rows / hybrid.target_passes:.1f} rows instead of 1 and took "
        f"{pass_time / before:.2f} times as long; the draft computed "
        f"{hybrid.draft_seconds / hybrid.seconds:.0%} of the time, in sd "
        f"{sd.draft_seconds / sd.seconds:.0%}"
    )
