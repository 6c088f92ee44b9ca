"""What the scheduler emits, case by case, in scripts that can be read.

Steps are texts (`lr/engine/texts.py`): "a." ends in a boundary, "a$" ends the text, "a" was cut. The draft writes in capitals, so the
output shows whose words were kept; steps that differ in nothing but case are aligned. "A.|B." are two alternatives; "-" none at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lr.engine.scripted import ScriptedRun, newest, oldest, shuffled
from lr.engine.texts import TextScript, quoted, step_of, text_of
from lr.spec.commands import Cancel, Draft, Drafted, Judge, Kind, NodeId, Score, Target, Targeted, Work
from lr.spec.limits import Limits
from lr.spec.schedule import LateDrafts, Schedule, SchedulerConfig

SYNC, PAPER, DEPTH = Schedule
ASYNC = (PAPER, DEPTH)
ROOMY = Limits(100)


@dataclass(frozen=True)
class Case:
    """A name that says what is shown; what target and draft would write; what must come out."""

    says: str
    targets: str
    drafts: str
    gives: str
    schedules: tuple[Schedule, ...] = (SYNC, PAPER, DEPTH)
    depth: int = 2
    width: int = 1
    limits: Limits = ROOMY
    needs_target_step: bool = True

    def config(self, schedule: Schedule) -> SchedulerConfig:
        return SchedulerConfig(self.limits, schedule, self.depth, self.width, needs_target_step=self.needs_target_step)

    @property
    def script(self) -> TextScript:
        return TextScript(self.targets.split(), [text.replace("-", "") for text in self.drafts.split()])


CASES = [
    # accept, correct, bonus
    Case(
        "an aligned draft step is kept, in the draft's words",
        targets="a. b$", drafts="A. B$",
        gives="A. accepted, B$ accepted",
    ),
    Case(
        "at the first pair that is not aligned the target's step is the correction, and drafting begins anew behind it",
        targets="a. b. c. d$", drafts="A. X. C. D$",
        gives="A. accepted, b. correction, C. accepted, D$ accepted",
    ),
    Case(
        "what is drafted behind a rejected step is worth nothing, aligned or not",
        targets="a. b. c$", drafts="X. B. C$", depth=3,
        gives="a. correction, B. accepted, C$ accepted",
    ),
    Case(
        "a synchronous cycle in which all is accepted ends with the target's step as bonus, whatever the draft would say there",
        targets="a. b. c. d$", drafts="A. B. X. X$", schedules=(SYNC,),
        gives="A. accepted, B. accepted, c. bonus, d$ correction",
    ),
    Case(
        "a window slides instead: no bonus, every position is judged",
        targets="a. b. c. d$", drafts="A. B. X. X$", schedules=ASYNC,
        gives="A. accepted, B. accepted, c. correction, d$ correction",
    ),
    Case(
        "depth 1, synchronous: a draft step, then a bonus",
        targets="a. b. c. d$", drafts="A. B. C. D$", schedules=(SYNC,), depth=1,
        gives="A. accepted, b. bonus, C. accepted, d$ bonus",
    ),
    Case(
        "depth 0 is plain decoding",
        targets="a. b$", drafts="A. B$", schedules=(SYNC, DEPTH), depth=0,
        gives="a. target, b$ target",
    ),
    # end of sequence
    Case(
        "both end the text and are aligned: the draft's step is kept and ends the chain",
        targets="a$", drafts="A$",
        gives="A$ accepted",
    ),
    Case(
        "both end the text but are not aligned: the target's step ends the chain",
        targets="a$", drafts="X$",
        gives="a$ correction",
    ),
    Case(
        "only the draft ends the text: not aligned, whatever the verifier might say",
        targets="a. b$", drafts="A$ B$",
        gives="a. correction, B$ accepted",
    ),
    Case(
        "only the target ends the text: not aligned, and the chain ends",
        targets="a$", drafts="A. B.",
        gives="a$ correction",
    ),
    Case(
        "a draft step that ends the text is the last of its cycle: there is no row behind it, and no bonus",
        targets="a. b$ c.", drafts="A. B$ C.", depth=3,
        gives="A. accepted, B$ accepted",
    ),
    Case(
        "the target has nothing but the end to say",
        targets="$", drafts="$",
        gives="$ accepted",
    ),
    # cut steps
    Case(
        "a draft step that was cut is never accepted, even if it is the target's, word for word",
        targets="aaa. b$", drafts="AAA B$", limits=Limits(100, 4),
        gives="aaa. correction, B$ accepted",
    ),
    Case(
        "a target step that was cut accepts nothing, and the step after it begins in mid-sentence: it is not drafted at all",
        targets="aaaaa a. b$", drafts="AAA. A. B$", limits=Limits(100, 4),
        gives="aaaa correction, a. target, B$ accepted",
    ),
    Case(
        "... unless half sentences are not to be ignored",
        targets="aaaaa a. b$", drafts="AAA. A. B$", limits=Limits(100, 4, ignore_half_sentence=False), schedules=ASYNC,
        gives="aaaa correction, A. accepted, B$ accepted",
    ),
    Case(
        "the longest step that is allowed is not cut if it ends there",
        targets="aaa. b$", drafts="AAA. B$", limits=Limits(100, 4),
        gives="AAA. accepted, B$ accepted",
    ),
    # budget
    Case(
        "the chain ends with its budget: 4 tokens are two steps",
        targets="a. b. c.", drafts="A. B. C.", limits=Limits(4),
        gives="A. accepted, B. accepted",
    ),
    Case(
        "a step that does not fit is cut, so a draft step there is never kept",
        targets="a. bb. c$", drafts="A. BB. C$", limits=Limits(4),
        gives="A. accepted, bb correction",
    ),
    Case(
        "a draft step may be longer than the target's: the budget counts what was emitted",
        targets="a. b. c.", drafts="A. XXXX. C.", limits=Limits(6),
        gives="A. accepted, b. correction, C. accepted",
    ),
    # drafts that fail
    Case(
        "no draft step, nothing to judge: the target's step as it is",
        targets="a. b$", drafts="- B$",
        gives="a. target, B$ accepted",
    ),
    Case(
        "a synchronous cycle ends where the drafter fails; if all before was accepted, with a bonus",
        targets="a. b. c$", drafts="A. - C$", schedules=(SYNC,), depth=3,
        gives="A. accepted, b. bonus, C$ accepted",
    ),
    Case(
        "... in a window it is an ordinary step of the target",
        targets="a. b. c$", drafts="A. - C$", schedules=ASYNC, depth=3,
        gives="A. accepted, b. target, C$ accepted",
    ),
    # width
    Case(
        "the second alternative is kept if it is aligned and the first is not",
        targets="a. b. c$", drafts="X.|A. B.|X. X$|C$", width=2, schedules=ASYNC,
        gives="A. accepted, B. accepted, C$ accepted",
    ),
    Case(
        "if both are aligned the first is kept",
        targets="aa. b$", drafts="AA.|aA. B$|B$", width=2,
        gives="AA. accepted, B$ accepted",
    ),
    Case(
        "if none is, the target's step is",
        targets="a. b$", drafts="X.|Y.|Z. B$|-|X$", width=3,
        gives="a. correction, B$ accepted",
    ),
    Case(
        "an alternative that is not there is passed over",
        targets="a. b$", drafts="-|A. -|-", width=2, schedules=ASYNC,
        gives="A. accepted, b$ target",
    ),
    Case(
        "the end of sequence is one alternative among others",
        targets="a. b$", drafts="A$|A. B.|B$", width=2,
        gives="A. accepted, B$ accepted",
    ),
    # verifiers that need no target step
    Case(
        "a step that is judged by itself is accepted without a step of the target; there is no bonus",
        targets="a. b. c. d$", drafts="A. B. C. D$", needs_target_step=False,
        gives="A. accepted, B. accepted, C. accepted, D$ accepted",
    ),
    Case(
        "where it is rejected the target writes one",
        targets="a. b. c$", drafts="A. X. C$", needs_target_step=False,
        gives="A. accepted, b. correction, C$ accepted",
    ),
    Case(
        "where the verifier is unsure the target writes one and the pair is judged",
        targets="a?. b?. c$", drafts="A?. X?. C$", needs_target_step=False,
        gives="A?. accepted, b?. correction, C$ accepted",
    ),
    Case(
        "an end of sequence that is accepted by itself ends the chain",
        targets="a$", drafts="A$", needs_target_step=False,
        gives="A$ accepted",
    ),
    Case(
        "a cut step is not accepted by itself either",
        targets="a. b$", drafts="AAAA B$", needs_target_step=False, limits=Limits(100, 3),
        gives="a. correction, B$ accepted",
    ),
    Case(
        "without a draft step the target writes its own",
        targets="a. b$", drafts="- B$", needs_target_step=False,
        gives="a. target, B$ accepted",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "schedule"),
    [
        pytest.param(case, schedule, id=f"{schedule.value}: {case.says}")
        for case in CASES
        for schedule in case.schedules
    ],
)
def test_case(case: Case, schedule: Schedule) -> None:
    for order in (oldest, newest, shuffled(1), shuffled(2)):
        emitted = ScriptedRun(case.config(schedule), case.script, order).run()
        assert ", ".join(f"{text_of(e.step)} {e.origin.value}" for e in emitted) == case.gives


# When things happen


def run_of(targets: str, drafts: str, schedule: Schedule, depth: int, **settings) -> ScriptedRun:
    script = TextScript(targets.split(), drafts.split())
    return ScriptedRun(SchedulerConfig(Limits(100), schedule, depth, **settings), script)


def in_work(run: ScriptedRun) -> str:
    """What is in flight, sorted: "draft 0:1, target 0:0"."""
    return ", ".join(sorted(f"{work.kind.value} {work.node}" for work in run.work))


def do(run: ScriptedRun, work: str) -> str:
    """Complete "draft 0:1"; returns what is in flight then."""
    kind, name = work.split()
    [found] = [piece for piece in run.work if piece.kind.value == kind and str(piece.node) == name]
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
    assert do(run, "judge 0:1") == "draft 3:4"  # two accepted, the bonus: the next cycle begins at step 3


def test_depth_has_a_target_step_at_the_frontier() -> None:
    """At most 2 drafts that are not verified; the target writes at 3 nodes. The window slides with the first accepted step."""
    run = run_of("a. b. c. d$", "A. B. C. D$", DEPTH, 2)
    assert in_work(run) == "draft 0:1, target 0:0"
    assert do(run, "draft 0:1") == "draft 0:2, target 0:0, target 0:1"
    assert do(run, "draft 0:2") == "target 0:0, target 0:1, target 0:2"
    assert do(run, "target 0:0") == "judge 0:1, target 0:1, target 0:2"
    assert do(run, "judge 0:1") == "draft 0:3, target 0:1, target 0:2"


def test_paper_has_pairs_in_flight() -> None:
    """2 pairs that are not committed, drafts included: the target does not begin at the frontier."""
    run = run_of("a. b. c. d$", "A. B. C. D$", PAPER, 2)
    assert in_work(run) == "draft 0:1, target 0:0"
    assert do(run, "draft 0:1") == "draft 0:2, target 0:0, target 0:1"
    assert do(run, "draft 0:2") == "target 0:0, target 0:1"
    assert do(run, "target 0:1") == "judge 0:2, target 0:0"
    assert do(run, "judge 0:2") == "target 0:0"  # aligned, but not committed: still in flight
    assert do(run, "target 0:0") == "judge 0:1"
    assert do(run, "judge 0:1") == "draft 0:3, target 0:2"  # both are committed now


def test_a_rejection_cancels_what_is_below_it_and_keeps_what_is_above() -> None:
    run = run_of("a. b. c. d$", "A. X. C. D$", DEPTH, 3)
    for work in ("draft 0:1", "draft 0:2", "target 0:1"):
        do(run, work)
    assert in_work(run) == "draft 0:3, judge 0:2, target 0:0, target 0:2"
    assert do(run, "judge 0:2") == "target 0:0"  # step 1 will be corrected: nothing is written behind the wrong one
    do(run, "target 0:0")
    assert do(run, "judge 0:1") == "draft 2:3, target 2:2"
    assert [text_of(e.step) for e in run.emitted] == ["A.", "b."]


@pytest.mark.parametrize("text", ["A$", "AAAA"], ids=["ends the text", "was cut"])
@pytest.mark.parametrize("schedule", [PAPER, DEPTH])
def test_nothing_is_written_behind_a_draft_step_that_ends_the_text_or_was_cut(schedule: Schedule, text: str) -> None:
    script = TextScript(["a.", "b$"], [text, "B$"])
    run = ScriptedRun(SchedulerConfig(Limits(100, 4), schedule, 3), script)
    assert do(run, "draft 0:1") == "target 0:0"


def test_siblings_are_decided_in_order() -> None:
    """The second alternative is known to be aligned; it is accepted as soon as the first is known not to be."""
    run = run_of("a. b$", "X.|A. B$|C$", DEPTH, 1, width=2)
    assert do(run, "draft 0:1.1") == "draft 0:1, target 0:0, target 0:1.1"
    do(run, "target 0:0")
    assert do(run, "judge 0:1.1") == "draft 0:1, target 0:1.1"
    assert not run.emitted
    do(run, "draft 0:1")
    assert do(run, "judge 0:1") == "draft 0:2.2, draft 0:2.3, target 0:1.1"
    assert [(text_of(e.step), e.verdict.aligned) for e in run.emitted if e.verdict] == [("A.", True)]


def test_an_accepted_sibling_does_not_wait_for_later_ones() -> None:
    run = run_of("a. b$", "A.|X. B$|C$", DEPTH, 1, width=2)
    do(run, "draft 0:1")
    do(run, "target 0:0")
    assert do(run, "judge 0:1") == "draft 0:2, draft 0:2.1, target 0:1"  # draft 0:1.1 is cancelled
    assert Work(Kind.DRAFT, NodeId(0, 1, 1)) not in run.work


def test_a_late_draft_is_waited_for_or_rejected() -> None:
    waits = run_of("a. b$", "A. B$", DEPTH, 2)
    assert do(waits, "target 0:0") == "draft 0:1"
    assert not waits.emitted
    rejects = run_of("a. b$", "A. B$", DEPTH, 2, late_drafts=LateDrafts.REJECT)
    assert do(rejects, "target 0:0") == "draft 1:2, target 1:1"
    [emitted] = rejects.emitted
    assert (text_of(emitted.step), emitted.origin.value, emitted.rejected) == ("a.", "correction", None)
    assert emitted.verdict and emitted.verdict.why == "the draft step was late"
    in_time = run_of("a. b$", "A. B$", DEPTH, 2, late_drafts=LateDrafts.REJECT)
    do(in_time, "draft 0:1")
    assert do(in_time, "target 0:0") == "draft 0:2, judge 0:1, target 0:1"
    assert do(in_time, "judge 0:1") == "draft 0:2, target 0:1"
    assert do(in_time, "target 0:1") == "draft 2:3, target 2:2" or in_time.done
    assert [e.origin.value for e in in_time.emitted] == ["accepted", "correction"]


def test_rows_are_given_out_breadth_first() -> None:
    """Synchronous, width 2, depth 2: 7 nodes on 3 rows. The root and its level go first; the last wave has only what is still possible."""
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
    assert quoted(run.emitted[-1].step) == '"c$"' and run.emitted[-1].origin.value == "bonus"


def test_scores_take_rows_and_target_steps_come_last() -> None:
    run = run_of("a. b. c$", "A. X. C$", DEPTH, 2, needs_target_step=False, max_target_rows=1)
    assert in_work(run) == "draft 0:1"
    assert do(run, "draft 0:1") == "draft 0:2, score 0:1"
    assert do(run, "draft 0:2") == "score 0:1"
    assert do(run, "score 0:1") == "draft 0:3, score 0:2"
    assert do(run, "score 0:2") == "target 0:1"  # rejected: what is drafted behind it is cancelled, the target writes
    assert do(run, "target 0:1") == "draft 2:3"


def test_without_need_of_it_the_target_writes_at_the_root_only() -> None:
    run = run_of("a. b. c$", "A. X. C$", DEPTH, 2, needs_target_step=False)
    assert do(run, "draft 0:1") == "draft 0:2, score 0:1"
    assert do(run, "draft 0:2") == "score 0:1, score 0:2"
    assert do(run, "score 0:2") == "score 0:1"  # rejected, but step 0 is not decided yet
    assert do(run, "score 0:1") == "target 0:1"


def test_a_doubt_that_no_longer_matters_costs_the_target_nothing_more() -> None:
    """The second alternative is in doubt, so the target writes; the first is accepted, so it stops."""
    run = run_of("a. b$", "A.|A?. B$|X$", DEPTH, 1, width=2, needs_target_step=False)
    do(run, "draft 0:1.1")
    assert do(run, "score 0:1.1") == "draft 0:1, target 0:0"
    do(run, "draft 0:1")
    assert do(run, "score 0:1") == "draft 0:2, draft 0:2.1"
    assert Cancel(Work(Kind.TARGET, NodeId(0, 0))) in run.turns[-1].commands


def test_a_pair_that_needs_no_verifier_is_decided_at_once() -> None:
    """Synchronous: the root's target step was cut, so the verdicts on what follows are not waited for."""
    script = TextScript(["aaaaa", "b.", "c$"], ["A.", "B.", "C$"])
    run = ScriptedRun(SchedulerConfig(Limits(100, 4), SYNC, 2), script)
    for work in ("draft 0:1", "draft 0:2", "target 0:0", "target 0:1"):
        do(run, work)
    assert do(run, "target 0:2") == "target 1:1"
    assert [text_of(e.step) for e in run.emitted] == ["aaaa"]


def test_the_commands_carry_what_a_driver_needs() -> None:
    run = run_of("a. b$", "A.|X. B$|C$", DEPTH, 1, width=2)
    root, first, second = NodeId(0, 0), NodeId(0, 1), NodeId(0, 1, 1)
    assert run.turns[0].commands == (Draft(root, (first, second), 100), Target(root, 100))
    assert run.tell(Drafted(first, step_of("A."))).commands == (Target(first, 98),)
    judge = Judge(first, root, step_of("A."), step_of("a."))
    assert run.tell(Targeted(root, step_of("a."))).commands == (judge,)
    scored = run_of("a. b$", "A. B$", DEPTH, 1, needs_target_step=False)
    assert Score(first, root, step_of("A.")) in scored.tell(Drafted(first, step_of("A."))).commands
