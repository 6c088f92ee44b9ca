"""When things happen: what is in work after which event, in scripts that can be read
(see `test_scheduler_cases.py`).
"""

from __future__ import annotations

import pytest

from lr.spec.protocol import (
    Cancel,
    Draft,
    Drafted,
    Judge,
    Limits,
    NodeId,
    Schedule,
    SchedulerConfig,
    Target,
    Targeted,
    Work,
    WorkKind,
)
from lr.watch.scripted import ScriptedRun, TextScript, quoted, step_of, text_of

SYNC, PAPER, DEPTH = Schedule


def run_of(
    targets: str, drafts: str, schedule: Schedule, depth: int, **settings
) -> ScriptedRun:
    script = TextScript(targets.split(), drafts.split())
    return ScriptedRun(
        SchedulerConfig(Limits(100), schedule, depth, **settings), script
    )


def in_work(run: ScriptedRun) -> str:
    """What is in flight, sorted: "draft 0:1, target 0:0"."""
    return ", ".join(sorted(f"{work.kind.value} {work.node}" for work in run.work))


def do(run: ScriptedRun, work: str) -> str:
    """Complete "draft 0:1"; returns what is in flight then."""
    kind, name = work.split()
    [found] = [
        piece
        for piece in run.work
        if piece.kind.value == kind and str(piece.node) == name
    ]
    run.step(found)
    return in_work(run)


def test_sync_has_two_barriers() -> None:
    """All drafts, then all target steps (one more), then all verdicts."""
    run = run_of("a. b. c. d$", "A. B. C. D$", SYNC, 2)
    assert in_work(run) == "draft 0:1"
    assert do(run, "draft 0:1") == "draft 0:2"
    assert do(run, "draft 0:2") == "target 0:0, target 0:1, target 0:2"
    assert do(run, "target 0:2") == "target 0:0, target 0:1"
    assert do(run, "target 0:0") == "target 0:1"
    assert do(run, "target 0:1") == "judge 0:1, judge 0:2"
    assert do(run, "judge 0:2") == "judge 0:1"
    assert (
        do(run, "judge 0:1") == "draft 3:4"
    )  # two accepted, the bonus: the next cycle begins at step 3


def test_depth_has_a_target_step_at_the_frontier() -> None:
    """At most 2 drafts that are not verified; the target writes at 3 nodes. The window
    slides with the first accepted step.
    """
    run = run_of("a. b. c. d$", "A. B. C. D$", DEPTH, 2)
    assert in_work(run) == "draft 0:1, target 0:0"
    assert do(run, "draft 0:1") == "draft 0:2, target 0:0, target 0:1"
    assert do(run, "draft 0:2") == "target 0:0, target 0:1, target 0:2"
    assert do(run, "target 0:0") == "judge 0:1, target 0:1, target 0:2"
    assert do(run, "judge 0:1") == "draft 0:3, target 0:1, target 0:2"


def test_paper_has_pairs_in_flight() -> None:
    """2 pairs that are not committed, drafts included: the target does not begin at the
    frontier.
    """
    run = run_of("a. b. c. d$", "A. B. C. D$", PAPER, 2)
    assert in_work(run) == "draft 0:1, target 0:0"
    assert do(run, "draft 0:1") == "draft 0:2, target 0:0, target 0:1"
    assert do(run, "draft 0:2") == "target 0:0, target 0:1"
    assert do(run, "target 0:1") == "judge 0:2, target 0:0"
    assert (
        do(run, "judge 0:2") == "target 0:0"
    )  # aligned, but not committed: still in flight
    assert do(run, "target 0:0") == "judge 0:1"
    assert do(run, "judge 0:1") == "draft 0:3, target 0:2"  # both are committed now


