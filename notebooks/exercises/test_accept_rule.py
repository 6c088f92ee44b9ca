"""The grader of accept_rule.py: every order of every set of verdicts, then your function beside the
package's scheduler.
"""

from __future__ import annotations

from itertools import permutations, product
from types import ModuleType

import pytest
from exercise_kit import Decide

from lr.lab.scripted import ScriptedRun, TextScript, shuffled
from lr.spec.protocol import Drafted, Emit, Judged, Limits, NodeId, SchedulerConfig, Targeted
from lr.types import Origin


def test_certain_cases(answer: ModuleType) -> None:
    """One alternative: its verdict decides; without one there is nothing but the target's step."""
    assert answer.decide([True], True, False) == 0
    assert answer.decide([False], True, False) is Decide.CORRECT
    assert answer.decide([None], True, False) is Decide.WAIT
    assert answer.decide([], True, False) is Decide.CORRECT
    assert answer.decide([], False, False) is Decide.WAIT


def test_drafts_that_are_still_to_come_are_waited_for(answer: ModuleType) -> None:
    """The target is fast and the draft has not begun: no reason to give up on it."""
    assert answer.decide([], True, True) is Decide.WAIT


def test_what_is_certain_is_not_waited_for(answer: ModuleType) -> None:
    """The first alternative is aligned: the others do not matter any more, nor does the target's
    step.
    """
    assert answer.decide([True, None, None], True, False) == 0
    assert answer.decide([False, True, None], True, False) == 1
    assert answer.decide([True, None], False, False) == 0


@pytest.mark.parametrize("verdicts", list(product([True, False], repeat=3)), ids=str)
def test_the_order_of_the_verdicts_decides_nothing(
    answer: ModuleType, verdicts: tuple[bool, ...]
) -> None:
    """All six orders in which three verdicts can come: always the same outcome, as early as it is
    certain.
    """
    right = verdicts.index(True) if any(verdicts) else Decide.CORRECT
    for order in permutations(range(3)):
        known: list[bool | None] = [None, None, None]
        for number in order:
            known[number] = verdicts[number]
            certain = (
                None not in known[: right + 1] if isinstance(right, int) else None not in known
            )
            assert answer.decide(known, True, False) == (right if certain else Decide.WAIT)


SCRIPT = TextScript(
    targets=["a.", "b.", "c.", "d.", "e$"],
    drafts=["A.|x.|A.", "x.|B.|x.", "x.|y.|z.", "x.||D.", "y$|E$|z$"],
)
WIDTH = 3


@pytest.mark.parametrize("seed", range(60))
def test_beside_the_scheduler(answer: ModuleType, seed: int) -> None:
    """The scheduler runs a script in a random order. After every event your function must say what
    it does about the root.
    """
    run = ScriptedRun(
        SchedulerConfig(Limits(max_tokens=100), depth=1, width=WIDTH), SCRIPT, shuffled(seed)
    )
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
        said = answer.decide(list(verdicts.values()), root in written, False)
        emitted = [command.emitted for command in turn.commands if isinstance(command, Emit)]
        assert (said is not Decide.WAIT) == bool(emitted), f"{said} for {verdicts}"
        if emitted:
            assert (said is Decide.CORRECT) == (emitted[0].origin is not Origin.ACCEPTED)
            assert said is Decide.CORRECT or list(verdicts.values())[said] is True
            root, verdicts = run.scheduler.root.id, dict.fromkeys(range(WIDTH))
