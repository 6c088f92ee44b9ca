"""How step-level speculation fails: two failure modes, found in the trace of a run.

- **Cascade rejection**: one rejection leads to the next.
- **Draft bottleneck**: the target waits for the draft. On one thread the two alternate, so this
  measures what drafting costs, not what it blocks.

A third mode, a verifier that accepts many steps that differ from the target's, does not
show in a trace; `lr verify` finds it by asking a second verifier about the same pairs.

Every function here is pure. A failure mode is None if there are too few events to judge
it. The thresholds are our own rules of thumb; the paper (arXiv 2506.19830) gives
none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean

from lr.spec.protocol import Emit
from lr.theory.trace_metrics import Spans, covered
from lr.trace import ForwardPass, Trace, VerifierCall
from lr.types import require


@dataclass(frozen=True)
class CascadeRejection:
    """Statistics over the judged places of the chain; a place is accepted if one of its
    alternatives was. `longest`: the longest run of rejected places. `after_accepted`,
    `after_rejected`: the acceptance rate at places whose predecessor was accepted or
    rejected; None without such a place. `cascades`: whether a threshold was reached."""

    places: int
    longest: int
    after_accepted: float | None
    after_rejected: float | None
    cascades: bool

    def __str__(self) -> str:
        head = "cascade rejection" if self.cascades else "no cascade of rejections"
        high, low, rates = self.after_accepted, self.after_rejected, ""
        if high is not None and low is not None:
            rates = f"; after an accepted step {high:.0%} are accepted, "
            rates += f"after a rejected one {low:.0%}"
        return f"{head}: the longest run is {self.longest} of {self.places} judged places{rates}"


@dataclass(frozen=True)
class DraftBottleneck:
    """`target_idle`: the share of the run's `seconds` without a target forward;
    `drafting`: the share with a draft forward instead."""

    seconds: float
    target_idle: float
    drafting: float
    starves: bool

    def __str__(self) -> str:
        return (
            f"{'' if self.starves else 'no '}draft bottleneck: no target forward ran in "
            f"{self.target_idle:.0%} of {self.seconds:.2f} s; the draft was at work in "
            f"{self.drafting:.0%}"
        )


def cascade_rejection(
    trace: Trace, *, run: int = 5, gap: float = 0.25, least: int = 8
) -> CascadeRejection | None:
    """Rejections that lead to rejections: a run of at least `run` rejected places, or
    an acceptance rate that is lower after a rejection by at least `gap`.

    None with fewer than `least` judged places. The gap counts only if both rates come from at least
    `least` / 2 places. Steps without a verdict (a cut step, a bonus) are skipped. Example, verdicts
    + - - - +: the longest run is 3; 0 of 1 are accepted after an acceptance, else 1 of 3."""
    require(run >= 1 and least >= 1, "(run, least)", (run, least), "whole numbers >= 1")
    emits = (event for _, event in trace.events if isinstance(event, Emit))
    outcomes = [emit.verdicts[-1].aligned for emit in emits if emit.verdicts]
    if len(outcomes) < least:
        return None
    longest = max(
        (len(list(some)) for kept, some in groupby(outcomes) if not kept), default=0
    )
    kept = [now for last, now in pairwise(outcomes) if last]
    lost = [now for last, now in pairwise(outcomes) if not last]
    high, low = (fmean(some) if some else None for some in (kept, lost))
    enough = min(len(kept), len(lost)) >= least / 2
    drops = high is not None and low is not None and enough and high - low >= gap
    return CascadeRejection(len(outcomes), longest, high, low, longest >= run or drops)


def draft_bottleneck(trace: Trace, *, idle: float = 0.5) -> DraftBottleneck | None:
    """The target starves if it is idle for at least the share `idle` of the time and
    the draft works for at least half of that. None without a target forward."""
    total, spans = (
        trace.events[-1][0] if trace.events else 0.0,
        spans_at_work(trace.events),
    )
    if not spans["target"] or total <= 0:
        return None
    busy = covered(spans["target"])
    instead, waits = (
        covered([*spans["target"], *spans["draft"]]) - busy,
        max(0.0, total - busy),
    )
    starves = waits >= idle * total and waits > 0 and instead >= waits / 2
    return DraftBottleneck(total, waits / total, instead / total, starves)


def failure_modes(trace: Trace) -> list[CascadeRejection | DraftBottleneck]:
    """The failure modes with their default thresholds; leaves out those with too few
    events."""
    found = (cascade_rejection(trace), draft_bottleneck(trace))
    return [one for one in found if one is not None]


def spans_at_work(events: Iterable[tuple[float, object]]) -> dict[str, Spans]:
    """When draft, target and judge worked, from (time, event); an event reports what
    has ended."""
    spans: dict[str, Spans] = {"draft": [], "target": [], "judge": []}
    for time, event in events:
        if isinstance(event, ForwardPass | VerifierCall):
            lane = event.role.value if isinstance(event, ForwardPass) else "judge"
            spans[lane].append((max(0.0, time - event.seconds), time))
    return spans
