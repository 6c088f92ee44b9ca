"""What the scheduler emits, case by case, in scripts that can be read.

Steps are texts (`lr/watch/scripted.py`): "a." ends in a boundary, "a$" ends the text,
"a" was cut. The draft writes in capitals, so the output shows whose words were kept;
steps that differ in nothing but case are aligned. "A.|B." are two alternatives; "-"
none at all.
"""

from dataclasses import dataclass

import pytest

from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.watch.scripted import ScriptedRun, TextScript, newest, oldest, shuffled, text_of

SYNC, PAPER, DEPTH = Schedule
ASYNC = (PAPER, DEPTH)
ROOMY = Limits(100)


@dataclass(frozen=True)
class Case:
    """A name that says what is shown; what target and draft would write; what must come
    out."""

    says: str
    targets: str
    drafts: str
    gives: str
    schedules: tuple[Schedule, ...] = (SYNC, PAPER, DEPTH)
    depth: int = 2
    width: int = 1
    limits: Limits = ROOMY
    needs_target_step: bool = True

    def config(self, schedule):
        return SchedulerConfig(
            self.limits,
            schedule,
            self.depth,
            self.width,
            needs_target_step=self.needs_target_step,
        )

    @property
    def script(self):
        return TextScript(
            self.targets.split(),
            [text.replace("-", "") for text in self.drafts.split()],
        )


