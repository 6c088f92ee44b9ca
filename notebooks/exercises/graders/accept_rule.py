"""The grader of accept_rule.py: every order of every set of verdicts, then your
function beside the package's scheduler.
"""

from __future__ import annotations

from functools import partial
from itertools import permutations, product
from types import ModuleType

from exercise_kit import Check, Decide, Examples, Wrong, outcome_of

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
NEXT = "at_the_root"
SCRIPT = TextScript(
    targets=["a.", "b.", "c.", "d.", "e$"],
    drafts=["A.|x.|A.", "x.|B.|x.", "x.|y.|z.", "x.||D.", "y$|E$|z$"],
)
WIDTH = 3
NAMES = {None: "not known yet", True: "aligned", False: "not aligned"}


def told(said: object) -> str:
    """An outcome in words."""
    return (
        "WAIT"
        if said is Decide.WAIT
        else "CORRECT"
        if said is Decide.CORRECT
        else str(said)
    )


def expect(
    answer: ModuleType,
    verdicts: list[bool | None],
    ready: bool,
    more: bool,
    right: int | Decide,
) -> None:
    """`Wrong` if decide says something else."""
    said = answer.decide(list(verdicts), ready, more)
    if said is None:
        raise Wrong("decide returned None: does every path end with a return?")
    if said is not right and not (type(said) is int and said == right):
        listed = ", ".join(NAMES[verdict] for verdict in verdicts) or "no alternative"
        step = "is there" if ready else "is not there yet"
        coming = "; drafts are still to come" if more else ""
        raise Wrong(
            f"Verdicts: {listed}; the target's step {step}{coming}. decide says {told(said)}, and "
            f"{told(right)} is right."
        )


def certain_cases(answer: ModuleType) -> None:
    expect(answer, [True], True, False, 0)
    expect(answer, [False], True, False, Decide.CORRECT)
    expect(answer, [None], True, False, Decide.WAIT)
    expect(answer, [], True, False, Decide.CORRECT)
    expect(answer, [], False, False, Decide.WAIT)


def drafts_to_come(answer: ModuleType) -> None:
    expect(answer, [], True, True, Decide.WAIT)


def no_needless_waiting(answer: ModuleType) -> None:
    expect(answer, [True, None, None], True, False, 0)
    expect(answer, [False, True, None], True, False, 1)
    expect(answer, [True, None], False, False, 0)


def any_order(answer: ModuleType) -> None:
    for verdicts in product([True, False], repeat=3):
        right = verdicts.index(True) if any(verdicts) else Decide.CORRECT
        for order in permutations(range(3)):
            known: list[bool | None] = [None, None, None]
            for number in order:
                known[number] = verdicts[number]
                before = known[: right + 1] if isinstance(right, int) else known
                expect(
                    answer, known, True, False, Decide.WAIT if None in before else right
                )


def beside_the_scheduler(answer: ModuleType) -> None:
    for seed in range(60):
        config = SchedulerConfig(Limits(max_tokens=100), depth=1, width=WIDTH)
        run = ScriptedRun(config, SCRIPT, shuffled(seed))
        root, written = run.scheduler.root.id, set[NodeId]()
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
            emitted = [
                command.emitted
                for command in turn.commands
                if isinstance(command, Emit)
            ]
            right: int | Decide = Decide.WAIT
            if emitted and emitted[0].origin is Origin.ACCEPTED:
                right = list(verdicts.values()).index(True)
            elif emitted:
                right = Decide.CORRECT
            expect(answer, list(verdicts.values()), root in written, False, right)
            if emitted:
                root, verdicts = run.scheduler.root.id, dict.fromkeys(range(WIDTH))


CHECKS = (
    Check("one alternative, or none",
          "A verdict that is None is not known yet; only False rejects.", certain_cases),
    Check("a fast target and a draft that has not begun",
          "An empty list can mean “none will come” or “none has come yet”; `drafts_to_come` says "
          "which.", drafts_to_come),
    Check("decisions that are certain already",
          "Go through the alternatives in their order and stop at the first that is not rejected.",
          no_needless_waiting),
    Check("all orders in which three verdicts can come",
          "The decision may depend on the verdicts, never on which came first.", any_order),
    Check("sixty runs beside the package's scheduler, event by event",
          "Compare with the three rules in the exercise's text, one by one.",
          beside_the_scheduler),
)  # fmt: skip


def examples(answer: ModuleType) -> Examples:
    """What it says to every set of up to three verdicts."""
    for count in range(4):
        for verdicts in product([True, False, None], repeat=count):
            for ready, more in product([True, False], repeat=2):
                call = partial(answer.decide, list(verdicts), ready, more)
                yield f"{verdicts} {ready} {more}", outcome_of(call)