def test_a_rejection_cancels_what_is_below_it_and_keeps_what_is_above() -> None:
    run = run_of("a. b. c. d$", "A. X. C. D$", DEPTH, 3)
    for work in ("draft 0:1", "draft 0:2", "target 0:1"):
        do(run, work)
    assert in_work(run) == "draft 0:3, judge 0:2, target 0:0, target 0:2"
    assert (
        do(run, "judge 0:2") == "target 0:0"
    )  # step 1 will be corrected: nothing is written after the wrong one
    do(run, "target 0:0")
    assert do(run, "judge 0:1") == "draft 2:3, target 2:2"
    assert [text_of(e.step) for e in run.emitted] == ["A.", "b."]


@pytest.mark.parametrize("text", ["A$", "AAAA"], ids=["ends the text", "was cut"])
@pytest.mark.parametrize("schedule", [PAPER, DEPTH])
def test_nothing_is_written_after_a_draft_step_that_ends_the_text_or_was_cut(
    schedule: Schedule, text: str
) -> None:
    script = TextScript(["a.", "b$"], [text, "B$"])
    run = ScriptedRun(SchedulerConfig(Limits(100, 4), schedule, 3), script)
    assert do(run, "draft 0:1") == "target 0:0"


def test_siblings_are_decided_in_order() -> None:
    """The second alternative is known to be aligned; it is accepted as soon as the
    first is known not to be.
    """
    run = run_of("a. b$", "X.|A. B$|C$", DEPTH, 1, width=2)
    assert do(run, "draft 0:1.1") == "draft 0:1, target 0:0, target 0:1.1"
    do(run, "target 0:0")
    assert do(run, "judge 0:1.1") == "draft 0:1, target 0:1.1"
    assert not run.emitted
    do(run, "draft 0:1")
    assert do(run, "judge 0:1") == "draft 0:2.2, draft 0:2.3, target 0:1.1"
    assert [(text_of(e.step), e.verdict.aligned) for e in run.emitted if e.verdict] == [
        ("A.", True)
    ]


def test_an_accepted_sibling_does_not_wait_for_later_ones() -> None:
    run = run_of("a. b$", "A.|X. B$|C$", DEPTH, 1, width=2)
    do(run, "draft 0:1")
    do(run, "target 0:0")
    assert (
        do(run, "judge 0:1") == "draft 0:2, draft 0:2.1, target 0:1"
    )  # draft 0:1.1 is cancelled
    assert Work(WorkKind.DRAFT, NodeId(0, 1, 1)) not in run.work


def test_a_late_draft_is_waited_for_or_rejected() -> None:
    waits = run_of("a. b$", "A. B$", DEPTH, 2)
    assert do(waits, "target 0:0") == "draft 0:1"
    assert not waits.emitted
    rejects = run_of("a. b$", "A. B$", DEPTH, 2, reject_late=True)
    assert do(rejects, "target 0:0") == "draft 1:2, target 1:1"
    [emitted] = rejects.emitted
    assert (text_of(emitted.step), emitted.origin.value, emitted.rejected) == (
        "a.",
        "correction",
        None,
    )
    assert emitted.verdict and emitted.verdict.why == "the draft step was late"
    in_time = run_of("a. b$", "A. B$", DEPTH, 2, reject_late=True)
    do(in_time, "draft 0:1")
    assert do(in_time, "target 0:0") == "draft 0:2, judge 0:1, target 0:1"
    assert do(in_time, "judge 0:1") == "draft 0:2, target 0:1"
    assert do(in_time, "target 0:1") == "draft 2:3, target 2:2" or in_time.done
    assert [e.origin.value for e in in_time.emitted] == ["accepted", "correction"]


