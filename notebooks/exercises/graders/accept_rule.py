"""The grader of accept_rule.py: every order of every set of verdicts, then your
function beside the package's scheduler.
"""

from __future__ import annotations

from functools import partial
from itertools import permutations, product
from types import ModuleType

from exercise_kit import Decide, Examples, check, expect, outcome_of

from lr.spec.protocol import (
    Drafted,
    Emit,
    Judged,
    Limits,
    NodeId,
    SchedulerConfig,
    Targeted,
)
from lr.types import Origin
from lr.watch.scripted import ScriptedRun, TextScript, shuffled

PRAISE = "Right in every order of events, and never later than need be: the package does the same."
NEXT = "controller"
SCRIPT = TextScript(
    targets=["a.", "b.", "c.", "d.", "e$"],
    drafts=["A.|x.|A.", "x.|B.|x.", "x.|y.|z.", "x.||D.", "y$|E$|z$"],
)
WIDTH = 3
NAMES = {None: "not known yet", True: "aligned", False: "not aligned"}


def in_words(outcome: object) -> str:
    return outcome.name if isinstance(outcome, Decide) else str(outcome)


def decides(
    answer: ModuleType,
    verdicts: list[bool | None],
    right: int | Decide,
    ready: bool = True,
    more: bool = False,
) -> None:
    """`Wrong` if decide says something else."""
    outcome = answer.decide(list(verdicts), ready, more)
    says = "decide returned None: does every path end with a return?"
    expect(outcome is not None, says)
    same = type(outcome) is type(right) and outcome == right
    listed = ", ".join(NAMES[verdict] for verdict in verdicts) or "no alternative"
    step = "is there" if ready else "is not there yet"
    coming = "; drafts are still to come" if more else ""
    says = (
        f"Verdicts: {listed}; the target's step {step}{coming}. decide says "
        f"{in_words(outcome)}, and {in_words(right)} is right."
    )
    expect(same, says)


@check(
    "one alternative, or none",
    "A verdict that is None is not known yet; only False rejects. And the target's step "
    "can be taken once it is there, not before.",
)
def certain_cases(answer: ModuleType) -> None:
    decides(answer, [True], 0)
    decides(answer, [False], Decide.CORRECT)
    decides(answer, [None], Decide.WAIT)
    decides(answer, [], Decide.CORRECT)
    decides(answer, [], Decide.WAIT, ready=False)


@check(
    "a fast target and a draft that has not begun",
    "An empty list can mean “none will come” or “none has come yet”; `drafts_to_come` "
    "says which.",
)
def drafts_to_come(answer: ModuleType) -> None:
    decides(answer, [], Decide.WAIT, more=True)


@check(
    "decisions that are certain already",
    "Go through the alternatives in their order and stop at the first that is not "
    "rejected.",
)
def no_needless_waiting(answer: ModuleType) -> None:
    decides(answer, [True, None, None], 0)
    decides(answer, [False, True, None], 1)
    decides(answer, [True, None], 0, ready=False)


@check(
    "all orders in which three verdicts can come",
    "The decision may depend on the verdicts, never on which came first.",
)
def any_order(answer: ModuleType) -> None:
    for verdicts in product([True, False], repeat=3):
        right = verdicts.index(True) if any(verdicts) else Decide.CORRECT
        for order in permutations(range(3)):
            known: list[bool | None] = [None, None, None]
            for number in order:
                known[number] = verdicts[number]
                before = known[: right + 1] if isinstance(right, int) else known
                decides(answer, known, Decide.WAIT if None in before else right)


@check(
    "sixty runs beside the package's scheduler, event by event",
    "Compare with the three rules in the exercise's text, one by one.",
)
def beside_the_scheduler(answer: ModuleType) -> None:
    for seed in range(60):
        config = SchedulerConfig(Limits(max_tokens=100), depth=1, width=WIDTH)
        run = ScriptedRun(config, SCRIPT, shuffled(seed))
        root = run.scheduler.root.id
        written = set[NodeId]()
        verdicts: dict[int, bool | None] = dict.fromkeys(range(WIDTH))
        while not run.done:
            turn = run.step()
            match turn.event:
                case Targeted(node):
                    written.add(node)
                case Drafted(node, None):
                    del verdicts[node.number % WIDTH]
                case Judged(node, verdict):
                    verdicts[node.number % WIDTH] = verdict.aligned
            emits = [each for each in turn.commands if isinstance(each, Emit)]
            known = list(verdicts.values())
            right: int | Decide = Decide.WAIT
            if emits:
                accepted = emits[0].emitted.origin is Origin.ACCEPTED
                right = known.index(True) if accepted else Decide.CORRECT
            decides(answer, known, right, ready=root in written)
            if emits:
                root = run.scheduler.root.id
                verdicts = dict.fromkeys(range(WIDTH))


def examples(answer: ModuleType) -> Examples:
    """What it says to every set of up to three verdicts."""
    for count in range(4):
        for verdicts in product([True, False, None], repeat=count):
            for ready, more in product([True, False], repeat=2):
                call = partial(answer.decide, list(verdicts), ready, more)
                yield f"{verdicts} {ready} {more}", outcome_of(call)
