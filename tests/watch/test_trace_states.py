"""The state that a trace adds up to is the state of those who made it: the scheduler's
tree at every turn, the cache after every change.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import torch

from lr.engine.recorder import CacheRecorder
from lr.errors import OutOfBlocks
from lr.kvcache.branch import BlockTable
from lr.kvcache.cache import PagedKVCache
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.scheduler import Node
from lr.trace import Trace
from lr.watch.scripted import ScriptedRun, TextScript, shuffled, text_of
from lr.watch.trace.file import Header, no_bytes, parse_trace, records_of, trace_lines
from lr.watch.trace.record import scripted_trace
from lr.watch.trace.state import State, apply_event, state_at

SCRIPT = TextScript(
    ["a.", "b.", "c.", "d.", "e$"], ["A.|x.", "x.|B.", "C.|y.", "|D.", "E$"]
)


def tree(root: Node) -> set[str]:
    """The names of all nodes that have not left the tree."""
    children = [child for child in root.children if not child.released]
    return {str(root.id)}.union(*map(tree, children))


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("seed", range(3))
def test_the_tree_is_the_schedulers_at_every_turn(
    schedule: Schedule, seed: int
) -> None:
    needs_target_step = seed % 2 == 0
    config = SchedulerConfig(
        Limits(100), schedule, 3, 2, needs_target_step=needs_target_step
    )
    run = ScriptedRun(config, SCRIPT, shuffled(seed))
    while not run.done:
        run.step()
        trace = scripted_trace(run)
        state = state_at(trace, len(trace.records))
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


class Machine:
    """Random changes of a real cache, recorded."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cache = PagedKVCache(
            num_layers=1,
            num_kv_heads=1,
            head_dim=2,
            num_blocks=12,
            block_size=4,
            dtype=torch.float32,
            device="cpu",
        )
        self.trace = Trace(detailed=True)
        self.cache.observer = CacheRecorder(self.trace, "target")
        self.tables: list[BlockTable] = []

    def change(self) -> None:
        table = self.chance.choice(self.tables) if self.tables else None
        changes = [
            "new",
            "fork",
            "append",
            "append",
            "fail",
            "truncate",
            "close",
            "hold",
        ]
        change = self.chance.choice(changes)
        if change == "new" or table is None:
            self.tables.append(self.cache.new())
        elif change == "fork":
            self.tables.append(self.cache.fork(table))
        elif change in ("append", "fail"):
            with suppress(OutOfBlocks, ZeroDivisionError):
                self.append(fails=change == "fail")
        elif change == "truncate":
            self.cache.truncate(table, self.chance.randint(0, table.length))
        elif change == "close":
            self.cache.release(table)
            self.tables.remove(table)
        else:
            self.cache.observer.tag(table, (0, len(self.tables), 1))

    def append(self, *, fails: bool) -> None:
        size = self.chance.randint(1, len(self.tables))
        batch = self.chance.sample(self.tables, size)
        with self.cache.append(batch, [self.chance.randint(0, 5) for _ in batch]):
            if fails:
                raise ZeroDivisionError


@pytest.mark.parametrize("seed", range(4))
def test_the_blocks_are_those_of_the_cache_after_every_change(seed: int) -> None:
    machine = Machine(seed)
    caches = {"target": {"blocks": 12, "block_size": 4}}
    state = State.begin(Header("lockstep", caches=caches))
    for _ in range(150):
        machine.change()
        for record in records_of(machine.trace.events, no_bytes):
            apply_event(state, record)
        machine.trace.events.clear()
        cache = state.caches["target"]
        branches = cache.branches.values()
        held = sorted((table.length, tuple(table.blocks)) for table in machine.tables)
        assert sorted((b.length, tuple(b.blocks)) for b in branches) == held
        counts = [machine.cache.pool.refcount(block) for block in range(12)]
        assert [len(cache.owners(block)) for block in range(12)] == counts
