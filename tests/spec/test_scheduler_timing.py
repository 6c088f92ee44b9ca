"""When things happen: what is in flight after which piece of work, in transcripts.

A line "draft 0:1 -> target 0:0" means: the draft step to node 0:1 is complete, and then
the target's step after node 0:0 is in flight. Steps are texts as in
`test_scheduler_cases.py`.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.watch.scripted import ScriptedRun, TextScript, text_of

SYNC, PAPER, DEPTH = Schedule


def run_of(targets, drafts, schedule, depth, **settings):
    script = TextScript(targets.split(), drafts.split())
    limits = Limits(100, settings.pop("longest", 100))
    config = SchedulerConfig(limits, schedule, depth, **settings)
    return ScriptedRun(config, script)


def in_flight(run):
    """Sorted: "draft 0:1, target 0:0"."""
    return ", ".join(sorted(f"{work.kind.value} {work.node}" for work in run.work))


def complete(run, name):
    """Complete "draft 0:1"; returns what is in flight then."""
    works = {f"{work.kind.value} {work.node}": work for work in run.work}
    run.step(works[name])
    return in_flight(run)


@dataclass(frozen=True)
class Case:
    says: str
    targets: str
    drafts: str
    schedule: Schedule
    depth: int
    transcript: str
    emits: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case(
        "sync has two barriers: all drafts, all target steps (one more), all verdicts",
        "a. b. c. d$", "A. B. C. D$", SYNC, 2,
        """start -> draft 0:1
        draft 0:1 -> draft 0:2
        draft 0:2 -> target 0:0, target 0:1, target 0:2
        target 0:2 -> target 0:0, target 0:1
        target 0:0 -> target 0:1
        target 0:1 -> judge 0:1, judge 0:2
        judge 0:2 -> judge 0:1
        judge 0:1 -> draft 3:4""",
        "A. B. c."
    ),
    Case(
        "depth has 2 unverified drafts and a target step at the frontier; it slides",
        "a. b. c. d$", "A. B. C. D$", DEPTH, 2,
        """start -> draft 0:1, target 0:0
        draft 0:1 -> draft 0:2, target 0:0, target 0:1
        draft 0:2 -> target 0:0, target 0:1, target 0:2
        target 0:0 -> judge 0:1, target 0:1, target 0:2
        judge 0:1 -> draft 0:3, target 0:1, target 0:2""",
        "A."
    ),
    Case(
        "paper has 2 uncommitted pairs in flight, aligned ones included",
        "a. b. c. d$", "A. B. C. D$", PAPER, 2,
        """start -> draft 0:1, target 0:0
        draft 0:1 -> draft 0:2, target 0:0, target 0:1
        draft 0:2 -> target 0:0, target 0:1
        target 0:1 -> judge 0:2, target 0:0
        judge 0:2 -> target 0:0
        target 0:0 -> judge 0:1
        judge 0:1 -> draft 0:3, target 0:2""",
        "A. B."
    ),
    Case(
        "a rejection cancels what is below it and keeps what is above",
        "a. b. c. d$", "A. X. C. D$", DEPTH, 3,
        """draft 0:1 -> draft 0:2, target 0:0, target 0:1
        draft 0:2 -> draft 0:3, target 0:0, target 0:1, target 0:2
        target 0:1 -> draft 0:3, judge 0:2, target 0:0, target 0:2
        judge 0:2 -> target 0:0
        target 0:0 -> judge 0:1
        judge 0:1 -> draft 2:3, target 2:2""",
        "A. b."
    ),
    *(
        Case(
            f"nothing is written after a draft step that {reason} ({schedule.value})",
            "a. b$", f"{text} B$", schedule, 3,
            "draft 0:1 -> target 0:0",
            settings={"longest": 4}
        )
        for reason, text in (("ends the text", "A$"), ("was cut", "AAAA"))
        for schedule in (PAPER, DEPTH)
    ),
    Case(
        "an aligned sibling waits until the ones before it are not",
        "a. b$", "X.|A. B$|C$", DEPTH, 1,
        """draft 0:1.1 -> draft 0:1, target 0:0, target 0:1.1
        target 0:0 -> draft 0:1, judge 0:1.1, target 0:1.1
        judge 0:1.1 -> draft 0:1, target 0:1.1
        draft 0:1 -> judge 0:1, target 0:1, target 0:1.1
        judge 0:1 -> draft 0:2.2, draft 0:2.3, target 0:1.1""",
        "A.", {"width": 2}
    ),
    Case(
        "an accepted sibling does not wait for later ones",
        "a. b$", "A.|X. B$|C$", DEPTH, 1,
        """draft 0:1 -> draft 0:1.1, target 0:0, target 0:1
        target 0:0 -> draft 0:1.1, judge 0:1, target 0:1
        judge 0:1 -> draft 0:2, draft 0:2.1, target 0:1""",
        "A.", {"width": 2}
    ),
    Case(
        "a late draft is waited for",
        "a. b$", "A. B$", DEPTH, 2, "target 0:0 -> draft 0:1"
    ),
    Case(
        "or rejected",
        "a. b$", "A. B$", DEPTH, 2, "target 0:0 -> draft 1:2, target 1:1",
        "a.", {"reject_late": True}
    ),
    Case(
        "unless it is in time",
        "a. b$", "A. B$", DEPTH, 2,
        """draft 0:1 -> draft 0:2, target 0:0, target 0:1
        target 0:0 -> draft 0:2, judge 0:1, target 0:1
        judge 0:1 -> draft 0:2, target 0:1""",
        "A.", {"reject_late": True}
    ),
    Case(
        "draft steps judged alone take rows, and target steps come last",
        "a. b. c$", "A. X. C$", DEPTH, 2,
        """start -> draft 0:1
        draft 0:1 -> draft 0:2, judge 0:1
        draft 0:2 -> judge 0:1
        judge 0:1 -> draft 0:3, judge 0:2
        judge 0:2 -> target 0:1
        target 0:1 -> draft 2:3""",
        "A. b.", {"needs_target_step": False, "max_target_rows": 1}
    ),
    Case(
        "without need of it the target writes at the root only",
        "a. b. c$", "A. X. C$", DEPTH, 2,
        """draft 0:1 -> draft 0:2, judge 0:1
        draft 0:2 -> judge 0:1, judge 0:2
        judge 0:2 -> judge 0:1
        judge 0:1 -> target 0:1""",
        "A.", {"needs_target_step": False}
    ),
    Case(
        "a pair that needs no verifier is decided at once: the target's step was cut",
        "aaaaa b. c$", "A. B. C$", SYNC, 2,
        """draft 0:1 -> draft 0:2
        draft 0:2 -> target 0:0, target 0:1, target 0:2
        target 0:0 -> target 0:1, target 0:2
        target 0:1 -> target 0:2
        target 0:2 -> target 1:1""",
        "aaaa", {"longest": 4}
    )
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_work_is_in_flight_as_the_transcript_says(case):
    run = run_of(case.targets, case.drafts, case.schedule, case.depth, **case.settings)
    for line in case.transcript.splitlines():
        name, expected = line.strip().split(" -> ")
        assert expected == (in_flight(run) if name == "start" else complete(run, name))
    assert " ".join(text_of(e.step) for e in run.emitted) == case.emits


def test_a_late_draft_leaves_a_correction_of_no_step():
    run = run_of("a. b$", "A. B$", DEPTH, 2, reject_late=True)
    complete(run, "target 0:0")
    [emitted] = run.emitted
    assert (emitted.origin.value, emitted.rejected) == ("correction", None)
    assert emitted.verdict and "late" in emitted.verdict.why


def test_rows_are_given_out_breadth_first():
    """Synchronous, width 2, depth 2: 7 nodes on 3 rows. The root and its level go
    first; the last wave has only what is still possible: below the first alternative
    nothing is left, below the second the first is accepted.
    """
    run = run_of("a. b. c$", "X.|A. B.|X. C$|C$", SYNC, 2, width=2, max_target_rows=3)
    while in_flight(run).startswith("draft"):
        run.step()
    assert in_flight(run) == "target 0:0, target 0:1, target 0:1.1"
    while not in_flight(run).startswith("target 0:2"):
        run.step()
    assert in_flight(run) == "target 0:2.2"
    emitted = [(text_of(e.step), e.origin.value) for e in run.run()]
    assert emitted == [("A.", "accepted"), ("B.", "accepted"), ("c$", "bonus")]