CASES = [
    # accept, correct, bonus
    Case(
        "an aligned draft step is kept, in the draft's words",
        targets="a. b$", drafts="A. B$",
        gives="A. accepted, B$ accepted"
    ),
    Case(
        "at the first pair that is not aligned the target's step is the correction, "
        "and drafting begins anew after it",
        targets="a. b. c. d$", drafts="A. X. C. D$",
        gives="A. accepted, b. correction, C. accepted, D$ accepted"
    ),
    Case(
        "what is drafted after a rejected step is worth nothing, aligned or not",
        targets="a. b. c$", drafts="X. B. C$", depth=3,
        gives="a. correction, B. accepted, C$ accepted"
    ),
    Case(
        "a synchronous cycle in which all is accepted ends with the target's step as "
        "bonus, whatever the draft would say there",
        targets="a. b. c. d$", drafts="A. B. X. X$", schedules=(SYNC,),
        gives="A. accepted, B. accepted, c. bonus, d$ correction"
    ),
    Case(
        "a window slides instead: no bonus, every position is judged",
        targets="a. b. c. d$", drafts="A. B. X. X$", schedules=ASYNC,
        gives="A. accepted, B. accepted, c. correction, d$ correction"
    ),
    Case(
        "depth 1, synchronous: a draft step, then a bonus",
        targets="a. b. c. d$", drafts="A. B. C. D$", schedules=(SYNC,), depth=1,
        gives="A. accepted, b. bonus, C. accepted, d$ bonus"
    ),
    Case(
        "depth 0 is plain decoding",
        targets="a. b$", drafts="A. B$", schedules=(SYNC, DEPTH), depth=0,
        gives="a. target, b$ target"
    ),
    # end of sequence
    Case(
        "both end the text and are aligned: the draft's step is kept and ends the chain",
        targets="a$", drafts="A$",
        gives="A$ accepted"
    ),
    Case(
        "both end the text but are not aligned: the target's step ends the chain",
        targets="a$", drafts="X$",
        gives="a$ correction"
    ),
    Case(
        "only the draft ends the text: not aligned, whatever the verifier might say",
        targets="a. b$", drafts="A$ B$",
        gives="a. correction, B$ accepted"
    ),
    Case(
        "only the target ends the text: not aligned, and the chain ends",
        targets="a$", drafts="A. B.",
        gives="a$ correction"
    ),
    Case(
        "a draft step that ends the text is the last of its cycle: there is no row "
        "after it, and no bonus",
        targets="a. b$ c.", drafts="A. B$ C.", depth=3,
        gives="A. accepted, B$ accepted"
    ),
    Case(
        "the target has nothing but the end to say",
        targets="$", drafts="$",
        gives="$ accepted"
    ),
    # cut steps
    Case(
        "a draft step that was cut is never accepted, even if it is the target's, word for word",
        targets="aaa. b$", drafts="AAA B$", limits=Limits(100, 4),
        gives="aaa. correction, B$ accepted"
    ),
    Case(
        "a target step that was cut accepts nothing, and the step after it begins in "
        "mid-sentence: it is not drafted at all",
        targets="aaaaa a. b$", drafts="AAA. A. B$", limits=Limits(100, 4),
        gives="aaaa correction, a. target, B$ accepted"
    ),
    Case(
        "... unless half sentences are not to be ignored",
        targets="aaaaa a. b$", drafts="AAA. A. B$",
        limits=Limits(100, 4, ignore_half_sentence=False), schedules=ASYNC,
        gives="aaaa correction, A. accepted, B$ accepted"
    ),
    Case(
        "the longest step that is allowed is not cut if it ends there",
        targets="aaa. b$", drafts="AAA. B$", limits=Limits(100, 4),
        gives="AAA. accepted, B$ accepted"
    ),
    # budget
    Case(
        "the chain ends with its budget: 4 tokens are two steps",
        targets="a. b. c.", drafts="A. B. C.", limits=Limits(4),
        gives="A. accepted, B. accepted"
    ),
    Case(
        "a step that does not fit is cut, so a draft step there is never kept",
        targets="a. bb. c$", drafts="A. BB. C$", limits=Limits(4),
        gives="A. accepted, bb correction"
    ),
    Case(
        "a draft step may be longer than the target's: the budget counts what was emitted",
        targets="a. b. c.", drafts="A. XXXX. C.", limits=Limits(6),
        gives="A. accepted, b. correction, C. accepted"
    ),
    # drafts that fail
    Case(
        "no draft step, nothing to judge: the target's step as it is",
        targets="a. b$", drafts="- B$",
        gives="a. target, B$ accepted"
    ),
    Case(
        "a synchronous cycle ends where the drafter fails; if all before was "
        "accepted, with a bonus",
        targets="a. b. c$", drafts="A. - C$", schedules=(SYNC,), depth=3,
        gives="A. accepted, b. bonus, C$ accepted"
    ),
    Case(
        "... in a window it is an ordinary step of the target",
        targets="a. b. c$", drafts="A. - C$", schedules=ASYNC, depth=3,
        gives="A. accepted, b. target, C$ accepted"
    ),
    # width
    Case(
        "the second alternative is kept if it is aligned and the first is not",
        targets="a. b. c$", drafts="X.|A. B.|X. X$|C$", width=2, schedules=ASYNC,
        gives="A. accepted, B. accepted, C$ accepted"
    ),
    Case(
        "if both are aligned the first is kept",
        targets="aa. b$", drafts="AA.|aA. B$|B$", width=2,
        gives="AA. accepted, B$ accepted"
    ),
    Case(
        "if none is, the target's step is",
        targets="a. b$", drafts="X.|Y.|Z. B$|-|X$", width=3,
        gives="a. correction, B$ accepted"
    ),
    Case(
        "an alternative that is not there is passed over",
        targets="a. b$", drafts="-|A. -|-", width=2, schedules=ASYNC,
        gives="A. accepted, b$ target"
    ),
    Case(
        "the end of sequence is one alternative among others",
        targets="a. b$", drafts="A$|A. B.|B$", width=2,
        gives="A. accepted, B$ accepted"
    ),
    # verifiers that need no target step
    Case(
        "a step that is judged by itself is accepted without a step of the target; "
        "there is no bonus",
        targets="a. b. c. d$", drafts="A. B. C. D$", needs_target_step=False,
        gives="A. accepted, B. accepted, C. accepted, D$ accepted"
    ),
    Case(
        "where it is rejected the target writes one",
        targets="a. b. c$", drafts="A. X. C$", needs_target_step=False,
        gives="A. accepted, b. correction, C$ accepted"
    ),
    Case(
        "an end of sequence that is accepted by itself ends the chain",
        targets="a$", drafts="A$", needs_target_step=False,
        gives="A$ accepted"
    ),
    Case(
        "a cut step is not accepted by itself either",
        targets="a. b$", drafts="AAAA B$", needs_target_step=False, limits=Limits(100, 3),
        gives="a. correction, B$ accepted"
    ),
    Case(
        "without a draft step the target writes its own",
        targets="a. b$", drafts="- B$", needs_target_step=False,
        gives="a. target, B$ accepted"
    )
]  # fmt: skip


@pytest.mark.parametrize(
    "case, schedule",
    [
        pytest.param(case, schedule, id=f"{schedule.value}: {case.says}")
        for case in CASES
        for schedule in case.schedules
    ],
)
def test_the_scheduler_emits_what_the_case_says(case, schedule):
    for order in (oldest, newest, shuffled(1), shuffled(2)):
        emitted = ScriptedRun(case.config(schedule), case.script, order).run()
        assert (
            ", ".join(f"{text_of(e.step)} {e.origin.value}" for e in emitted)
            == case.gives
        )
