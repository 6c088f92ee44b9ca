"""The state that a trace adds up to is the state of those who made it: the scheduler's
tree at every turn, the cache after every change.
"""

import random

import pytest
from tests_root import blocks

from lr.spec.protocol import Cancel, Limits, Schedule, SchedulerConfig
from lr.watch.scripted import ScriptedRun, TextScript, scripted_trace, shuffled, text_of
from lr.watch.trace.file import parse_trace, trace_lines
from lr.watch.trace.state import state_at

SCRIPT = TextScript("a. b. c. d. e$".split(), "A.|x. x.|B. C.|y. |D. E$".split())


def tree(root):
    """The names of all nodes that have not left the tree."""
    children = [child for child in root.children if not child.released]
    return {str(root.id)}.union(*map(tree, children))


def latest(trace):
    return state_at(trace, len(trace.records))


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("seed", range(3))
def test_the_tree_is_the_schedulers_at_every_turn(schedule, seed):
    needs_target_step = seed % 2 == 0
    config = SchedulerConfig(
        Limits(100), schedule, 3, 2, needs_target_step=needs_target_step
    )
    run = ScriptedRun(config, SCRIPT, shuffled(seed))
    while not run.done:
        for command in run.step().commands:
            if isinstance(command, Cancel):  # reported all the same: nothing changes
                nodes = latest(scripted_trace(run)).nodes
                run.tell(run.event_of(command.work))
                assert latest(scripted_trace(run)).nodes == nodes
        trace = scripted_trace(run)
        state = latest(trace)
        assert state.root == str(run.scheduler.root.id)
        assert list(state.work) == [(w.kind.value, str(w.node)) for w in run.work]
        assert state.text == "".join(text_of(e.step) for e in run.emitted)
        if not run.done:
            assert {node.name for node in state.live} == tree(run.scheduler.root)
    assert state.done
    origins = [emitted.origin.value for emitted in run.emitted]
    assert [emitted.origin for emitted in state.emitted] == origins
    again = parse_trace(list(trace_lines(trace)))
    assert again.records == trace.records
    # Back and forth: a state depends on its number alone.
    states = [state_at(trace, number) for number in range(len(trace.records) + 1)]
    for number in random.Random(0).sample(range(len(states)), 20):
        assert state_at(trace, number) == states[number]


def test_the_document_shows_what_the_code_prints(capsys):
    [program] = blocks("docs/scheduler.md")
    [printed] = blocks("docs/scheduler.md", "text")
    exec(program, {"__name__": "document"})
    assert capsys.readouterr().out == printed