def test_rows_are_given_out_breadth_first() -> None:
    """Synchronous, width 2, depth 2: 7 nodes on 3 rows. The root and its level go
    first; the last wave has only what is still possible.
    """
    run = run_of("a. b. c$", "X.|A. B.|X. C$|C$", SYNC, 2, width=2, max_target_rows=3)
    while in_work(run).startswith("draft"):
        run.step()
    assert in_work(run) == "target 0:0, target 0:1, target 0:1.1"
    while not in_work(run).startswith("target 0:2"):
        run.step()
    assert (
        in_work(run) == "target 0:2.2"
    )  # below the first alternative nothing is left; below the second, the first is accepted
    assert [text_of(e.step) for e in run.emitted] == ["A.", "B."]
    run.run()
    assert (
        quoted(run.emitted[-1].step) == '"c$"'
        and run.emitted[-1].origin.value == "bonus"
    )


def test_scores_take_rows_and_target_steps_come_last() -> None:
    run = run_of(
        "a. b. c$", "A. X. C$", DEPTH, 2, needs_target_step=False, max_target_rows=1
    )
    assert in_work(run) == "draft 0:1"
    assert do(run, "draft 0:1") == "draft 0:2, judge 0:1"
    assert do(run, "draft 0:2") == "judge 0:1"
    assert do(run, "judge 0:1") == "draft 0:3, judge 0:2"
    assert (
        do(run, "judge 0:2") == "target 0:1"
    )  # rejected: what is drafted after it is cancelled, the target writes
    assert do(run, "target 0:1") == "draft 2:3"


def test_without_need_of_it_the_target_writes_at_the_root_only() -> None:
    run = run_of("a. b. c$", "A. X. C$", DEPTH, 2, needs_target_step=False)
    assert do(run, "draft 0:1") == "draft 0:2, judge 0:1"
    assert do(run, "draft 0:2") == "judge 0:1, judge 0:2"
    assert (
        do(run, "judge 0:2") == "judge 0:1"
    )  # rejected, but step 0 is not decided yet
    assert do(run, "judge 0:1") == "target 0:1"


def test_a_doubt_that_no_longer_matters_costs_the_target_nothing_more() -> None:
    """The second alternative is in doubt, so the target writes; the first is accepted,
    so it stops.
    """
    run = run_of("a. b$", "A.|A?. B$|X$", DEPTH, 1, width=2, needs_target_step=False)
    do(run, "draft 0:1.1")
    assert do(run, "judge 0:1.1") == "draft 0:1, target 0:0"
    do(run, "draft 0:1")
    assert do(run, "judge 0:1") == "draft 0:2, draft 0:2.1"
    assert Cancel(Work(WorkKind.TARGET, NodeId(0, 0))) in run.turns[-1].commands


def test_a_pair_that_needs_no_verifier_is_decided_at_once() -> None:
    """Synchronous: the root's target step was cut, so the verdicts on what follows are
    not waited for.
    """
    script = TextScript(["aaaaa", "b.", "c$"], ["A.", "B.", "C$"])
    run = ScriptedRun(SchedulerConfig(Limits(100, 4), SYNC, 2), script)
    for work in ("draft 0:1", "draft 0:2", "target 0:0", "target 0:1"):
        do(run, work)
    assert do(run, "target 0:2") == "target 1:1"
    assert [text_of(e.step) for e in run.emitted] == ["aaaa"]


def test_the_commands_carry_what_a_driver_needs() -> None:
    run = run_of("a. b$", "A.|X. B$|C$", DEPTH, 1, width=2)
    root, first, second = NodeId(0, 0), NodeId(0, 1), NodeId(0, 1, 1)
    assert run.turns[0].commands == (
        Draft(root, (first, second), 100),
        Target(root, 100),
    )
    assert run.tell(Drafted(first, step_of("A."))).commands == (Target(first, 98),)
    judge = Judge(first, root, step_of("A."), step_of("a."))
    assert run.tell(Targeted(root, step_of("a."))).commands == (judge,)
    alone = run_of("a. b$", "A. B$", DEPTH, 1, needs_target_step=False)
    judge = Judge(first, root, step_of("A."), None)
    assert judge in alone.tell(Drafted(first, step_of("A."))).commands
