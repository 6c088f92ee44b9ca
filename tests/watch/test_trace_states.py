"""The state that a trace adds up to is the state of those who made it: the scheduler's
tree at every turn, the cache after every change.
"""

from __future__ import annotations

import random

import pytest
import torch

from lr.engine.recorder import CacheRecorder
from lr.errors import OutOfBlocks
from lr.kvcache.branch import BlockTable
from lr.kvcache.cache import PagedKVCache
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.scheduler import Node
from lr.trace import Trace
from lr.watch.scripted import ScriptedRun, TextScript, shuffled
from lr.watch.trace.file import Header, no_bytes, records_of
from lr.watch.trace.state import State, apply_event, state_at
from lr.watch.trace.virtual import scripted_trace

SCRIPT = TextScript(
    ["a.", "b.", "c.", "d.", "e$"], ["A.|x.", "x.|B.", "C.|y.", "|D.", "E$"]
)


def tree(root: Node) -> set[str]:
    """The names of all nodes that have not left the tree."""
    return {str(root.id)}.union(
        *(tree(child) for child in root.children if not child.released)
    )


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("seed", range(4))
def test_the_tree_is_the_schedulers_at_every_turn(
    schedule: Schedule, seed: int
) -> None:
    config = SchedulerConfig(
        Limits(100), schedule, depth=3, width=2, needs_target_step=seed % 2 == 0
    )
    run = ScriptedRun(config, SCRIPT, shuffled(seed))
    while not run.done:
        run.step()
        trace = scripted_trace(run)
        state = state_at(trace, len(trace.records))
        assert state.root == str(run.scheduler.root.id)
        assert [(kind, name) for kind, name in state.work] == [
            (w.kind.value, str(w.node)) for w in run.work
        ]
        assert state.text == "".join(
            "".join(map(chr, one.step.tokens)) for one in run.emitted
        )
        if not run.done:
            assert {node.name for node in state.live} == tree(run.scheduler.root)
        for prefix, steps in run.prefixes.items():
            before = len(run.emitted) if prefix == run.scheduler.root.id else None
            if before is not None:
                assert len(steps) == before
    assert state.done
    assert [one.origin for one in state.emitted] == [
        one.origin.value for one in run.emitted
    ]
    assert not state.work


def test_going_back_and_forth() -> None:
    run = ScriptedRun(SchedulerConfig(Limits(100), depth=3, width=2), SCRIPT)
    run.run()
    trace = scripted_trace(run)
    states = [state_at(trace, number) for number in range(len(trace.records) + 1)]
    order = random.Random(0).sample(range(len(states)), len(states))
    assert all(state_at(trace, number) == states[number] for number in order)


class Machine:
    """Random changes of a real cache, recorded."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        size = {
            "num_layers": 1,
            "num_kv_heads": 1,
            "head_dim": 2,
            "num_blocks": 12,
            "block_size": 4,
        }
        self.cache = PagedKVCache(**size, dtype=torch.float32, device="cpu")
        self.trace = Trace(detailed=True)
        self.cache.observer = CacheRecorder(self.trace, "target")
        self.tables: list[BlockTable] = []

    def change(self) -> None:
        what = self.chance.choice(
            ["new", "fork", "append", "append", "fail", "truncate", "release", "hold"]
        )
        chosen = self.chance.choice(self.tables) if self.tables else None
        if what == "new" or chosen is None:
            self.tables.append(self.cache.new())
        elif what == "fork":
            self.tables.append(self.cache.fork(chosen))
        elif what in ("append", "fail"):
            self.append(fails=what == "fail")
        elif what == "truncate":
            self.cache.truncate(chosen, self.chance.randint(0, chosen.length))
        elif what == "release":
            self.cache.release(chosen)
            self.tables.remove(chosen)
        else:
            self.cache.observer.tag(chosen, (0, len(self.tables), 1))

    def append(self, *, fails: bool) -> None:
        batch = self.chance.sample(
            self.tables, self.chance.randint(1, len(self.tables))
        )
        try:
            with self.cache.append(batch, [self.chance.randint(0, 5) for _ in batch]):
                if fails:
                    raise ZeroDivisionError
        except (OutOfBlocks, ZeroDivisionError):
            pass


@pytest.mark.parametrize("seed", range(6))
def test_the_blocks_are_those_of_the_cache_after_every_change(seed: int) -> None:
    machine = Machine(seed)
    state = State.begin(
        Header("lockstep", caches={"target": {"blocks": 12, "block_size": 4}})
    )
    for _ in range(150):
        machine.change()
        for record in records_of(machine.trace.events, no_bytes):
            apply_event(state, record)
        machine.trace.events.clear()
        shown = state.caches["target"]
        held = sorted((table.length, tuple(table.blocks)) for table in machine.tables)
        assert (
            sorted((one.length, tuple(one.blocks)) for one in shown.branches.values())
            == held
        )
        pool = machine.cache.pool
        assert [len(shown.owners(block)) for block in range(12)] == [
            pool.refcount(block) for block in range(12)
        ]
        assert {block: len(of) for block, of in shown.owners_by_block().items()} == {
            block: pool.refcount(block) for block in sorted(shown.owners_by_block())
        }
